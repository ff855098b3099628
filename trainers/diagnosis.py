"""What to say of a run that is lost, or that does not learn: the likely cause and the next command."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import torch

from trainers.errors import DivergedError
from trainers.guard import NUM_RECENT, Reading, outlier_limit

COLLAPSED = 0.95
"""Mean cosine between embeddings above which they have become one direction."""
NO_ENTROPY = 0.05
"""Share of the greatest entropy under which attention looks at single tokens only."""


@dataclass(frozen=True)
class Findings:
    """What can be measured of a model that was lost; None where it has no such part."""

    embedding_cosine: float | None = None
    attention_entropy: float | None = None


def findings(model: torch.nn.Module, embeddings: Iterable[torch.Tensor]) -> Findings:
    """Look at the model. `attention_entropy()`, where the model offers it, is a share of the greatest possible."""
    cosines = [mean_cosine(weight) for weight in embeddings if weight.ndim == 2 and len(weight) > 1]
    entropy = getattr(model, "attention_entropy", None)
    return Findings(max(cosines, default=None), float(entropy()) if callable(entropy) else None)


@torch.no_grad()
def mean_cosine(weight_VD: torch.Tensor) -> float:
    """The mean cosine between different rows, rows of zeros left out; V rows of D columns."""
    rows = weight_VD.detach().float()
    rows = torch.nn.functional.normalize(rows[rows.norm(dim=1) > 0], dim=1)
    num = len(rows)
    # The sum over all pairs is the squared length of the sum: no V x V matrix.
    return float((rows.sum(0).square().sum() - num) / max(1, num * (num - 1)))


def diverged(
    reading: Reading,
    losses: Sequence[float],
    *,
    max_loss: float,
    peak_lr: float,
    num_rollbacks: int = 0,
    seen: Findings | None = None,
    is_scaled: bool = False,
) -> DivergedError:
    """The error that ends the run, with what was seen, the likely cause and the next command.

    losses: the finite ones before, oldest first.   peak_lr: what `train.lr` says now.
    """
    is_norm_fine = reading.norm is None or math.isfinite(reading.norm)
    what, before = f"the mean loss is {reading.loss:.4g}", losses
    if not is_norm_fine:
        what += f", the norm of its gradient {reading.norm}"
    elif math.isfinite(reading.loss) and reading.loss > max_loss:
        what += f", above train.max_loss={max_loss:g}"
    elif reading.loss <= max_loss and len(losses) > NUM_RECENT:  # this one is fine: it is the last ones that stay high
        what, before = f"the mean loss stays high, {median(losses[-NUM_RECENT:]):.4g}", losses[:-NUM_RECENT]
    if num_rollbacks:
        what += f", after going back to an earlier snapshot {num_rollbacks} times"
    level = median(before[-NUM_RECENT:]) if before else None
    kind, advice = cause(reading, losses, level, peak_lr=peak_lr, seen=seen or Findings(), is_scaled=is_scaled)
    return DivergedError(f"Training diverged at step {reading.step}: {what} (lr {reading.lr:.3g}). {kind}: {advice}")


def cause(
    reading: Reading,
    losses: Sequence[float],
    level: float | None,
    *,
    peak_lr: float,
    seen: Findings,
    is_scaled: bool = False,
) -> tuple[str, str]:
    """The name of what went wrong, and what to do. level: the loss before that; None where nothing was.

    Source of the list: PaLM, arXiv 2204.02311, section 5.1 (spikes); Wortsman et al. 2023, arXiv 2309.14322 (attention
    logits, output logits).
    """
    is_finite = math.isfinite(reading.loss) and math.isfinite(reading.norm or 0.0)
    lower = f"--set train.lr={peak_lr / 5:.2g}"
    if is_scaled and math.isfinite(reading.loss) and not is_finite:
        return "fp16 overflow", "gradients do not fit into float16 at any scale: --set train.precision=bf16 (or fp32)"
    if level is None and is_finite:
        return "Loss scale", (
            "This is the first step, before any update: look at the scale of the target and of the inputs. "
            f"If so large a loss is right for this data: --set train.max_loss={2 * reading.loss:.3g}"
        )
    if level is None:
        return "NaN", (
            "This is the first step, before any update: look for values that are not finite in inputs and weights, "
            "or try --set train.precision=fp32"
        )
    before = f"It was {level:.4g} before. "
    if seen.embedding_cosine is not None and seen.embedding_cosine > COLLAPSED:
        rate = f"--set train.embedding_lr={peak_lr / 10:.2g}"
        return "Embedding collapse", f"{before}All embeddings point the same way. Slow them down: {rate}"
    if seen.attention_entropy is not None and seen.attention_entropy < NO_ENTROPY:
        return "Attention entropy", f"{before}Attention looks at single tokens. Use QK-norm or z-loss, or {lower}"
    if not is_finite:
        return "NaN", f"{before}Lower the learning rate: {lower}, or compute exactly: --set train.precision=fp32"
    if rises_slowly(losses):
        return "Slow divergence", (
            f"{before}The loss has been rising for long: look for bad rows in the data, and lower the learning rate: "
            f"{lower}"
        )
    return "Spike", (
        f"{before}Lower the learning rate: {lower}, or clip harder and save more often, so that there is a snapshot "
        "to go back to: --set train.clip=0.5 --set train.save_steps=100"
    )


def rises_slowly(losses: Sequence[float]) -> bool:
    """Whether the medians of four quarters rise one after the other, with no jump in the last one."""
    if len(losses) < 4 * NUM_RECENT:
        return False
    size = len(losses) // 4
    quarters = [median(losses[at * size : (at + 1) * size]) for at in range(4)]
    is_rising = all(a < b for a, b in pairwise(quarters))
    return is_rising and max(losses[-size:]) <= outlier_limit(losses[:-size], 0.1, median(losses[:NUM_RECENT]))


def plateau_advice(first: float | None, losses: Sequence[float], lr: float) -> str:
    """What to try where the loss never fell by two percent; an empty text where it did, or where few steps were taken."""
    if first is None or len(losses) < 3 * NUM_RECENT or first <= 0 or median(losses[-NUM_RECENT:]) < 0.98 * first:
        return ""
    return (
        f"Plateau: the training loss never fell (first {first:.4g}, last {median(losses[-NUM_RECENT:]):.4g}). Look at a "
        f"batch and its targets; then try --set train.lr={3 * lr:.2g}, a shorter warm-up (--set train.warmup=0.01), "
        "or a larger model."
    )
