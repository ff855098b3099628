"""Molecules: what a SMILES or an SDF says, which molecules are relatives, and targets with gaps."""

import gzip

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem, DataStructs
from rdkit.Chem import AllChem
from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator
from rdkit.Chem.Scaffolds import MurckoScaffold
from rdkit.ML.Cluster import Butina
from sklearn.metrics import roc_auc_score

from domains.contract import Request
from domains.metrics import label_set_metrics, number_row_metrics, point
from domains.molecules import data, scaffolds
from domains.molecules.chemistry import main_fragment, molecule, parsed
from domains.molecules.demo import load as load_demo
from domains.splits import make_split
from trainers.contract import Predictions, as_objects
from trainers.errors import DataError, UsageError

SOME = [
    *("CCO", "CCCO", "CCCCO", "CC(=O)O", "CCC(=O)O", "CCN", "CCCN", "c1ccccc1", "Cc1ccccc1", "OCc1ccccc1", "C1CCCCC1"),
    *("CC1CCCCC1", "c1ccncc1", "Cc1ccncc1", "c1ccc2ccccc2c1", "Cc1ccc2ccccc2c1", "C[C@H](N)C(=O)O", "C[C@@H](N)C(=O)O"),
    *("C1CCOC1", "CC1CCOC1", "O=C1CCCCC1", "c1ccc(-c2ccccc2)cc1", "C/C=C/C", r"C/C=C\C", "CS(C)=O", "ClCCl", "BrCCBr"),
]


def frame_of(smiles, **more):
    values = np.arange(len(smiles), dtype=float) / 7
    return pd.DataFrame({"smiles": smiles, "y": values, **more})


def test_one_molecule_has_one_form_however_it_is_written():
    for texts in (
        ("OCC", "C(O)C", "[CH3][CH2][OH]", "[H]OC([H])([H])C", " CCO ", "CCO ethanol", "[CH3:7]CO"),
        ("C[C@H](O)CN", "NC[C@H](C)O", "O[C@@H](C)CN"),
        ("c1ccccc1O", "OC1=CC=CC=C1"),
        ("CC(=O)[O-].[Na+]", "[Na+].[O-]C(C)=O"),
    ):
        assert len({parsed(text).canonical for text in texts}) == 1, texts
        assert parsed(parsed(texts[0]).canonical).canonical == parsed(texts[0]).canonical


def test_stereo_isotopes_charges_and_salts_stay_different_molecules():
    texts = [
        "C[C@H](O)CN",
        "C[C@@H](O)CN",
        "CC(O)CN",
        "C/C=C/O",
        r"C/C=C\O",
        "O",
        "[2H]O[2H]",
        "CCO",
        "CCO.Cl",
        "CC[O-]",
    ]
    assert len({parsed(text).canonical for text in texts}) == len(texts)


def test_rows_without_a_molecule_are_listed_with_a_reason_and_none_is_dropped():
    smiles = ["CCO", "", "CC1=CC=C[NH+2]([O-])C1", "C1CC", "not one", "c1ccccc1"]
    reading = data.read(frame_of(smiles), Request(target="y"))
    assert len(reading.table) == len(smiles)
    reasons = {row.position: row.reason for row in reading.bad}
    assert sorted(reasons) == [1, 2, 3, 4]
    assert "no SMILES" in reasons[1]
    assert "valence" in reasons[2].lower()
    assert "'C1CC'" in reasons[3]


def test_what_is_too_large_for_a_molecule_is_a_bad_row_at_once(tmp_path):
    """RDKit's scaffold of the second would take minutes, reading the third one too."""
    smiles = ["CCO", "c1ccccc1CN" * 200, "CCN(C(O)C)c1ccccc1" * 3000, "C" * 1000]
    reading = data.read(frame_of(smiles), Request(target="y"))
    reasons = {row.position: row.reason for row in reading.bad}
    assert sorted(reasons) == [1, 2]
    assert "1,600 atoms, more than 1,000" in reasons[1]
    assert "54,000 characters" in reasons[2]
    carbon = "M  V30 {} C 0 0 0 0\n"
    atoms = "".join(carbon.format(i) for i in range(1, 20_001))
    counts = "M  V30 BEGIN CTAB\nM  V30 COUNTS 20000 0 0 0 0\nM  V30 BEGIN ATOM\n"
    head = f"big\n\n\n  0  0  0     0  0            999 V3000\n{counts}"
    big = f"{head}{atoms}M  V30 END ATOM\nM  V30 END CTAB\nM  END\n>  <y>\n1\n\n$$$$\n"
    (tmp_path / "m.sdf").write_text(big + Chem.MolToMolBlock(Chem.MolFromSmiles("CCO")) + ">  <y>\n2\n\n$$$$\n")
    (row,) = data.read(tmp_path / "m.sdf", Request(target="y")).bad
    assert (row.position, "20,010 lines" in row.reason) == (0, True), row.reason


