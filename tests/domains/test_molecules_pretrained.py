"""Molecules: pretrained graph networks: chemprop's description of a molecule, its checkpoints read safely, and fine-tuning."""

import json
import pickle
import sys
from collections import OrderedDict
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from rdkit import Chem

from domains.molecules import chemprop, chemprop_weights, pretrained
from domains.molecules.gnn_scratch import GraphTask
from domains.molecules.graphs import Shelf, graphs_of
from domains.molecules.networks import Architecture, ChempropMessages, GraphNetwork
from trainers.errors import DataError, MissingError, UsageError
from zoo import run

SMILES = ["CCO", "[Na+].[Cl-]", "c1ccccc1O", "C[C@H](N)C(=O)O", "C/C=C/Cl", "[He]", "[Fe+2]", "C[Si](C)(C)C", "CC[Se]C"]
SHAPE = Architecture(network="chemprop", width=8, depth=3, hidden=6, pooling="norm", typical_atoms=100.0, features="v2")
TINY = {"train.epochs": 2, "train.compile": "off"}


def dense(smiles):
    """chemprop's vectors by its documentation, atom by atom: (atoms, 72), (bonds, 14) and the ends of each bond."""
    mol = Chem.MolFromSmiles(smiles)
    hybrids = ["S", "SP", "SP2", "SP2D", "SP3", "SP3D", "SP3D2"]

    def hot(value, known):
        return [float(value == each) for each in known] + [float(value not in known)]

    atoms = [
        hot(a.GetAtomicNum(), [*range(1, 37), 53])
        + hot(a.GetTotalDegree(), list(range(6)))
        + hot(a.GetFormalCharge(), [-1, -2, 1, 2, 0])
        + hot(int(a.GetChiralTag()), list(range(4)))
        + hot(a.GetTotalNumHs(), list(range(5)))
        + hot(str(a.GetHybridization()), hybrids)
        + [float(a.GetIsAromatic()), a.GetMass() / 100]
        for a in mol.GetAtoms()
    ]
    bonds, ends = [], []
    for b in mol.GetBonds():
        order = hot(str(b.GetBondType()), ["SINGLE", "DOUBLE", "TRIPLE", "AROMATIC"])[:-1]
        flags = [float(b.GetIsConjugated()), float(b.IsInRing())]
        bonds += [[0.0, *order, *flags, *hot(int(b.GetStereo()), list(range(6)))]] * 2
        ends += [(b.GetBeginAtomIdx(), b.GetEndAtomIdx()), (b.GetEndAtomIdx(), b.GetBeginAtomIdx())]
    return torch.tensor(atoms), torch.tensor(bonds).reshape(-1, 14), ends


@pytest.mark.parametrize("smiles", SMILES)
def test_random_messages_are_those_of_chemprop_on_its_dense_vectors_bond_by_bond(smiles):
    torch.manual_seed(0)
    layer = ChempropMessages(SHAPE)
    atoms, bonds, ends = dense(smiles)
    first = [layer.W_i(torch.cat([atoms[v], bonds[e]])) for e, (v, _) in enumerate(ends)]
    state = [h.relu() for h in first]
    for _ in range(2):
        arriving = [
            sum((state[k] for k, (a, b) in enumerate(ends) if b == v and a != w), torch.zeros(8)) for v, w in ends
        ]
        state = [(first[e] + layer.W_h(arriving[e])).relu() for e in range(len(ends))]
    total = [sum((state[k] for k, (_, b) in enumerate(ends) if b == v), torch.zeros(8)) for v in range(len(atoms))]
    expected = layer.W_o(torch.cat([atoms, torch.stack(total)], dim=1)).relu()
    graphs = graphs_of([smiles], chemprop.features("v2"))
    found = layer(
        *(torch.from_numpy(part) for part in (graphs.atoms, graphs.bonds)), torch.from_numpy(graphs.edges).long()
    )
    torch.testing.assert_close(found, expected)


def as_chemprop(network, columns=("a", "b"), **messages):
    """A checkpoint as chemprop 2.3 writes it, with objects of its classes in the settings."""
    module = ModuleType("chemprop")
    for name in ("BondMessagePassing", "NormAggregation", "RegressionFFN", "ReLU"):
        setattr(module, name, type(name, (), {"__module__": "chemprop", "__qualname__": name}))
    state = network.state_dict()
    tensors = OrderedDict(
        (f"message_passing.{n}", state[f"messages.{n}"]) for n in ("W_i.weight", "W_h.weight", "W_o.weight", "W_o.bias")
    )
    for ours, theirs in (("hidden.1", "ffn.0.0"), ("head", "ffn.1.2")):
        for part in ("weight", "bias"):
            tensors[f"predictor.{theirs}.{part}"] = state[f"{ours}.{part}"]
    own = {
        "d_v": 72,
        "d_e": 14,
        "d_h": 8,
        "depth": 3,
        "bias": False,
        "activation": module.ReLU(),
        "cls": module.BondMessagePassing,
    }
    settings = {
        "batch_norm": False,
        "message_passing": {**own, **messages},
        "agg": {"dim": 0, "norm": 100, "cls": module.NormAggregation},
        "predictor": {"activation": "relu", "cls": module.RegressionFFN},
    }
    return module, {"hyper_parameters": settings, "state_dict": tensors, "output_columns": list(columns)}


