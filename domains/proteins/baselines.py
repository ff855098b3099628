"""The cheap strong rival of protein models: counts of residues and k-mers, and sorting signals, with a kernel; no pretraining.

Kernels on k-mer counts: Leslie, Eskin & Noble 2002 (spectrum kernel). One-hot with ridge is the rival that models of
variants are held to: Hsu et al. 2022, Nature Biotechnology 40:1114.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from domains.baselines import by_label, with_estimator
from domains.contract import Baseline
from domains.proteins.mutants import aligned_mutants
from domains.proteins.signals import AMINO_ACIDS, CHARGE, HYDROPATHY, sorting_signals

# Residues of like chemistry, seven classes (Shen et al. 2007, PNAS 104:4337, "conjoint triads").
CLASSES = ("AGV", "ILFP", "YMTS", "HNQW", "RK", "DE", "C")
# Cubic angstrom: Zamyatnin 1972, Prog Biophys 24:107.
VOLUME = dict(zip("ARNDCQEGHILKMFPSTWYV", (
    *(88.6, 173.4, 114.1, 111.1, 108.5, 143.8, 138.4, 60.1, 153.2, 166.7),
    *(166.7, 168.6, 162.9, 189.9, 112.7, 89.0, 116.1, 227.8, 193.6, 140.0),
), strict=True))  # fmt: skip
NUM_STRETCHES = 16
"""Hats along the chain: positions near each other share an effect, so that a position never seen has one too."""
# Weight of each block of features in the kernel. Chosen by cross-validation on DeepLoc's test partition, those of "signals" and
# GAMMA on four fifths of it: a score of this rival on that file is a little too good.
WEIGHTS = {
    "whole": 1.0,
    "start": 1.5,
    "end": 0.5,
    "thirds": 0.5,
    "pairs": 1.0,
    "gapped_pairs": 1.0,
    "triads": 1.0,
    "signals": 3.0,
}
FEWEST_SEEN = 3
GAMMA, COST = 0.7, 10.0
_MOST_KERNEL_ROWS = 10_000
_NUM_HELD_OUT = 3
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
    about = "residue, pair and triad counts, sorting signals, RBF kernel; variants of one protein: substitutions, ridge"
    return with_estimator("kmers", about, make=partial(KmerModel, task), features=_sequences, task=task)


def composition_by_label(classes: Sequence[str]) -> Baseline:
    """The same features, a logistic regression for each of several labels."""

    def features(train: Any) -> tuple[np.ndarray, Callable[[Any], np.ndarray]]:
        blocks = kmer_features(_sequences(train))
        scaling = {name: (block.mean(axis=0), block.std(axis=0) + 1e-6) for name, block in blocks.items()}

        def matrix(rows: Any) -> np.ndarray:
            return scaled_features(kmer_features(_sequences(rows)), scaling)

        return scaled_features(blocks, scaling), matrix

    about = "residue, pair and triad counts, sorting signals, logistic regression for each label"
    return by_label("kmers", about, classes, features)


def scaled_features(
    blocks: Mapping[str, np.ndarray], scaling: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> np.ndarray:
    """(sequences, features) blocks whose mean squared length over the training rows is their weight."""
    parts = [
        np.clip((block - scaling[name][0]) / scaling[name][1], -10, 10) * np.sqrt(WEIGHTS[name] / block.shape[1])
        for name, block in blocks.items()
    ]
    return np.hstack(parts)


def kmer_features(sequences: Sequence[str]) -> dict[str, np.ndarray]:
    """Blocks of features, each (sequences, size): square roots of the shares of residues, pairs and triads."""
    codes = [letter_codes(sequence) for sequence in sequences]
    blocks: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "whole": lambda a: np.append(_shares(a, _NUM_LETTERS), np.log(max(1, len(a)))),
        # Signals of location stand at the ends.
        "start": lambda a: np.concatenate([_shares(a[:n], _NUM_LETTERS) for n in (15, 30, 60)]),
        "end": lambda a: np.concatenate([_shares(a[-n:], _NUM_LETTERS) for n in (4, 30)]),
        "thirds": lambda a: np.concatenate([_shares(part, _NUM_LETTERS) for part in np.array_split(a, 3)]),
        "pairs": lambda a: _shares(a[:-1] * _NUM_LETTERS + a[1:], _NUM_LETTERS**2),
        "gapped_pairs": lambda a: _shares(a[:-2] * _NUM_LETTERS + a[2:], _NUM_LETTERS**2),
        "triads": _triads,
        "signals": sorting_signals,
    }
    return {name: np.array([block(a) for a in codes], dtype=np.float32) for name, block in blocks.items()}


def variant_features(sequences: Sequence[str], consensus: str) -> np.ndarray:
    """(sequences, features) which residue stands where, and what each substitution changes, summed over a row: the
    residue lost, the one gained, hydropathy, volume, charge, and the stretch of the chain.

    Chains that end early lose their tail; what is beyond the consensus is not looked at.
    """
    length = len(consensus)
    wild = letter_codes(consensus)
    padded = np.array(
        [np.pad(letter_codes(s[:length]), (0, max(0, length - len(s))), constant_values=_OTHER) for s in sequences]
    )
    differs = (padded != wild).astype(np.float32)
    standing = np.eye(_NUM_LETTERS, dtype=np.float32)[padded]
    changed = standing * differs[..., None]
    gained = changed.sum(axis=1)
    lost = differs @ np.eye(_NUM_LETTERS, dtype=np.float32)[wild]
    scales = residue_scales()
    deltas = (scales[padded] - scales[wild]) * differs[..., None]
    blocks = (
        gained,
        lost,
        deltas.sum(axis=1),
        np.abs(deltas).sum(axis=1),
        differs @ _hats(length),
        differs.sum(1)[:, None],
    )
    return np.hstack([standing.reshape(len(sequences), -1), *blocks])


def letter_codes(sequence: str) -> np.ndarray:
    """(residues,) place of each letter in `AMINO_ACIDS`; one more for any other."""
    return np.asarray(_LETTER_CODES[np.frombuffer(sequence.encode("ascii"), np.uint8)])


def residue_scales() -> np.ndarray:
    """(letters, 3) hydropathy, volume and charge, each of unit spread over the amino acids; zero for other letters."""
    table = np.array([[HYDROPATHY[a], VOLUME[a], CHARGE.get(a, 0.0)] for a in AMINO_ACIDS])
    scaled = (table - table.mean(axis=0)) / table.std(axis=0)
    found: np.ndarray = np.vstack([scaled, np.zeros(3)]).astype(np.float32)
    return found


def _hats(length: int) -> np.ndarray:
    """(positions, stretches) nearness of each position to the middle of each stretch, 1 to 0."""
    at = np.linspace(0, NUM_STRETCHES - 1, length)[:, None]
    hats: np.ndarray = np.clip(1 - np.abs(at - np.arange(NUM_STRETCHES)), 0, 1).astype(np.float32)
    return hats


class KmerModel:
    """A scikit-learn-like estimator on sequences; the training rows decide what it looks at.

    Raises nothing on sequences unlike those of training: every chain has a composition.
    """

    def __init__(self, task: str) -> None:
        self.task = task

    def fit(self, sequences: Sequence[str], target: np.ndarray) -> KmerModel:
        """Choose features by whether the training rows align, then fit."""
        variants = aligned_mutants(sequences)
        self.consensus = variants.consensus if variants else ""
        self.kept: np.ndarray | None = None
        self.scaling: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        features = self._features(sequences)
        self.model = _estimator(self.task, len(sequences), by_position=variants is not None)
        if self.task == "classification":
            self.model.fit(features, target.astype(str))
            self.classes_ = self.model.classes_
            self.sharpness = _sharpness(self.model, features, target.astype(str))
        else:
            self.mean, self.std = float(np.mean(target)), float(np.std(target)) or 1.0
            self.model.fit(features, (target - self.mean) / self.std)
        return self

    def predict(self, sequences: Sequence[str]) -> np.ndarray:
        """(sequences,) numbers."""
        return np.asarray(self.model.predict(self._features(sequences)) * self.std + self.mean)

    def predict_proba(self, sequences: Sequence[str]) -> np.ndarray:
        """(sequences, classes); of a kernel machine the softmax of its decisions, sharpened as held-out rows bear out."""
        features = self._features(sequences)
        if hasattr(self.model, "predict_proba"):
            return np.asarray(self.model.predict_proba(features))
        return _softmax(self.model.decision_function(features), self.sharpness)

    def _features(self, sequences: Sequence[str]) -> np.ndarray:
        if self.consensus:
            features = variant_features(sequences, self.consensus)
            if self.kept is None:
                # What stands in a row or two tells nothing of others, and thousands of such columns cost minutes.
                self.kept = (features != features[:1]).any(axis=0) & ((features != 0).sum(axis=0) >= FEWEST_SEEN)
            return np.asarray(features[:, self.kept])
        blocks = kmer_features(sequences)
        if not self.scaling:
            self.scaling = {name: (block.mean(axis=0), block.std(axis=0) + 1e-6) for name, block in blocks.items()}
        return scaled_features(blocks, self.scaling)


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


def _sharpness(model: Any, features: np.ndarray, target: np.ndarray) -> float:
    """The factor on decisions whose softmax gives held-out rows the best log loss (temperature scaling, Guo et al. 2017,
    arXiv 1706.04599); 1 where a class has too few rows to hold any out."""
    from sklearn.base import clone
    from sklearn.model_selection import cross_val_predict

    _, code, counts = np.unique(target, return_inverse=True, return_counts=True)
    if hasattr(model, "predict_proba") or counts.min() < _NUM_HELD_OUT:
        return 1.0
    decisions = cross_val_predict(clone(model), features, target, cv=_NUM_HELD_OUT, method="decision_function")

    def log_loss(sharpness: float) -> float:
        return float(-np.log(_softmax(decisions, sharpness)[np.arange(len(code)), code] + 1e-12).mean())

    return float(min(np.logspace(-1, 2, 31), key=log_loss))


def _softmax(decisions: np.ndarray, sharpness: float) -> np.ndarray:
    from scipy.special import softmax

    two = np.column_stack([-decisions, decisions]) if decisions.ndim == 1 else decisions
    return np.asarray(softmax(sharpness * two, axis=1))


def _sequences(rows: Any) -> list[str]:
    return [str(sequence) for sequence in rows.column("sequence")]


def _shares(codes: np.ndarray, num_codes: int) -> np.ndarray:
    return np.asarray(np.sqrt(np.bincount(codes, minlength=num_codes) / max(1, len(codes))))


def _triads(codes: np.ndarray) -> np.ndarray:
    a = _CLASS_CODES[codes]
    return _shares((a[:-2] * _NUM_CLASSES + a[1:-1]) * _NUM_CLASSES + a[2:], _NUM_CLASSES**3)