def test_the_column_of_smiles_is_found_by_name_or_content_or_is_named():
    frame = frame_of(SOME)
    by_content = data.read(frame.rename(columns={"smiles": "what"}), Request(target="y"))
    two = frame.assign(other=frame["smiles"]).rename(columns={"smiles": "first"})
    named = data.read(two, Request(target="y", columns={"smiles": "other"}))
    assert by_content.table.column("smiles").tolist() == named.table.column("smiles").tolist()
    with pytest.raises(DataError, match="first, other"):
        data.read(two, Request(target="y"))
    with pytest.raises(DataError, match="no column holds SMILES"):
        data.read(frame[["y"]].assign(z="hello world"), Request(target="y"))


def test_numbers_beside_the_target_are_no_features():
    leak = frame_of(SOME, predicted=np.arange(len(SOME)) / 7)
    table = data.read(leak, Request(target="y")).table
    assert list(table.frame.columns) == ["smiles", "y"]


def test_an_sdf_gives_properties_as_columns_and_lists_what_is_broken(tmp_path):
    blocks = []
    for i, smiles in enumerate(["CCO", "C[C@H](O)CN", "c1ccccc1"]):
        mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
        AllChem.EmbedMolecule(mol, randomSeed=1)
        mol.SetProp("_Name", f"m{i}")
        blocks.append(Chem.MolToMolBlock(mol) + f">  <y>  (1)\n{i}.5\n\n>  <note>\nfine\n\n$$$$\n")
    blocks.insert(1, "broken\n\n\n  1  0  0\n garbage\nM  END\n>  <y>\n9\n\n$$$$\n")
    path = tmp_path / "a.sdf"
    path.write_text("".join(blocks))
    reading = data.read(path, Request(target="y"))
    assert [row.position for row in reading.bad] == [1]
    assert "molecule 2" in reading.bad[0].place
    assert reading.table.target().tolist() == [0.5, 9.0, 1.5, 2.5]
    assert list(reading.table.ids) == ["m0", "broken", "m1", "m2"]
    expected = ["CCO", "", "C[C@H](O)CN", "c1ccccc1"]
    assert reading.table.column("smiles").tolist() == [parsed(text).canonical if text else "" for text in expected]


def test_a_packed_sdf_is_read_like_the_plain_one(tmp_path):
    records = "".join(
        Chem.MolToMolBlock(Chem.MolFromSmiles(text)) + f">  <y>\n{text}\n\n$$$$\n" for text in ("CCO", "CCN")
    )
    (tmp_path / "m.sdf.gz").write_bytes(gzip.compress(records.encode()))
    assert data.read(tmp_path / "m.sdf.gz", Request(target="y")).table.column("smiles").tolist() == ["CCO", "CCN"]


def test_a_list_of_smiles_and_names_is_predicted_row_by_row(tmp_path):
    (tmp_path / "new.smi").write_text("smiles id\nCCO ethanol\n\nOCC\tthe same\nC1CC broken\n")
    train = data.read(frame_of(SOME), Request(target="y"))
    facts = data.describe(train.table, train.task, Request(target="y"))
    reading = data.read(tmp_path / "new.smi", Request(facts=facts))
    assert list(reading.table.ids) == ["ethanol", "1", "the same", "broken"]
    assert reading.table.column("smiles").tolist() == ["CCO", "", "CCO", ""]
    assert [(row.position, row.place) for row in reading.bad] == [(1, "new.smi line 3"), (3, "new.smi line 5")]


def test_salts_and_single_atoms_are_kept_and_the_rule_is_told():
    smiles = ["[Na+].[Cl-]", "C", "[He]", "[K+]", "CC(=O)[O-].[Na+]", "CCO.Cl", "[NH4+].[OH-]", "N#N", "CCO", "CCCO"]
    reading = data.read(frame_of(smiles), Request(target="y"))
    assert not reading.bad
    assert any(
        "4 molecules have several fragments" in notice and "all are kept" in notice for notice in reading.notices
    )
    keys = data.keys(reading.table, "regression", Request(target="y"), fast=False)
    assert sum(len(part) for part in parts(make_split(keys, len(smiles), seed=0))) == len(smiles)
    assert Chem.MolToSmiles(main_fragment(molecule("CC(=O)[O-].[Na+]"))) == "CC(=O)[O-]"