def save_as_chemprop(network, path, **messages):
    """Write such a file; only while it is written can the classes be imported."""
    sys.modules["chemprop"], values = as_chemprop(network, **messages)
    torch.save(values, path)
    del sys.modules["chemprop"]


@pytest.fixture
def network():
    torch.manual_seed(1)
    return GraphNetwork(SHAPE, 2, 0).eval()


@pytest.fixture
def checkpoint(network, tmp_path):
    path = tmp_path / "model.pt"
    save_as_chemprop(network, path)
    return path


def answers(network, smiles=SMILES):
    task = GraphTask(network, None, None, Shelf(False, chemprop.features("v2")))
    return network(*task._graph(task.shelf.places(smiles))).detach()


def test_a_checkpoint_with_objects_of_chemprop_is_read_without_chemprop_and_answers_the_same(network, checkpoint):
    found = chemprop_weights.read(checkpoint)
    assert (found.shape, found.columns) == (SHAPE, ("a", "b"))
    again = GraphNetwork(found.shape, 2, 0).eval()
    again.load_state_dict({**again.state_dict(), **found.weights})
    torch.testing.assert_close(answers(again), answers(network))
    assert not any(name.split(".")[0] in ("chemprop", "lightning") for name in sys.modules)


def test_a_file_that_wants_to_run_code_is_refused_and_runs_none(tmp_path):
    class Wicked:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"hyper_parameters": {}, "state_dict": Wicked()}, tmp_path / "wicked.pt")
    with pytest.raises(DataError, match="refused, it names"):
        chemprop_weights.read(tmp_path / "wicked.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(DataError, match=r"not a readable checkpoint|no checkpoint of chemprop"):
        chemprop_weights.read(tmp_path / "plain.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"undirected": True}, "undirected"),
        ({"d_v": 52, "d_e": 2}, "features of 52"),
        ({"activation": "prelu"}, "prelu"),
    ],
)
def test_a_network_that_ours_cannot_be_is_refused_by_name(network, tmp_path, change, reason):
    save_as_chemprop(network, tmp_path / "other.pt", **change)
    with pytest.raises(DataError, match=reason):
        chemprop_weights.read(tmp_path / "other.pt")


def test_messages_alone_as_chemeleon_has_them_get_a_mean_and_a_new_layer(network, tmp_path):
    _, whole = as_chemprop(network)
    state = {n.removeprefix("message_passing."): v for n, v in whole["state_dict"].items() if n.startswith("message_")}
    settings = {"d_v": 72, "d_e": 14, "d_h": 8, "depth": 3, "bias": False, "activation": "leakyrelu", "dropout": 0.0}
    torch.save({"hyper_parameters": settings, "state_dict": state}, tmp_path / "messages.pt")
    found = pretrained.source(str(tmp_path / "messages.pt"))
    assert (found.shape.pooling, found.shape.activation, found.shape.hidden_layers) == ("mean", "leakyrelu", 0)
    assert set(found.weights) == {f"messages.{name}" for name in state}


def test_missing_weights_say_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(MissingError, match="pip install --no-deps admet-ai"):
        pretrained.source("admet-ai")
    with pytest.raises(MissingError, match=r"curl -L .*zenodo"):
        pretrained.source("chemeleon")
    with pytest.raises(UsageError, match="classification/0"):
        pretrained.source("admet-ai:regression/9")


def molecules(num=40):
    rng = np.random.default_rng(0)
    smiles = [
        "C" * int(n) + "O" * int(o) for n, o in zip(rng.integers(1, 20, num), rng.integers(0, 2, num), strict=True)
    ]
    return pd.DataFrame({"smiles": smiles, "y": [float(len(each)) for each in smiles]})


def test_a_run_from_nothing_feeds_a_run_that_fine_tunes_and_the_card_says_what_it_saw(tmp_path, checkpoint):
    sets = {**TINY, "options.width": 16, "options.hidden": 16}
    first = run.train("molecules/gnn-scratch", molecules(), target="y", set=sets, fast=True, out=tmp_path / "first")
    sets = {**TINY, "options.weights": str(first.folder), "train.freeze_epochs": 2}
    second = run.train("molecules/gnn-finetune", molecules(), target="y", set=sets, fast=True, out=tmp_path / "second")
    from safetensors.torch import load_file

    before, after = (load_file(each.folder / "model" / "model.safetensors") for each in (first, second))
    unchanged = [name for name in before if torch.equal(before[name], after[name])]
    assert set(before) - set(unchanged) == {"head.weight", "head.bias"}  # frozen to the end: all else came along
    card = (second.folder / "README.md").read_text()
    assert "pretraining already saw labels called y" in card
    assert json.loads((second.folder / "plan.json").read_text())["estimates"]["weights"]["sha256"]


def test_weights_of_chemprop_train_and_a_loaded_run_answers_the_same(tmp_path, checkpoint):
    sets = {**TINY, "options.weights": str(checkpoint)}
    done = run.train("molecules/gnn-finetune", molecules(), target="y", set=sets, fast=True, out=tmp_path / "run")
    checkpoint.unlink()  # the run holds all it needs
    import zoo

    expected = done.predict(molecules())["prediction"].to_numpy()
    np.testing.assert_allclose(zoo.load(done.folder).predict(molecules())["prediction"].to_numpy(), expected, rtol=1e-5)
