"""Molecules in space: structures of SDF files and of RDKit, SchNet and DimeNet++ against torch-geometric's own, and runs."""

import json
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
import torch
from rdkit import Chem
from rdkit.Chem import AllChem

import zoo
from domains.contract import Request
from domains.molecules.data import read
from domains.molecules.schnet import element_counts, element_sums
from domains.molecules.space_networks import DimeNet, SchNet, triples
from domains.molecules.structures import STRUCTURES, Structure, joined, made
from trainers.errors import DataError
from zoo import run

SMILES = ["CCO", "C", "c1ccccc1O", "CC(=O)N", "C#N", "[He]"]
TINY = {"options.width": 16, "options.depth": 2, "train.epochs": 2, "train.compile": "off"}


def tensors(structures, cutoff=5.0):
    found = joined(structures, cutoff)
    parts = (found.elements, found.positions, found.pairs, found.molecule)
    return [torch.from_numpy(part) for part in parts]


@pytest.fixture(scope="module")
def structures():
    return [made(smiles, 0) for smiles in SMILES]


def test_rdkit_makes_the_same_conformer_again_and_none_of_what_it_cannot(structures):
    np.testing.assert_array_equal(made("CCO", 0).positions, structures[0].positions)
    assert sorted(structures[0].elements.tolist()) == [1] * 6 + [6, 6, 8]
    assert 0.9 < structures[0].nearest < 1.0  # oxygen to hydrogen
    assert made("*", 0) is None or len(made("*", 0).elements) == 1


def test_pairs_are_those_of_one_molecule_nearer_than_the_cutoff(structures):
    elements, positions, pairs, molecule = tensors(structures, 2.0)
    expected = {
        (a, b)
        for a, b in permutations(range(len(elements)), 2)
        if molecule[a] == molecule[b] and (positions[a] - positions[b]).norm() < 2.0
    }
    assert set(zip(*pairs.tolist(), strict=True)) == expected


def brute_triples(pairs):
    ends = list(zip(*pairs.tolist(), strict=True))
    return {(k, p) for p, (j, i) in enumerate(ends) for k, (a, b) in enumerate(ends) if b == j and a != i}


def test_triples_are_all_pairs_that_end_where_another_starts_but_its_reverse(structures):
    elements, _, pairs, _ = tensors(structures, 2.0)
    assert set(zip(*(each.tolist() for each in triples(pairs, len(elements))), strict=True)) == brute_triples(pairs)


def test_random_schnet_is_that_of_torch_geometric(structures):
    from torch_geometric.nn.models import SchNet as Theirs

    torch.manual_seed(0)
    ours = SchNet(16, 2, 1, 5.0, is_mean=False)
    elements, positions, pairs, molecule = tensors(structures)
    apart = (positions[pairs[0]] - positions[pairs[1]]).norm(dim=1)
    theirs = Theirs(16, 16, 2, cutoff=5.0, interaction_graph=lambda *_: (pairs, apart))
    theirs.embedding, theirs.interactions = ours.embedding, ours.layers
    theirs.lin1, theirs.lin2 = ours.inner, ours.head
    expected = theirs(elements, positions, molecule)
    torch.testing.assert_close(ours(elements, positions, pairs, molecule, len(structures)), expected)


def test_random_dimenet_is_that_of_torch_geometric(structures, monkeypatch):
    from torch_geometric.nn.models import dimenet

    torch.manual_seed(0)
    ours = DimeNet(16, 2, 3, 5.0, is_mean=False)
    for output in ours.layers.output_blocks:  # they begin at zero, and would hide any fault
        torch.nn.init.normal_(output.lin.weight)
    elements, positions, pairs, molecule = tensors(structures)

    def plain_triples(edge_index, num_nodes):
        found = sorted(brute_triples(edge_index))
        before, pair = (torch.tensor(each) for each in zip(*found, strict=True))
        row, col = edge_index
        return col, row, col[pair], row[pair], row[before], before, pair

    monkeypatch.setattr(dimenet, "radius_graph", lambda *_, **__: pairs)
    monkeypatch.setattr(dimenet, "triplets", plain_triples)
    expected = ours.layers(elements, positions, molecule)
    found = ours(elements, positions, pairs, molecule, len(structures))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert expected.abs().max() > 0.1


@pytest.mark.parametrize("kind", [SchNet, DimeNet])
def test_random_networks_do_not_see_turns_moves_order_or_other_molecules(kind, structures):
    torch.manual_seed(0)
    network = kind(16, 2, 2, 5.0, is_mean=True).eval()
    if kind is DimeNet:
        for output in network.layers.output_blocks:
            torch.nn.init.normal_(output.lin.weight)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    order = np.random.default_rng(1).permutation(len(structures[2].elements))
    moved = Structure(
        structures[2].elements[order], (structures[2].positions[order] @ turn.T + [1.0, -2.0, 3.0]).astype(np.float32)
    )
    with torch.no_grad():
        whole = network(*tensors(structures), len(structures))
        alone = network(*tensors([moved]), 1)
    torch.testing.assert_close(whole[2:3], alone, atol=1e-4, rtol=1e-3)


