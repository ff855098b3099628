"""Muon for hidden matrices, AdamW for everything else, as one optimizer.

Muon replaces the momentum of a weight matrix by the nearest (semi-)orthogonal matrix, so that every direction of the
matrix learns at the same rate. What is here, in the order of a step: Nesterov momentum that warms up; orthogonalisation
by Polar Express; NorMuon's second moment per neuron; weight decay only where it agrees with the update. Matrices of the
same shape are stacked and go through together.

Shapes: N matrices of a stack, R rows (outputs), C columns (inputs).
Sources: Jordan et al. 2024 (Muon), https://kellerjordan.github.io/posts/muon; Amsel et al. 2025, arXiv 2505.16932
(Polar Express); Li et al. 2025, arXiv 2510.05491 (NorMuon); Chen et al. 2025, arXiv 2510.12402 (cautious decay).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from trainers.distributed import Splitting, own_parts
from trainers.schedule import MOMENTUM_START

Coefficients = Sequence[tuple[float, float, float]]

_SAFETY = 1.01
"""Singular values a little above 1 (rounding in bf16) must not grow: Amsel et al. 2025, section 3.4."""
_PAPER = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)
POLAR_EXPRESS: Coefficients = tuple((a / _SAFETY, b / _SAFETY**3, c / _SAFETY**5) for a, b, c in _PAPER)
"""Five steps of the optimal odd quintics for singular values from 1e-3 to 1: Amsel et al. 2025, algorithm 1."""
NEWTON_SCHULZ: Coefficients = ((3.4445, -4.7750, 2.0315),) * 5
"""The constant quintic of the first Muon, as torch.optim.Muon has it; for comparison."""

MOMENTUM_WARMUP_STEPS = 300
# Typed loosely: torch's stubs do not know a 0-d tensor as the weight.
_lerp: Any = torch._foreach_lerp
_lerp_in_place: Any = torch._foreach_lerp_
_SMALLEST_NORM = 1e-7
_SMALLEST_MOMENT = 1e-10


def orthogonalized(
    stack_NRC: Tensor, coefficients: Coefficients = POLAR_EXPRESS, dtype: torch.dtype | None = None
) -> Tensor:
    """The nearest semi-orthogonal matrix of each matrix in the stack, approximately: U V^T of its U S V^T.

    stack_NRC: (N, R, C), any float type.   dtype: to compute in; None: bfloat16 on CUDA, else the stack's own.
    """
    x = stack_NRC.to(dtype or (torch.bfloat16 if stack_NRC.is_cuda else stack_NRC.dtype))
    is_tall = x.size(-2) > x.size(-1)
    # The products below are then of the short side; turned in memory too, as CPU kernels would turn it every time.
    x = x.mT.contiguous() if is_tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + _SMALLEST_NORM)
    for a, b, c in coefficients:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).to(stack_NRC.dtype)


def momentum_at(step: int, peak: float) -> float:
    """Momentum of step number `step` (from 0): rises linearly to `peak` over the first 300 steps."""
    start = min(MOMENTUM_START, peak)
    return start + (peak - start) * min(1.0, step / MOMENTUM_WARMUP_STEPS)


def shape_factor(rows: int, columns: int) -> float:
    """What the learning rate of a matrix is multiplied by, so that its outputs change by the same amount whatever its
    shape: max(1, R / C) ** 0.5."""
    return float(max(1.0, rows / columns) ** 0.5)


def muon_step(
    weights: list[Tensor],
    grads: list[Tensor],
    moments: list[Tensor],
    neuron_moments: list[Tensor],
    *,
    lr: Tensor,
    weight_decay: Tensor | None,
    momentum: Tensor,
    beta2: float | None,
    cautious: bool,
    coefficients: Coefficients,
    skip: Tensor | None = None,
    dtype: torch.dtype | None = None,
    splitting: Splitting | None = None,
) -> None:
    """One step for N matrices of the same shape, in place. Numbers that change between steps are 0-d tensors, so that
    a compiled step is not compiled again when the learning rate moves.

    beta2: of the second moment per neuron; None leaves it out.   cautious: decay only where it agrees with the update.
    skip: not zero where nothing is to change.   dtype: see `orthogonalized`.
    splitting: how the processes share each matrix, where weights, grads and moments are parts. All compute the whole
    update, from one exchange a shape, and take their part of it: that costs time, but no memory that stays.
    """
    pull = 1 - momentum
    if skip is not None:
        # Nothing moves: no gradient, no share of it in the moments, no rate.
        grads = [torch.where(skip > 0, 0.0, grad) for grad in grads]
        is_kept = (skip == 0).float()
        pull, lr = pull * is_kept, lr * is_kept
    _lerp_in_place(moments, grads, pull)
    ahead = torch.stack(_lerp(grads, moments, momentum))
    update = orthogonalized(ahead if splitting is None else splitting.joined(ahead), coefficients, dtype)
    rows, columns = update.shape[-2:]
    size = lr * shape_factor(rows, columns)
    if beta2 is not None:
        size = size * neuron_factors(update, neuron_moments, 1 - beta2 if skip is None else (1 - beta2) * is_kept)
    change = update * size
    if splitting is not None:
        change = splitting.own(change)
    if weight_decay is not None:
        # In one piece: for small matrices the number of operations costs more than the numbers in them.
        stack = torch.stack(weights)
        decay = stack * (lr * weight_decay)
        change = change + (decay * (change * stack > 0) if cautious else decay)
    torch._foreach_sub_(weights, change.unbind())


def neuron_factors(update_NRC: Tensor, moments: list[Tensor], pull: float | Tensor) -> Tensor:
    """What every neuron (row; column of a wide matrix) is multiplied by for steps of like size that leave each whole
    matrix the size it had: (N, R, 1) or (N, 1, C).

    moments: N running means of squares, (R, 1) or (1, C), changed in place.   pull: share of the new in them, 1 - beta2.
    """
    dim = -1 if update_NRC.size(-2) >= update_NRC.size(-1) else -2
    # One pass over the matrices; all that follows is of the size of the moments.
    totals = torch.linalg.vector_norm(update_NRC, dim=dim, keepdim=True).square()
    _lerp_in_place(moments, list((totals / update_NRC.size(dim)).unbind()), pull)
    factors = torch.stack(moments).clamp_min(_SMALLEST_MOMENT).rsqrt()
    before = totals.sum(dim=(-2, -1), keepdim=True).sqrt()
    after = (totals * factors.square()).sum(dim=(-2, -1), keepdim=True).sqrt()
    kept: Tensor = factors * (before / after.clamp_min(_SMALLEST_MOMENT))
    return kept


class MuonAdamW(torch.optim.Optimizer):
    """Groups with `kind` "muon" (2-D parameters) or "adamw", each with its own lr and weight decay.

    Source of the split by role: Jordan et al. 2024. torch.optim.Muon has no second moment, no cautious decay and one
    matrix at a time; tests hold ours to it where the two must agree.

    A step is left out on the device where `found_inf`, a 0-d tensor, is not zero, as torch's fused optimizers do it.
    """

    _step_supports_amp_scaling = True
    found_inf: Tensor | None = None

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        betas: tuple[float, float],
        eps: float,
        momentum: float = 0.95,
        beta2: float | None = 0.95,
        cautious: bool = True,
        coefficients: Coefficients = POLAR_EXPRESS,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(groups, {"lr": 1e-3, "weight_decay": 0.0, "kind": "adamw"})
        for group in self.param_groups:
            if group["kind"] == "muon" and any(parameter.ndim != 2 for parameter in group["params"]):
                raise ValueError("Muon takes matrices only; give other parameters the kind adamw.")
        self.betas, self.eps = betas, eps
        self.momentum, self.beta2, self.cautious, self.coefficients = momentum, beta2, cautious, coefficients
        self.dtype = dtype
        self._compiled: Any = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                (self._step_muon if group["kind"] == "muon" else self._step_adamw)(group, parameters)

    def _step_adamw(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        states = [self._adamw_state(parameter) for parameter in parameters]
        adamw(
            own_parts(parameters),
            own_parts(parameter.grad for parameter in parameters),
            own_parts(state["exp_avg"] for state in states),
            own_parts(state["exp_avg_sq"] for state in states),
            [],
            [state["step"] for state in states],
            fused=parameters[0].device.type in ("cpu", "cuda"),
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=self.eps,
            maximize=False,
            found_inf=self.found_inf,
        )

    def _adamw_state(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return dict(state)

    def _step_muon(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        by_shape: dict[tuple[int, ...], list[Tensor]] = {}
        for parameter in parameters:
            by_shape.setdefault(tuple(parameter.shape), []).append(parameter)
        # Filled on the device: a number copied from the host would have to be waited for.
        number = partial(torch.full, (), dtype=torch.float32, device=parameters[0].device)
        for same in by_shape.values():
            states = [self._muon_state(parameter) for parameter in same]
            # Given by a schedule of progress, or else warmed up by steps.
            momentum = group.get("momentum") or momentum_at(int(states[0]["step"]), self.momentum)
            self._muon_function(same[0])(
                own_parts(same),
                own_parts(parameter.grad for parameter in same),
                own_parts(state["moment"] for state in states),
                [state["neuron_moment"] for state in states],
                lr=number(group["lr"]),
                weight_decay=number(group["weight_decay"]) if group["weight_decay"] else None,
                momentum=number(momentum),
                beta2=self.beta2,
                cautious=self.cautious,
                coefficients=self.coefficients,
                skip=self.found_inf,
                dtype=self.dtype,
                splitting=Splitting.of(same[0]),
            )
            for state in states:
                state["step"] += 1

    def _muon_state(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            rows, columns = parameter.shape
            state["step"] = torch.zeros((), dtype=torch.int64)  # on the host: read every step
            state["moment"] = torch.zeros_like(parameter)
            shape = (rows, 1) if rows >= columns else (1, columns)
            state["neuron_moment"] = torch.zeros(shape, dtype=torch.float32, device=parameter.device)
        return dict(state)

    def _muon_function(self, parameter: Tensor) -> Any:
        """The step itself; compiled on CUDA, where its many small kernels cost more than its products."""
        if not parameter.is_cuda or Splitting.of(parameter) is not None:
            return muon_step
        if self._compiled is None:
            self._compiled = torch.compile(muon_step, dynamic=False)
        return self._compiled
