"""Number formats and compiling as policies: what settings and machine make of `auto`, and the model as it is called."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from trainers.contract import Machine, Task
from trainers.settings import Gradient


def autocast_dtype(precision: str, machine: Machine) -> torch.dtype | None:
    """The format of matrix products under autocast, None for plain float32."""
    if precision != "auto":
        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    if machine.bf16:
        return torch.bfloat16
    if torch.device(machine.device).type != "cuda" or not torch.cuda.is_available():
        return None
    # GPUs before Ampere multiply in float16 only.
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def products_in(precision: str, machine: Machine) -> torch.dtype | None:
    """The format in which an optimizer may multiply matrices: bfloat16 where the run has it, else that of the matrices.

    Not float16: what an optimizer multiplies is not scaled.
    """
    return torch.bfloat16 if autocast_dtype(precision, machine) is torch.bfloat16 else None


def loss_scaler(precision: str, machine: Machine) -> torch.amp.GradScaler:
    """What keeps small gradients from vanishing in float16; it does nothing in other formats.

    Source: Micikevicius et al. 2018, arXiv 1710.03740, section 3.2.
    """
    is_fp16 = autocast_dtype(precision, machine) is torch.float16
    return torch.amp.GradScaler(torch.device(machine.device).type, enabled=is_fp16)


def autocast(precision: str, machine: Machine) -> contextlib.AbstractContextManager[Any]:
    """A context in which the model computes in the planned format; weights and sums stay float32."""
    dtype = autocast_dtype(precision, machine)
    if dtype is None:
        return contextlib.nullcontext()
    return torch.autocast(torch.device(machine.device).type, dtype=dtype)


@contextlib.contextmanager
def matmul_precision(precision: str, machine: Machine) -> Iterator[None]:
    """Let float32 products on CUDA use TF32, unless float32 was asked for by name; afterwards all is as before."""
    if torch.device(machine.device).type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def should_compile(setting: str, machine: Machine) -> bool:
    """Whether to compile: `auto` compiles on CUDA only; on CPU 30-80 seconds of compiling are seldom earned back."""
    return setting == "on" or (setting == "auto" and torch.device(machine.device).type == "cuda")


class Network:
    """The model as the loop calls it: under autocast, compiled where the policy says so.

    The network is compiled, the loss stays outside: losses break graphs. Evaluation uses the plain model.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        settings: Gradient,
        machine: Machine,
        say: Callable[..., None],
        backend: str | Callable[..., Any] = "inductor",
    ) -> None:
        self.plain, self.called = model, model
        self.precision, self.machine, self.say = settings.precision, machine, say
        self.is_compiled = should_compile(settings.compile, machine)
        self.scaler = loss_scaler(settings.precision, machine)
        self.graphs_before = 0
        if self.is_compiled:
            self.called = torch.compile(model, dynamic=True, backend=backend)  # type: ignore[assignment]
            self.graphs_before = graphs_so_far()

    def losses(self, task: Task, inputs: Any) -> Mapping[str, torch.Tensor]:
        """Total of each term of the loss over a micro-batch."""
        with autocast(self.precision, self.machine):
            return task.loss(self.called, inputs)

    def falls_back(self, error: Exception) -> bool:
        """Give up compiling after `error`, saying so; False where nothing was compiled and the error is a real one."""
        if not self.is_compiled:
            return False
        self.is_compiled, self.called = False, self.plain
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        self.say(kind="warning", text=f"The model could not be compiled, training goes on without: {reason}")
        return True

    @property
    def num_graphs(self) -> int:
        """Graphs compiled since this network was made; 0 without compiling."""
        return graphs_so_far() - self.graphs_before if self.is_compiled else 0


def graphs_so_far() -> int:
    """Graphs that dynamo has compiled in this process."""
    # Here and not above: the import costs a second, and only compiling needs it.
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def placed(inputs: Any, device: torch.device) -> Any:
    """The same nested inputs with every tensor on `device`; CUDA copies run beside computing, from pinned memory."""
    if isinstance(inputs, torch.Tensor):
        if device.type == "cuda":
            return inputs.pin_memory().to(device, non_blocking=True)
        return inputs if device.type == "cpu" else inputs.to(device)
    if device.type == "cpu":
        return inputs
    if isinstance(inputs, Mapping) and type(inputs) is dict:
        return {key: placed(value, device) for key, value in inputs.items()}
    if type(inputs) in (list, tuple):
        return type(inputs)(placed(value, device) for value in inputs)
    if isinstance(inputs, tuple):
        return type(inputs)(*(placed(value, device) for value in inputs))
    return inputs.to(device) if hasattr(inputs, "to") else inputs