def test_element_sums_are_found_where_known_and_each_target_by_itself(structures):
    counts = element_counts(structures)
    truth = np.zeros((counts.shape[1], 2))
    truth[[1, 6, 7, 8], 0], truth[[1, 6, 7, 8], 1] = [-0.5, -38.0, -54.0, -75.0], [1.0, 2.0, 3.0, 4.0]
    numbers = counts @ truth
    numbers[1, 0] = np.nan
    found = element_sums(counts, numbers)
    np.testing.assert_allclose(counts @ found, counts @ truth, atol=1e-2)


def write_sdf(path, num=40, flat=()):
    """Chains with a kink: their spread depends on the conformer, which the label follows."""
    writer = Chem.SDWriter(str(path))
    rng = np.random.default_rng(0)
    for at in range(num):
        mol = Chem.AddHs(Chem.MolFromSmiles("C" * int(rng.integers(2, 8)) + str(rng.choice(["O", "N", "F"]))))
        AllChem.EmbedMolecule(mol, randomSeed=at)
        positions = mol.GetConformer().GetPositions()
        mol.SetProp("spread", f"{np.sqrt(((positions - positions.mean(axis=0)) ** 2).sum(axis=1).mean()):.5f}")
        mol.SetProp("_Name", f"mol{at}")
        if at in flat:
            mol.RemoveAllConformers()
        writer.write(mol)
    writer.close()
    return path


def test_an_sdf_keeps_the_positions_of_all_atoms_hydrogens_included(tmp_path):
    path = write_sdf(tmp_path / "a.sdf", num=5, flat=(3,))
    table = read(path, Request(target="spread")).table
    given = table.context[STRUCTURES]
    assert set(given) == {0, 1, 2, 4}
    mol = next(iter(Chem.SDMolSupplier(str(path), removeHs=False)))
    np.testing.assert_allclose(given[0].positions, mol.GetConformer().GetPositions(), atol=1e-4)
    assert given[0].elements.tolist() == [atom.GetAtomicNum() for atom in mol.GetAtoms()]


@pytest.mark.parametrize("network", ["schnet", "dimenet++"])
def test_a_run_on_an_sdf_predicts_again_and_says_which_rows_have_no_positions(network, tmp_path):
    path = write_sdf(tmp_path / "train.sdf")
    sets = {**TINY, "options.network": network}
    done = run.train("molecules/schnet", path, target="spread", set=sets, fast=True, out=tmp_path / "run")
    new = write_sdf(tmp_path / "new.sdf", num=4, flat=(2,))
    found = zoo.load(done.folder).predict(new)
    assert found["problem"].tolist() == ["", "", "no three-dimensional positions", ""]
    assert found["prediction"].notna().tolist() == [True, True, False, True]
    pd.testing.assert_frame_equal(found, done.predict(new))
    assert json.loads((done.folder / "plan.json").read_text())["estimates"]["notes"] == ["positions are read as Å"]


@pytest.mark.parametrize("title", ["twin", ""])
def test_records_of_one_title_or_none_keep_their_own_positions(title, tmp_path):
    path = write_sdf(tmp_path / "train.sdf")
    named = Request(target="spread", id_column="name")
    done = run.train(
        "molecules/schnet", path, target="spread", id_column="name", set=TINY, fast=True, out=tmp_path / "run"
    )
    text = write_sdf(tmp_path / "new.sdf", num=3).read_text()
    alone = zoo.load(done.folder).predict(tmp_path / "new.sdf")["prediction"]
    for at in range(3):
        text = text.replace(f"mol{at}\n", f"{title}\n", 1)
    (tmp_path / "same.sdf").write_text(text)
    found = zoo.load(done.folder).predict(tmp_path / "same.sdf")
    np.testing.assert_allclose(found["prediction"], alone)
    assert alone.nunique() == 3
    assert found["id"].tolist() == ([title] * 3 if title else ["0", "1", "2"])
    assert read(path, named).table.ids[0] == "mol0"


def without_hydrogens(path, to):
    writer = Chem.SDWriter(str(to))
    for mol in Chem.SDMolSupplier(str(path)):  # RDKit removes them
        writer.write(mol)
    writer.close()
    return to