def test_rare_elements_radicals_isotopes_and_wildcards_are_told_with_their_rows():
    training = data.read(frame_of(["CCO", "CF", "CCCl", "CCCO"]), Request(target="y"))
    facts = data.describe(training.table, "regression", Request(target="y"))
    new = pd.DataFrame(
        {"smiles": ["[U]", "[CH3]", "[2H]O[2H]", "[Fe+2]", "*C", "[13CH4]", "CC1=CC=C[NH+2]([O-])C1", "CCO"]}
    )
    reading = data.read(new, Request(facts=facts))
    told = " | ".join(reading.notices)
    for name in ("element U", "element Fe", "a radical", "isotope 2H", "isotope 13C", "wildcard *"):
        assert name in told
    assert [row.position for row in reading.bad] == [6]


def parts(split):
    return split.train, split.valid, split.test


@pytest.mark.parametrize("seed", range(3))
def test_no_molecule_scaffold_or_mirror_image_is_in_two_parts(seed):
    written = [Chem.MolToSmiles(molecule(parsed(text).canonical), doRandom=True) for text in SOME for _ in range(3)]
    table = data.read(frame_of(written), Request(target="y")).table
    split = make_split(data.keys(table, "regression", Request(target="y"), fast=False), len(table), seed=seed)
    smiles = table.column("smiles").to_numpy(object)
    seen = [set(smiles[part]) for part in parts(split)]
    flat = [{scaffolds.scaffold(text) for text in part} - {""} for part in seen]
    mirrored = [{Chem.MolToSmiles(molecule(text), isomericSmiles=False) for text in part} for part in seen]
    for sets in (seen, flat, mirrored):
        assert not sets[0] & sets[1]
        assert not sets[0] & sets[2]
        assert not sets[1] & sets[2]
    assert split.evidence["highest_similarity_across"] < 1


def test_clusters_of_acyclic_molecules_are_those_of_rdkit_s_butina():
    rng = np.random.default_rng(0)
    parts_of = ["C", "CC", "C(O)", "C(N)", "C(=O)", "C(Cl)", "S", "C(F)"]
    smiles = sorted({"C" + "".join(rng.choice(parts_of, rng.integers(3, 8))) for _ in range(80)})
    generator = GetMorganGenerator(radius=2, fpSize=2048)
    prints = [generator.GetFingerprint(Chem.MolFromSmiles(text)) for text in smiles]
    distances = [
        1 - x for i in range(1, len(prints)) for x in DataStructs.BulkTanimotoSimilarity(prints[i], prints[:i])
    ]
    theirs = Butina.ClusterData(distances, len(prints), 1 - scaffolds.LIKE, isDistData=True)
    ours = scaffolds.butina(prints, scaffolds.LIKE)
    # Equal counts of neighbours may be taken in another order, so sizes of the largest clusters are compared.
    sizes = sorted(np.bincount(np.unique(ours, return_inverse=True)[1]), reverse=True)
    assert abs(len(sizes) - len(theirs)) <= 2
    assert sizes[0] == max(map(len, theirs))
    for cluster in np.unique(ours):
        members = np.flatnonzero(ours == cluster)
        assert any(
            all(DataStructs.TanimotoSimilarity(prints[a], prints[b]) >= scaffolds.LIKE for b in members)
            for a in members
        )


def test_the_largest_scaffolds_train_as_in_deepchem():
    rng = np.random.default_rng(1)
    rings = ["c1ccccc1", "C1CCCCC1", "c1ccncc1", "C1CCOC1", "c1ccc2ccccc2c1", "C1CC1", ""]
    smiles = ["C" * int(rng.integers(1, 9)) + rings[int(rng.integers(7) ** 1.0)] for _ in range(60)]
    canonical = [parsed(text).canonical for text in smiles]
    first = list(dict.fromkeys(canonical))
    # DeepChem's ScaffoldSplitter.split, on the molecules without copies.
    groups = {}
    for i, text in enumerate(first):
        groups.setdefault(MurckoScaffold.MurckoScaffoldSmiles(smiles=text, includeChirality=True), []).append(i)
    sets = [g for _, g in sorted(groups.items(), key=lambda x: (len(x[1]), x[1][0]), reverse=True)]
    train, valid, test = [], [], []
    for group in sets:
        if len(train) + len(group) > 0.8 * len(first):
            if len(train) + len(valid) + len(group) > 0.9 * len(first):
                test += group
            else:
                valid += group
        else:
            train += group
    found = scaffolds.largest_first(canonical)
    for name, members in (("train", train), ("valid", valid), ("test", test)):
        assert {canonical[i] for i in np.flatnonzero(found == name)} == {first[i] for i in members}
    assert (found == "").sum() == len(canonical) - len(first)


