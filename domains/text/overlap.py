"""How much of what a model writes is in the text that was wanted: BLEU and chrF over a whole set.

Papineni et al. 2002, "BLEU", section 2.3, tokens as sacrebleu's 13a cuts them (Post 2018, arXiv 1804.08771); Popovic 2015,
"chrF", with the defaults of sacrebleu: runs of one to six characters, white space aside, recall twice as heavy.
Both add up counts over rows before they divide, so each row keeps its counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from domains.contract import Metric
from trainers.contract import Predictions

BLEU_ORDER, CHRF_ORDER, CHRF_BETA = 4, 6, 2


def overlap_metrics() -> tuple[Metric, ...]:
    """BLEU and chrF, 0 to 100; BLEU decides."""
    return (
        Metric("bleu", "", True, _bleu_stats, _bleu),
        Metric("chrf", "", True, _chrf_stats, _chrf),
    )


def _bleu_stats(truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    """A row: runs of words found, of each length; runs written, of each length; words written; words wanted."""
    from sacrebleu.metrics.bleu import BLEU

    bleu = BLEU(effective_order=True, max_ngram_order=BLEU_ORDER)
    found = [bleu.sentence_score(written, [wanted]) for written, wanted in _pairs(truth, predictions)]
    return np.array([[*row.counts, *row.totals, row.sys_len, row.ref_len] for row in found], dtype=np.float64)


def _pairs(truth: np.ndarray, predictions: Predictions) -> Iterator[tuple[str, str]]:
    """What was written and what was wanted, of each row."""
    return ((str(written), str(wanted)) for written, wanted in zip(predictions.values, truth, strict=True))


def _bleu(stats: np.ndarray) -> float:
    from sacrebleu.metrics.bleu import BLEU

    *runs, written, wanted = (int(value) for value in stats.sum(axis=0))
    return float(BLEU.compute_bleu(runs[:BLEU_ORDER], runs[BLEU_ORDER:], sys_len=written, ref_len=wanted).score)


def _chrf_stats(truth: np.ndarray, predictions: Predictions) -> np.ndarray:
    return np.array([_chrf_counts(written, wanted) for written, wanted in _pairs(truth, predictions)])


def _chrf_counts(written: str, wanted: str) -> np.ndarray:
    """(3, orders) flat: runs of characters written (of lengths that the wanted text has too), wanted, and in both."""
    found = np.zeros((3, CHRF_ORDER))
    ours, theirs = ("".join(text.split()) for text in (written, wanted))
    for order in range(1, CHRF_ORDER + 1):
        these, those = _runs(ours, order), _runs(theirs, order)
        found[:, order - 1] = these.total() if those else 0, those.total(), (these & those).total()
    return found.ravel()


def _runs(text: str, order: int) -> Counter[str]:
    return Counter(text[start : start + order] for start in range(len(text) - order + 1))


def _chrf(stats: np.ndarray) -> float:
    """F of mean precision and mean recall over the lengths of runs that both texts have at all."""
    written, wanted, both = stats.sum(axis=0).reshape(3, CHRF_ORDER)
    used = (written > 0) & (wanted > 0)
    if not used.any():
        return 0.0
    precision, recall = (both[used] / written[used]).mean(), (both[used] / wanted[used]).mean()
    weight = CHRF_BETA**2
    bottom = weight * precision + recall
    return float(100 * (1 + weight) * precision * recall / bottom) if bottom else 0.0
