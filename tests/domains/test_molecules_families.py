"""Molecules: features, graph networks against plain references, gaps in the loss, and the two recipes as a whole."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from rdkit import Chem
from sklearn import ensemble

from domains.molecules import fingerprint_trees, fingerprints
from domains.molecules.gnn_scratch import GraphTask
from domains.molecules.graphs import Shelf, graphs_of
from domains.molecules.networks import Architecture, DirectedMessages, Ensemble, GraphNetwork
from domains.molecules.tree_members import Column, forest_member
from trainers.contract import as_objects
from trainers.outcome import fit_outcome
from zoo import run

MIRRORED = [("C[C@H](O)CN", "C[C@@H](O)CN"), ("C/C=C/O", r"C/C=C\O")]
SMILES = ["CCO", "[Na+].[Cl-]", "C", "c1ccccc1O", "CC(=O)[O-].[Na+]", "C[C@H](N)C(=O)O", "C/C=C/Cl", "[He]"]
TINY_GNN = {"options.width": 24, "options.hidden": 24, "options.depth": 3, "train.compile": "off"}
TINY_TREES = {"options.features": ["ecfp"], "options.num_bits": 256, "options.num_trees": 15, "train.rounds": 20}


def batch_of(smiles, positions=None):
    graphs = graphs_of(smiles)
    found = graphs.batch(range(len(smiles)) if positions is None else positions)
    return {name: torch.from_numpy(np.asarray(value)) for name, value in found.items()}


@pytest.mark.parametrize("kind", ["ecfp", "fcfp", "pairs", "torsions"])
def test_fingerprints_are_counts_and_ecfp_tells_stereoisomers_apart(kind):
    found = fingerprints.feature_matrix([*MIRRORED[0], "CCCCCCO"], [kind], radius=2, num_bits=512)
    assert found.shape == (3, 512)
    if kind == "ecfp":  # the others cannot tell these two apart
        assert (found[0] != found[1]).any()
    assert found.max() > 1


def test_descriptors_are_finite_for_metals_salts_and_single_atoms():
    found = fingerprints.feature_matrix([*SMILES, "[Au]Cl", "[Fe+2]"], ["descriptors", "maccs"], radius=2, num_bits=8)
    assert np.isfinite(found).all()
    assert found.shape[1] == sum(fingerprints.widths(["descriptors", "maccs"], 8))


@pytest.mark.parametrize("pair", MIRRORED)
def test_stereoisomers_differ_as_graphs(pair):
    one, other = (graphs_of([smiles]) for smiles in pair)
    assert not (np.array_equal(one.atoms, other.atoms) and np.array_equal(one.bonds, other.bonds))


@pytest.mark.parametrize("network", ["dmpnn", "gine"])
def test_the_answer_does_not_depend_on_the_order_of_atoms_nor_on_the_batch(network):
    torch.manual_seed(0)
    model = GraphNetwork(Architecture(network=network, width=16, hidden=8), 2, 0).eval()

    def answers(smiles):
        task = GraphTask(model, fit_outcome(np.arange(3.0), ()), None, Shelf(False))
        return model(*task._graph(task.shelf.places(smiles))).detach()

    whole = answers(SMILES)
    alone = torch.cat([answers([smiles]) for smiles in SMILES])
    torch.testing.assert_close(whole, alone)
    mol = Chem.MolFromSmiles("C[C@H](N)C(=O)Oc1ccccc1/C=C/Cl")
    shuffled = Chem.RenumberAtoms(mol, np.random.default_rng(0).permutation(mol.GetNumAtoms()).tolist())
    texts = [Chem.MolToSmiles(each, canonical=False) for each in (mol, shuffled)]
    torch.testing.assert_close(answers(texts[:1]), answers(texts[1:]))


def test_directed_messages_are_those_of_the_paper_bond_by_bond():
    torch.manual_seed(0)
    layer = DirectedMessages(width=6, depth=3, dropout=0.0)
    batch = batch_of(["CC(O)C=C", "c1ccccc1", "[He]"])
    atoms, bonds, edges = batch["atoms"], batch["bonds"], batch["edges"]
    first = [
        layer.atoms(atoms[v : v + 1])[0] + layer.bonds(bonds[e : e + 1])[0] for e, v in enumerate(edges[0].tolist())
    ]
    state = [h.relu() for h in first]
    ends = list(zip(*edges.tolist(), strict=True))
    for _ in range(2):
        arriving = [
            sum((state[k] for k, (a, b) in enumerate(ends) if b == v and a != w), torch.zeros(6)) for v, w in ends
        ]
        state = [(first[e] + layer.update(arriving[e])).relu() for e in range(len(ends))]
    total = torch.stack(
        [sum((state[k] for k, (_, b) in enumerate(ends) if b == v), torch.zeros(6)) for v in range(len(atoms))]
    )
    expected = (layer.atoms_out(atoms) + layer.out(total)).relu()
    found = layer(atoms, bonds, edges)
    torch.testing.assert_close(found, expected)
    weights = list(layer.parameters())
    slopes, by_bond = (torch.autograd.grad((out**2).sum(), weights) for out in (found, expected))
    torch.testing.assert_close(slopes, by_bond)


def test_the_sum_of_kinds_is_a_linear_layer_on_all_of_them_one_hot():
    layer = DirectedMessages(width=5, depth=1, dropout=0.0).atoms
    kinds = torch.from_numpy(graphs_of(SMILES).atoms).long()
    one_hot = torch.zeros(len(kinds), layer.table.num_embeddings)
    one_hot.scatter_(1, kinds + layer.starts, 1.0)
    torch.testing.assert_close(layer(kinds), one_hot @ layer.table.weight)


def test_a_shelf_makes_a_molecule_once_and_comes_back_from_its_arrays():
    shelf = Shelf(with_descriptors=True)
    places = shelf.places(["CCO", "C", "CCO"])
    assert places.tolist() == [0, 1, 0]
    later = shelf.places(["c1ccccc1", "C"])
    again = Shelf(with_descriptors=True)
    again.restore(shelf.arrays())
    assert again.places(["C", "c1ccccc1"]).tolist() == later.tolist()[::-1]
    for name, value in shelf.graphs.batch([2, 0]).items():
        np.testing.assert_array_equal(again.graphs.batch([2, 0])[name], value)


def labels_with_gaps(num):
    """Three labels or numbers a molecule; the last is known of the first molecule only."""
    rng = np.random.default_rng(0)
    return [
        (float(rng.integers(2)), float(rng.integers(2)) if i % 2 else np.nan, 1.0 if i == 0 else np.nan)
        for i in range(num)
    ]


def task_with_gaps(kind, smiles):
    names, rows = ("a", "b", "c"), labels_with_gaps(len(smiles))
    if kind == "multiregression":
        target = as_objects(rows)
        outcome = fit_outcome(target, (), names=names)
    else:
        target = as_objects(
            [tuple(n + "?" if np.isnan(v) else n for n, v in zip(names, row, strict=True) if v != 0) for row in rows]
        )
        outcome = fit_outcome(target, names)
    torch.manual_seed(0)
    task = GraphTask(GraphNetwork(Architecture(width=8, hidden=8), outcome.width, 0), outcome, None, Shelf(False))
    places = task.shelf.places(smiles)
    return task, list(zip(places.tolist(), outcome.encoded(target), strict=True)), np.array(rows)


def gradients(task, parts):
    """As the loop does it: counts of the whole step first, then each micro-batch."""
    batches = [task.draw(part, []) for part in parts]
    counts = {term: sum(batch.counts[term] for batch in batches) for term in batches[0].counts}
    task.model.zero_grad()
    for batch in batches:
        totals = task.loss(task.model, batch.inputs)
        sum(total / counts[term] for term, total in totals.items() if counts[term]).backward()
    return torch.cat([p.grad.flatten() for p in task.model.parameters() if p.grad is not None]), counts


@pytest.mark.parametrize("kind", ["multilabel", "multiregression"])
def test_four_micro_batches_of_two_equal_one_of_eight_also_where_a_column_is_missing_in_some(kind):
    task, examples, _ = task_with_gaps(kind, SMILES)
    whole, counts = gradients(task, [examples])
    parts, same = gradients(task, [examples[at : at + 2] for at in range(0, 8, 2)])
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)
    assert counts == same
    assert list(counts.values()) == [3 * 8.0, 3 * 4.0, 3 * 1.0]


@pytest.mark.parametrize("kind", ["multilabel", "multiregression"])
def test_a_column_that_is_missing_in_a_whole_batch_counts_nothing_and_gives_no_gradient(kind):
    task, examples, _ = task_with_gaps(kind, SMILES)
    found, counts = gradients(task, [examples[1:]])
    assert list(counts.values())[2] == 0
    assert found.isfinite().all()
    assert task.model.head.weight.grad[2].abs().max() == 0
    assert task.model.head.weight.grad[0].abs().max() > 0


def test_the_loss_of_several_numbers_is_the_mean_of_their_mean_squares_over_known_rows():
    task, examples, rows = task_with_gaps("multiregression", SMILES)
    batch = task.draw(examples, [])
    totals = task.loss(task.model, batch.inputs)
    found = sum(total / batch.counts[term] for term, total in totals.items()).detach()
    graph, _ = batch.inputs
    scaled = task.model(*graph).detach().numpy() * np.array(task.outcome.stds) + np.array(task.outcome.means)
    each = [np.nanmean(((scaled[:, k] - rows[:, k]) / task.outcome.stds[k]) ** 2) for k in range(3)]
    assert float(found) == pytest.approx(np.mean(each), rel=1e-5)


def trained(tmp_path, recipe, frame, **more):
    sets = {**(TINY_GNN if recipe.endswith("scratch") else TINY_TREES), **more.pop("set", {})}
    return run.train(recipe, frame, set=sets, out=tmp_path / "run", **more)


def gaps_frame():
    smiles = ["C" * (1 + i % 7) + ["O", "N", "C=C", "Cl", "c1ccccc1"][i % 5] for i in range(40)]
    frame = pd.DataFrame({"smiles": smiles, "t1": [0.1 * len(text) for text in smiles]})
    frame["t2"] = [float("O" in text) if i % 2 else np.nan for i, text in enumerate(smiles)]
    frame["t3"] = [1.0 if i < 2 else np.nan for i in range(40)]
    return frame


@pytest.mark.parametrize("recipe", ["molecules/gnn-scratch", "molecules/fingerprint-trees"])
def test_several_targets_with_gaps_train_and_what_is_not_known_in_the_test_is_undefined(tmp_path, recipe):
    more = {"epochs": 2} if recipe.endswith("scratch") else {}
    done = trained(tmp_path, recipe, gaps_frame(), target="t1,t2,t3", split="random", **more)
    scores = done.metrics["test"]
    assert scores["mean_rmse"]["value"] > 0
    known = [i for i, row in enumerate(done.metrics["test"]) if row.startswith("rmse_")]
    assert len(known) == 3
    test_ids = json.loads((done.folder / "split.json").read_text())["ids"]["test"]
    assert (scores["rmse_t3"]["value"] is None) == (not {"0", "1"} & set(test_ids))
    answers = done.predict(pd.DataFrame({"smiles": ["CCO", "", "C[He"]}))
    assert answers["prediction_t1"].notna().tolist() == [True, False, False]
    assert answers["problem"].tolist()[0] == ""
    assert all(answers["problem"].tolist()[1:])


def test_stereoisomers_with_other_labels_are_learned(tmp_path):
    pairs = [(f"C[C@H](O){'C' * n}N", f"C[C@@H](O){'C' * n}N") for n in range(1, 9)]
    pairs += [(f"{'C' * n}/C=C/O", f"{'C' * n}/C=C\\O") for n in range(1, 9)]
    frame = pd.DataFrame(
        [{"smiles": text, "y": label} for pair in pairs for text, label in zip(pair, "RS", strict=True)]
    )
    frame["split"] = ["train", "train", "valid", "valid", "test", "test", *["train"] * (len(frame) - 6)]
    done = trained(
        tmp_path,
        "molecules/gnn-scratch",
        frame,
        target="y",
        epochs=60,
        set={"train.lr": 5e-3, "train.batch_size": 8, "train.keep": "last"},
    )
    answers = done.predict(frame)
    is_training = (frame["split"] == "train").to_numpy()
    assert (answers["prediction"] == frame["y"])[is_training].mean() > 0.9


def test_labels_at_random_on_copied_molecules_are_not_known_again(tmp_path):
    rng = np.random.default_rng(0)
    ends = ("O", "N", "Cl", "F", "Br", "C#N", "C=C", "c1ccccc1", "C1CCCC1", "c1ccncc1", "C1CC1", "c1ccco1")
    distinct = ["C" * n + end for n in range(1, 13) for end in ends]
    label = dict(zip(distinct, rng.permutation([0, 1] * 72), strict=True))
    rows = [(Chem.MolToSmiles(Chem.MolFromSmiles(text), doRandom=True), label[text]) for text in distinct * 2]
    done = trained(
        tmp_path,
        "molecules/fingerprint-trees",
        pd.DataFrame(rows, columns=["smiles", "y"]),
        target="y",
        task="classification",
    )
    train, test = (json.loads((done.folder / "split.json").read_text())["ids"][name] for name in ("train", "test"))
    canonical = [Chem.CanonSmiles(text) for text, _ in rows]
    assert not {canonical[int(i)] for i in train} & {canonical[int(i)] for i in test}
    assert done.metrics["test"]["auc"]["value"] < 0.85


def test_descriptors_are_computed_once_a_molecule_also_across_runs(tmp_path, monkeypatch):
    smiles = ["CCO", "c1ccccc1O", "CCO", "CC(=O)N"]
    options = {"radius": 2, "num_bits": 64}
    fresh = fingerprints.feature_matrix(smiles, ("ecfp", "descriptors"), **options)
    first = fingerprints.feature_matrix(smiles[:2], ("descriptors",), cache=tmp_path, **options)
    asked = []
    real = fingerprints.descriptors
    monkeypatch.setattr(fingerprints, "descriptors", lambda mol: asked.append(mol) or real(mol))
    again = fingerprints.feature_matrix(smiles, ("ecfp", "descriptors"), cache=tmp_path, **options)
    assert np.array_equal(fresh, again)
    assert np.array_equal(first, again[:2, 64:])
    assert len(asked) == 1  # of the molecule that was new


@pytest.mark.parametrize("extremely", [False, True])
@pytest.mark.parametrize(("asked", "num_classes", "least"), [(None, 2, 2), (None, 0, 1), (5, 2, 5)])
def test_leaves_have_the_rows_asked_for_else_two_for_classes_and_one_for_numbers_as_scikit_learn_grows_them(
    asked, num_classes, least, extremely
):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)).astype(np.float32), rng.integers(0, 2, 60).astype(float)
    options = fingerprint_trees.Options(num_trees=30, min_leaf=asked, max_features=1.0)
    forest = forest_member(Column(x, y, None, num_classes), options, extremely=extremely, seed=0, cores=1).forest
    kind = ("ExtraTrees" if extremely else "RandomForest") + ("Classifier" if num_classes else "Regressor")
    same = getattr(ensemble, kind)(30, random_state=0, max_features=1.0, min_samples_leaf=least)
    same.fit(x, y if num_classes else (y - y.mean()) / y.std())
    expected = same.predict_proba(x) if num_classes else same.predict(x)[:, None]
    np.testing.assert_allclose(forest.predict(x), expected, atol=1e-6)


def test_an_ensemble_answers_the_mean_of_its_networks_and_trains_each_as_if_alone():
    torch.manual_seed(0)
    members = [GraphNetwork(Architecture(width=16, hidden=8), 1, 0) for _ in range(3)]
    outcome, frame = fit_outcome(np.arange(8.0), ()), as_objects(SMILES)
    tasks = [GraphTask(model, outcome, None, Shelf(False)) for model in (*members, Ensemble(members))]
    rows = type("Rows", (), {"column": lambda self, name: frame})()
    *alone, together = [task.predict(task.model, task.collate(rows)).values for task in tasks]
    np.testing.assert_allclose(together, np.mean(alone, axis=0), rtol=1e-5)
    assert {name: tasks[0].roles()[name.partition(".")[2].partition(".")[2]] for name in tasks[-1].roles()} == dict(
        tasks[-1].roles()
    )