def test_the_named_split_is_asked_for_by_name():
    table = data.read(frame_of(SOME), Request(target="y")).table
    keys = data.keys(table, "regression", Request(target="y"), fast=True)
    assert make_split(keys, len(table), seed=0, rule="scaffold-largest-first").rule == "scaffold-largest-first"
    with pytest.raises(UsageError, match="scaffold-largest-first"):
        make_split(keys, len(table), seed=0, rule="scafold-largest-first")


def test_copies_with_other_labels_are_told_with_their_rows():
    reading = data.read(frame_of(["CCO", "OCC", "CCN", "CCCN"]), Request(target="y"))
    assert any("1 molecules occur with differing values" in notice and "row 1" in notice for notice in reading.notices)


GAPS = pd.DataFrame({
    "smiles": SOME,
    "t1": np.arange(len(SOME)) / 10,
    "t2": [float(i % 3 == 0) if i % 2 else np.nan for i in range(len(SOME))],
    "t3": [1.0 if i == 0 else np.nan for i in range(len(SOME))],
})  # fmt: skip


def test_several_targets_are_labels_where_all_are_0_and_1_else_numbers_and_each_is_counted():
    numbers = data.read(GAPS, Request(target="t1,t2,t3"))
    labels = data.read(GAPS, Request(target="t2,t3"))
    assert (numbers.task, labels.task) == ("multiregression", "multilabel")
    assert any(f"t1 {len(SOME)}, t2 13, t3 1" in notice for notice in numbers.notices)
    assert not numbers.bad
    assert {row.position for row in labels.bad} == {i for i in range(1, len(SOME)) if not i % 2}


def test_scores_of_several_labels_are_scikit_learn_s_on_known_rows_and_undefined_without():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, (40, 3)).astype(float)
    truth[rng.random((40, 3)) < 0.4] = np.nan
    truth[:, 2] = np.where(np.isnan(truth[:, 2]), np.nan, 0.0)
    names = ("a", "b", "c")
    sets = as_objects(
        [tuple(n + "?" if np.isnan(v) else n for n, v in zip(names, row, strict=True) if v != 0) for row in truth]
    )
    scores = rng.random((40, 3))
    predictions = Predictions.of_label_sets(scores, names)
    found = {m.name: point(m, sets, predictions) for m in label_set_metrics(names, first="mean_auc", each=True)}
    known = np.isfinite(truth)
    single = [roc_auc_score(truth[known[:, k], k], scores[known[:, k], k]) for k in range(2)]
    assert found["auc_a"] == pytest.approx(single[0])
    assert found["auc_b"] == pytest.approx(single[1])
    assert found["auc_c"] is None
    assert found["mean_auc"] == pytest.approx(np.mean(single))
    assert next(iter(found)) == "mean_auc"


def test_scores_of_several_numbers_count_known_ones_alone():
    truth = as_objects([(1.0, np.nan, np.nan), (2.0, 4.0, np.nan), (4.0, 8.0, np.nan)])
    predictions = Predictions.of_number_rows(np.array([[1.0, 0, 5], [3, 5, 5], [4, 8, 5]]), ("a", "b", "c"))
    found = {metric.name: point(metric, truth, predictions) for metric in number_row_metrics(("a", "b", "c"))}
    assert found["rmse_a"] == pytest.approx(np.sqrt(1 / 3))
    assert found["rmse_b"] == pytest.approx(np.sqrt(1 / 2))
    assert found["rmse_c"] is None
    assert found["mean_rmse"] == pytest.approx((np.sqrt(1 / 3) + np.sqrt(1 / 2)) / 2)


def test_the_demo_reads_without_a_bad_row():
    demo = load_demo("sodium-channel")
    reading = data.read(demo.data.head(200), demo.request)
    assert not reading.bad
    assert len(demo.data) > 900


def test_a_named_split_that_leaves_nothing_to_train_on_is_refused_and_never_replaced():
    table = data.read(frame_of(["C" * n + "O" for n in range(1, 30)]), Request(target="y")).table
    keys = data.keys(table, "regression", Request(target="y"), fast=True)
    with pytest.raises(DataError, match="scaffold-largest-first split leaves no rows for train"):
        make_split(keys, len(table), seed=0, rule="scaffold-largest-first")


def test_a_file_without_a_header_is_refused_before_its_first_molecule_is_lost(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("CC(=O)Oc1ccccc1C(=O)O\nCCO\nc1ccccc1O\n")
    with pytest.raises(DataError, match="header is missing"):
        data.read(path, Request())