@pytest.mark.parametrize(
    ("trained_with", "problem"), [(True, r"\d+ hydrogens have no pos"), (False, "hydrogens have pos")]
)
def test_hydrogens_that_are_there_in_training_or_in_predicting_alone_leave_no_answer(trained_with, problem, tmp_path):
    with_them = write_sdf(tmp_path / "with.sdf")
    files = [with_them, without_hydrogens(with_them, tmp_path / "without.sdf")]
    trained, other = files if trained_with else reversed(files)
    done = run.train("molecules/schnet", trained, target="spread", set=TINY, fast=True, out=tmp_path / "run")
    found = zoo.load(done.folder).predict(other)
    assert found["problem"].str.match(problem).all()
    assert found["prediction"].isna().all()
    assert (done.predict(trained)["problem"] == "").all()


def data_of(path):
    return read(path, Request(target="spread"))


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (lambda first: [np.nan, 0, 0], "'nan' is no decimal number"),
        (lambda first: [1e30, 0, 0], "a bond of 1e+30"),
        (lambda first: first, "two atoms 0 apart"),
    ],
)
def test_atoms_that_cannot_be_where_an_sdf_puts_them_make_a_bad_row(place, reason, tmp_path):
    mols = list(Chem.SDMolSupplier(str(write_sdf(tmp_path / "a.sdf", num=3)), removeHs=False))
    conformer = mols[1].GetConformer()
    conformer.SetAtomPosition(1, place(list(conformer.GetAtomPosition(0))))
    writer = Chem.SDWriter(str(tmp_path / "b.sdf"))
    writer.SetForceV3000(True)  # in V2000 RDKit refuses itself what is no decimal number
    for mol in mols:
        writer.write(mol)
    writer.close()
    (row,) = read(tmp_path / "b.sdf", Request(target="spread")).bad
    assert "molecule 2" in row.place
    assert reason in row.reason


@pytest.mark.parametrize("form", ["V2000", "V3000"])
@pytest.mark.parametrize("coordinate", ["abc", "1,5000", "", "0x1p3"])
def test_a_coordinate_that_rdkit_would_take_for_zero_or_for_its_beginning_makes_a_bad_row(coordinate, form, tmp_path):
    mols = list(Chem.SDMolSupplier(str(write_sdf(tmp_path / "a.sdf", num=3)), removeHs=False))
    blocks = [Chem.MolToV3KMolBlock(mol) if form == "V3000" else Chem.MolToMolBlock(mol) for mol in mols]
    lines = blocks[1].splitlines()
    if form == "V2000":
        lines[5] = f"{coordinate:>10}{lines[5][10:]}"
    else:
        at = next(i for i, line in enumerate(lines) if "BEGIN ATOM" in line) + 2
        fields = lines[at].split()
        lines[at] = f"M  V30 {' '.join([*fields[2:4], coordinate or 'x', *fields[5:]])}"
    blocks[1] = "\n".join(lines) + "\n"
    (tmp_path / "b.sdf").write_text("".join(f"{block}>  <spread>\n{n}.5\n\n$$$$\n" for n, block in enumerate(blocks)))
    (row,) = data_of(tmp_path / "b.sdf").bad
    assert "molecule 2" in row.place
    assert row.reason.startswith("atom 2: the coordinate")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("$$$$\n", "", 1), "two molecules in one record"),
        (lambda text: "$$$$\n" + text, "an empty record"),
        (
            lambda text: text.replace(">  <spread>", ">  <spread>\n7\n\n>  <spread>", 1),
            "two values of the property 'spread'",
        ),
    ],
)
def test_records_that_run_into_each_other_and_two_values_of_a_property_make_bad_rows(change, reason, tmp_path):
    path = write_sdf(tmp_path / "a.sdf", num=3)
    path.write_text(change(path.read_text()))
    (row,) = data_of(path).bad
    assert "molecule 1" in row.place
    assert reason in row.reason


def test_smiles_without_positions_are_refused_with_the_way_out(tmp_path):
    frame = pd.DataFrame({"smiles": ["C" * n for n in range(1, 31)], "y": np.arange(30.0)})
    with pytest.raises(DataError, match=r"options\.conformers=etkdg"):
        run.train("molecules/schnet", frame, target="y", set=TINY, fast=True, out=tmp_path / "run")


def test_other_units_than_angstrom_are_noticed(tmp_path):
    path = write_sdf(tmp_path / "nm.sdf", num=30)
    writer = Chem.SDWriter(str(tmp_path / "bohr.sdf"))
    for mol in Chem.SDMolSupplier(str(path), removeHs=False):
        conformer = mol.GetConformer()
        for at, place in enumerate(conformer.GetPositions() / 0.25):
            conformer.SetAtomPosition(at, place.tolist())
        writer.write(mol)
    writer.close()
    said = []
    run.train(
        *("molecules/schnet", tmp_path / "bohr.sdf"),
        target="spread",
        set=TINY,
        fast=True,
        out=tmp_path / "run",
        say=said.append,
    )
    assert any("Convert the file to Å" in line for line in said)
