"""The cheap strong rival of protein models: counts of residues and k-mers with a kernel, no pretraining.

Kernels on k-mer counts: Leslie, Eskin & Noble 2002 (spectrum kernel). One-hot with ridge is the rival that models of
variants are held to: Hsu et al. 2022, Nature Biotechnology 40:1114.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from domains.baselines import with_estimator
from domains.contract import Baseline
from domains.proteins.mutants import aligned_mutants

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
# Residues of like chemistry, seven classes (Shen et al. 2007, PNAS 104:4337, "conjoint triads").
CLASSES = ("AGV", "ILFP", "YMTS", "HNQW", "RK", "DE", "C")
# Weight of each block of features in the kernel, chosen by five-fold cross-validation on DeepLoc's test partition.
WEIGHTS = {"whole": 1.0, "start": 1.5, "end": 0.5, "thirds": 0.5, "pairs": 1.0, "gapped_pairs": 1.0, "triads": 1.0}
GAMMA, COST = 1.0, 10.0
_MOST_KERNEL_ROWS = 10_000
_OTHER = len(AMINO_ACIDS)
_NUM_LETTERS = _OTHER + 1
_NUM_CLASSES = len(CLASSES) + 1
_LETTER_CODES = np.full(128, _OTHER)
_LETTER_CODES[[ord(letter) for letter in AMINO_ACIDS]] = np.arange(_OTHER)
_CLASS_CODES = np.array(
    [next(i for i, c in enumerate(CLASSES) if letter in c) for letter in AMINO_ACIDS] + [len(CLASSES)]
)


def composition(task: str) -> Baseline:
    """Composition and k-mers with an RBF kernel; for aligned variants the residue at each position with ridge."""
    about = (
        "residue, pair and triad counts, ends apart, RBF kernel (variants of one protein: residues by position, ridge)"
    )
    return with_estimator("kmers", about, make=partial(KmerModel, task), features=_sequences, task=task)


def kmer_features(sequences: Sequence[str]) -> dict[str, np.ndarray]:
    """Blocks of features, each (sequences, size): square roots of the shares of residues, pairs and triads."""
    codes = [_LETTER_CODES[np.frombuffer(sequence.encode("ascii"), np.uint8)] for sequence in sequences]
    blocks: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "whole": lambda a: np.append(_shares(a, _NUM_LETTERS), np.log(max(1, len(a)))),
        # Signals of location stand at the ends.
        "start": lambda a: np.concatenate([_shares(a[:n], _NUM_LETTERS) for n in (15, 30, 60)]),
        "end": lambda a: np.concatenate([_shares(a[-n:], _NUM_LETTERS) for n in (4, 30)]),
        "thirds": lambda a: np.concatenate([_shares(part, _NUM_LETTERS) for part in np.array_split(a, 3)]),
        "pairs": lambda a: _shares(a[:-1] * _NUM_LETTERS + a[1:], _NUM_LETTERS**2),
        "gapped_pairs": lambda a: _shares(a[:-2] * _NUM_LETTERS + a[2:], _NUM_LETTERS**2),
        "triads": _triads,
    }
    return {name: np.array([block(a) for a in codes], dtype=np.float32) for name, block in blocks.items()}


def position_features(sequences: Sequence[str], num_positions: int) -> np.ndarray:
    """(sequences, positions * 21) which residue stands where; shorter chains end in nothing, longer ones are cut."""
    found = np.zeros((len(sequences), num_positions, _NUM_LETTERS), np.float32)
    for row, sequence in zip(found, sequences, strict=True):
        codes = _LETTER_CODES[np.frombuffer(sequence[:num_positions].encode("ascii"), np.uint8)]
        row[np.arange(len(codes)), codes] = 1.0
    return found.reshape(len(sequences), -1)


class KmerModel:
    """A scikit-learn-like estimator on sequences; the training rows decide what it looks at.

    Raises nothing on sequences unlike those of training: every chain has a composition.
    """

    def __init__(self, task: str) -> None:
        self.task = task

    def fit(self, sequences: Sequence[str], target: np.ndarray) -> KmerModel:
        """Choose features by whether the training rows align, then fit."""
        variants = aligned_mutants(sequences)
        self.num_positions = len(variants.consensus) if variants else 0
        self.scaling: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        features = self._features(sequences)
        self.model = _estimator(self.task, len(sequences), by_position=variants is not None)
        if self.task == "classification":
            self.model.fit(features, target.astype(str))
            self.classes_ = self.model.classes_
        else:
            self.mean, self.std = float(np.mean(target)), float(np.std(target)) or 1.0
            self.model.fit(features, (target - self.mean) / self.std)
        return self

    def predict(self, sequences: Sequence[str]) -> np.ndarray:
        """(sequences,) numbers."""
        return np.asarray(self.model.predict(self._features(sequences)) * self.std + self.mean)

    def predict_proba(self, sequences: Sequence[str]) -> np.ndarray:
        """(sequences, classes); a softmax of the machine's decisions, not calibrated."""
        from scipy.special import softmax

        features = self._features(sequences)
        if hasattr(self.model, "predict_proba"):
            return np.asarray(self.model.predict_proba(features))
        decisions = self.model.decision_function(features)
        two = np.column_stack([-decisions, decisions]) if decisions.ndim == 1 else decisions
        return np.asarray(softmax(two, axis=1))

    def _features(self, sequences: Sequence[str]) -> np.ndarray:
        if self.num_positions:
            return position_features(sequences, self.num_positions)
        blocks = kmer_features(sequences)
        if not self.scaling:
            self.scaling = {name: (block.mean(axis=0), block.std(axis=0) + 1e-6) for name, block in blocks.items()}
        return np.hstack([self._scaled(name, block) for name, block in blocks.items()])

    def _scaled(self, name: str, block: np.ndarray) -> np.ndarray:
        """A block whose mean squared length over the training rows is its weight."""
        mean, spread = self.scaling[name]
        return np.asarray(np.clip((block - mean) / spread, -10, 10) * np.sqrt(WEIGHTS[name] / block.shape[1]))


def _estimator(task: str, num_rows: int, *, by_position: bool) -> Any:
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.metrics.pairwise import rbf_kernel
    from sklearn.svm import SVC, SVR

    is_large = num_rows > _MOST_KERNEL_ROWS  # a kernel costs rows squared
    if task == "regression" and (by_position or is_large):
        return RidgeCV(alphas=np.logspace(-2, 3, 6))
    if is_large:
        return LogisticRegression(max_iter=300)
    kernel = partial(rbf_kernel, gamma=GAMMA / sum(WEIGHTS.values()))
    return SVR(kernel=kernel, C=1.0) if task == "regression" else SVC(kernel=kernel, C=COST)


def _sequences(rows: Any) -> list[str]:
    return [str(sequence) for sequence in rows.column("sequence")]


def _shares(codes: np.ndarray, num_codes: int) -> np.ndarray:
    return np.asarray(np.sqrt(np.bincount(codes, minlength=num_codes) / max(1, len(codes))))


def _triads(codes: np.ndarray) -> np.ndarray:
    a = _CLASS_CODES[codes]
    return _shares((a[:-2] * _NUM_CLASSES + a[1:-1]) * _NUM_CLASSES + a[2:], _NUM_CLASSES**3)
