"""Checkpoints of chemprop read by us answer what chemprop itself answers: molecules/gnn-finetune starts from the same network.

    CHEMPROP/bin/python benchmarks/chemprop_equal.py theirs esol.csv answers.npz MODEL.pt ...     # chemprop 2.3.1
    python benchmarks/chemprop_equal.py ours esol.csv answers.npz MODEL.pt ...

Answers are probabilities of labels, or numbers in units of the deviation that the checkpoint names, on the first 300
molecules and a dozen odd ones. One line a checkpoint: the largest difference. The networks of admet-ai 2.0.1 are in
admet_ai/resources/models.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rdkit import Chem

ODD = ("[Na+].[Cl-]", "[He]", "C[Si](C)(C)C", "[2H]C([2H])O", "OB(O)c1ccccc1", "F[P-](F)(F)(F)(F)F", "[Fe+2]")
ODDER = ("C[C@H](N)C(=O)O", "C/C=C\\Cl", "N#[N+][O-]", "CC[Se]C", "[U]")


def main() -> None:
    """One of the two sides."""
    side, data, answers, *models = sys.argv[1:]
    texts = [*pd.read_csv(data)["smiles"][:300], *ODD, *ODDER]
    smiles = [Chem.MolToSmiles(Chem.MolFromSmiles(text)) for text in texts]
    if side == "theirs":
        np.savez(answers, **{str(at): theirs(Path(model), smiles) for at, model in enumerate(models)})
        return
    expected = np.load(answers)
    for at, model in enumerate(models):
        difference = np.abs(ours(Path(model), smiles) - expected[str(at)]).max()
        print(f"{Path(model).parent.name}/{Path(model).name}: {difference:.1e} over {len(smiles)} molecules")


def theirs(model: Path, smiles: list[str]) -> np.ndarray:
    """(molecules, columns) by chemprop."""
    from chemprop.data import BatchMolGraph
    from chemprop.featurizers import SimpleMoleculeMolGraphFeaturizer
    from chemprop.models import MPNN

    network, graph = MPNN.load_from_file(model, map_location="cpu").eval(), SimpleMoleculeMolGraphFeaturizer()
    with torch.no_grad():
        found = network(BatchMolGraph([graph(Chem.MolFromSmiles(text)) for text in smiles])).numpy()
    unscale = network.predictor.output_transform
    is_scaled = hasattr(unscale, "scale")
    return (found - unscale.mean.numpy()) / unscale.scale.numpy() if is_scaled else found


def ours(model: Path, smiles: list[str]) -> np.ndarray:
    """The same by our network with the same weights."""
    from domains.molecules import chemprop, chemprop_weights
    from domains.molecules.gnn_scratch import GraphTask
    from domains.molecules.graphs import Shelf
    from domains.molecules.networks import GraphNetwork

    found = chemprop_weights.read(model)
    network = GraphNetwork(found.shape, len(found.columns), 0).eval()
    network.load_state_dict({**network.state_dict(), **found.weights})
    unused: Any = None
    task = GraphTask(network, unused, None, Shelf(False, chemprop.features(found.shape.features)))
    with torch.no_grad():
        answers = network(*task._graph(task.shelf.places(smiles)))
    return (answers.sigmoid() if "classification" in str(model) else answers).numpy()


if __name__ == "__main__":
    main()
