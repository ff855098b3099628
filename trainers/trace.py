"""Operations on tensors without numbers: the memory they take and give back, and how much there is to do in each.

Nothing is computed but whole numbers: shapes may hang on them (masks, lengths, positions).
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from trainers.meter import flops_of

SHAPED_BY_VALUES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class TooSlowError(Exception):
    """The trace has taken longer than it was allowed to."""


@dataclass(frozen=True)
class Operation:
    """One call of an ATen operation: FLOPs of products, bytes read and written, and whether it computes in 16 bits."""

    flops: int
    bytes_moved: int
    is_16_bit: bool


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the storages that operations on fake tensors make inside it, until nothing holds them any more.

    events: (number of a storage, bytes) where one is made, (number, 0) where it is given back, in order.
    live, peak: bytes of storages made inside. What was there before is made known with `know`, and counts nothing.
    """

    supports_higher_order_operators = True

    def __init__(self, shapes: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes = shapes
        self.events: list[tuple[int, int]] = []
        self.operations: list[Operation] = []
        self.live = self.peak = 0
        self._refs: dict[int, Any] = {}
        self._values: Any = WeakIdKeyDictionary()

    def faked(self, inputs: Any) -> Any:
        """`inputs` with fake tensors for the real ones; whole numbers keep their values beside them."""

        def fake(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            found = self.shapes.from_tensor(value)
            if _is_whole(value):
                with unset_fake_temporarily():  # a copy with numbers, also of what operations inside have found
                    self._values[found] = value.detach().clone()
            return found

        found = tree_map(fake, inputs)
        self.know(found)
        return found

    def know(self, tensors: Any) -> None:
        """Leave the storages of these tensors out, now and when operations return them."""
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._refs[storage._cdata] = storage  # held, so that no other takes its address

    def take(self, num_bytes: int) -> int:
        """Note memory that no operation shows; returns its number for `give_back`."""
        number = len(self.events)
        self.events.append((number, num_bytes))
        self.live += num_bytes
        self.peak = max(self.peak, self.live)
        return number

    def give_back(self, number: int) -> None:
        """Note that memory with this number is free again."""
        self.live -= self.events[number][1]
        self.events.append((number, 0))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.index.Tensor:
            args = (args[0], [each for index in args[1] for each in self._positions(index)])
        value = self._value(func, args, kwargs)
        if value is not None and any(tag in SHAPED_BY_VALUES for tag in func.tags):
            return self._known(value)
        out = func(*args, **kwargs)
        results = _tensors(out)
        if value is not None:
            self._values.update(zip(results, _tensors(value), strict=True))
        for each in results:
            self._note(each)
        if results and not getattr(func, "is_view", False):
            self.operations.append(_operation(func, out, results, args, kwargs))
        return out

    def _value(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """The real result of whole numbers; None where there are other inputs, or it would be many other numbers."""
        tensors = _tensors((args, kwargs))
        if not all(each in self._values for each in tensors):
            return None
        if not tensors and not _makes_whole(args, kwargs):
            return None
        real = tree_map(lambda each: self._values[each] if isinstance(each, torch.Tensor) else each, (args, kwargs))
        with unset_fake_temporarily(), torch.no_grad():
            found = func(*real[0], **real[1])
        return found if all(map(_is_whole, _tensors(found))) else None

    def _known(self, value: Any) -> Any:
        return tree_map(lambda each: self.faked(each) if isinstance(each, torch.Tensor) else each, value)

    def _positions(self, index: Any) -> list[Any]:
        """A mask as an index makes as many positions as it is true; the others are positions already."""
        if not isinstance(index, torch.Tensor) or index.dtype != torch.bool or index not in self._values:
            return [index]
        with unset_fake_temporarily():
            places = self._values[index].nonzero(as_tuple=True)
        return [self.faked(each) for each in places]

    def _note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._refs:
            number = self.take(int(storage.nbytes()))
            self._refs[storage._cdata] = weakref.ref(storage, partial(self._freed, storage._cdata, number))

    def _freed(self, key: int, number: int, _ref: Any) -> None:
        self._refs.pop(key, None)
        self.give_back(number)


def stop_at(deadline: float, model: torch.nn.Module) -> None:
    """Let every module of `model` raise TooSlowError, where it is called, from `deadline` (of time.thread_time) on.

    Not from inside of an operation: there an exception may end the process, as PyTorch does not expect one everywhere.
    """

    def look(*_: Any) -> None:
        if time.thread_time() > deadline:
            raise TooSlowError

    for module in model.modules():
        module.register_forward_pre_hook(look)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def num_bytes(tensor: torch.Tensor) -> int:
    """What its numbers take."""
    return tensor.numel() * tensor.element_size()


def _is_whole(value: torch.Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex()) or value.numel() <= 1


def _makes_whole(args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation without tensors (arange, zeros, full) is to make whole numbers, or one number."""
    dtype = kwargs.get("dtype")
    if isinstance(dtype, torch.dtype) and not dtype.is_floating_point and not dtype.is_complex:
        return True
    return bool(args) and isinstance(args[0], list | tuple) and math.prod(args[0]) <= 1


def _operation(func: Any, out: Any, results: list[torch.Tensor], args: Any, kwargs: Mapping[str, Any]) -> Operation:
    moved = sum(num_bytes(each) for each in (*_tensors((args, kwargs)), *results))
    return Operation(flops_of(func, out, args, kwargs), moved, results[0].element_size() == 2)
