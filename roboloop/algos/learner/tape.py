"""A function's kernels, recorded once and then run again over the same memory: autograd without its graph.

What autograd does for a loss is the same list of kernels at every update. A ``Tape`` runs that list: no graph, no
allocation, gradients written where they belong. Its numbers are those of the function, bit for bit, so it is a matter
of speed alone (``docs/decisions/0006-autograd-on-a-tape.md``). It is to a CPU what a CUDA graph is to a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from roboloop.algos.learner.kernels import Call, Kernel, KernelRecorder, Storage, aten, form_of, storage_of

OF_BATCHES = (aten.bmm.default, aten.baddbmm.default)
"""Products of many matrices."""


class Tape:
    """What ``function`` does, run again by ``run``; it must read and write memory that stays where it is."""

    def __init__(self, function: Callable[[], None]) -> None:
        with KernelRecorder() as recorder:
            function()
        self.recorded = len(recorder.calls)
        calls = without_constants(recorder.calls)
        calls = without_unused(calls, recorder.calls)
        calls, places = with_results_in_place(calls)
        plan = MemoryPlan(calls, places)
        self._steps, self.kernels = plan.steps, plan.kernels

    def __len__(self) -> int:
        return len(self._steps)

    def run(self) -> None:
        """Do what the function did."""
        with torch._C._AutoDispatchBelowAutograd():
            for op, args, kwargs in self._steps:
                op(*args, **kwargs)


def without_constants(calls: list[Call]) -> list[Call]:
    """Leave out kernels whose results are the same each time: they stay as they were recorded."""
    changed = {storage_of(tensor) for call in calls for tensor in call.writes}
    constants: set[Storage] = set()
    kept: list[Call] = []
    for call in calls:
        is_constant = not call.writes and all(storage_of(tensor) in constants for tensor in call.reads)
        if is_constant and not changed.intersection(call.new):
            constants.update(call.new)
        else:
            kept.append(call)
    return kept


def without_unused(calls: list[Call], recorded: list[Call]) -> list[Call]:
    """Leave out kernels whose results nobody reads."""
    made = {storage for call in recorded for storage in call.new}
    needed: set[Storage] = set()
    kept: list[Call] = []
    for call in reversed(calls):
        written = {storage_of(tensor) for tensor in call.writes}
        if written - made or needed.intersection(written | set(call.new)):
            needed.update(map(storage_of, call.reads))
            needed.update(written & made)
            kept.append(call)
    return kept[::-1]


def with_results_in_place(calls: list[Call]) -> tuple[list[Call], dict[Storage, Tensor]]:
    """Let kernels write where their result would only be copied to; return the other calls and those places."""
    makers = {storage: call for call in calls for storage in call.new}
    uses: dict[Storage, int] = {}
    for call in calls:
        for storage in {storage_of(tensor) for tensor in (*call.reads, *call.writes)}:
            uses[storage] = uses.get(storage, 0) + 1
    kept: list[Call] = []
    places: dict[Storage, Tensor] = {}
    for call in calls:
        place = _place(call, makers, uses) if call.func is aten.copy_.default else None
        if place is None or not _is_touched_once(call, calls):
            kept.append(call)
        else:
            places[storage_of(call.args[1])] = place
    return kept, places


def _place(copy: Call, makers: dict[Storage, Call], uses: dict[Storage, int]) -> Tensor | None:
    """Return the destination of a copy, shaped as the result that is copied; None where it cannot be."""
    target, source = copy.args[:2]
    storage = storage_of(source)
    if storage not in makers or storage_of(target) in makers or uses[storage] != 1:
        return None
    if source.shape != target.shape or source.dtype != target.dtype or target.device != source.device:
        return None
    (result,) = (tensor for tensor in makers[storage].results if storage_of(tensor) == storage)
    if result.numel() != source.numel() or result.storage_offset() or source.storage_offset():
        return None
    strides = _strides_seen_through(result, source, target)
    if makers[storage].func in OF_BATCHES and strides != [*result.stride()]:
        return None  # written turned they add up in another order
    return None if strides is None else target.as_strided(result.shape, strides, target.storage_offset())


def _strides_seen_through(result: Tensor, source: Tensor, target: Tensor) -> list[int] | None:
    """Return the strides in ``target`` of the dims of ``result``, seen through ``source``, a view with its dims."""
    dims = zip(source.shape, source.stride(), target.stride(), strict=True)
    by_dim = {(size, stride): there for size, stride, there in dims if size > 1}
    if len(by_dim) != sum(size > 1 for size in source.shape):
        return None
    strides: list[int] = []
    for size, stride in zip(result.shape, result.stride(), strict=True):
        there = 1 if size == 1 else by_dim.pop((size, stride), None)
        if there is None:
            return None
        strides.append(there)
    return None if by_dim else strides


def _is_touched_once(copy: Call, calls: list[Call]) -> bool:
    """Say whether no other kernel reads or writes where a copy goes."""
    begin, end = _extent(copy.args[0])
    for call in calls:
        if call is not copy:
            for tensor in (*call.reads, *call.writes):
                first, last = _extent(tensor)
                if first < end and begin < last:
                    return False
    return True


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Return the addresses between which a tensor lies."""
    if not tensor.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


class MemoryPlan:
    """Lays results into little memory that is used again and again, and turns calls into steps over it."""

    def __init__(self, calls: Sequence[Call], places: dict[Storage, Tensor]) -> None:
        self._places = places
        self._slots: dict[Storage, Tensor] = {}
        self._free: list[Tensor] = []
        self._made = {storage for call in calls for storage in call.new}
        last: dict[Storage, int] = {}
        for i, call in enumerate(calls):
            for tensor in (*call.reads, *call.writes, *call.results):
                last[storage_of(tensor)] = i
        self.steps: list[Kernel] = []
        self.kernels: list[str] = []
        for i, call in enumerate(calls):
            dying = [storage for storage, end in last.items() if end == i and storage in self._made]
            self._add(call, {storage for storage in dying if storage not in places})
            for storage in dying:
                if storage in self._slots and storage not in places:
                    self._free.append(self._slots.pop(storage))

    def _add(self, call: Call, dying: set[Storage]) -> None:
        form = form_of(call)
        outs: list[Tensor] = []
        handed_over: set[Storage] = set()
        given = dict(self._slots)
        for result in call.results:
            storage = storage_of(result)
            if storage in self._places:
                outs.append(self._places[storage])
                continue
            slot = None
            if form.in_place:
                twin = _twin(result, call.reads, dying - handed_over)
                if twin is not None and twin in self._slots:
                    handed_over.add(twin)
                    slot = self._slots[twin]
            self._slots[storage] = slot if slot is not None else self._take(result.untyped_storage().nbytes())
            outs.append(_over(self._slots[storage], result))
        for storage in handed_over:
            del self._slots[storage]

        def moved(tensor: Tensor) -> Tensor:
            slot = given.get(storage_of(tensor), self._slots.get(storage_of(tensor)))
            return tensor if slot is None else _over(slot, tensor)

        args, kwargs = tree_map_only(Tensor, moved, (call.args, call.kwargs))
        steps = form.steps(args, kwargs, outs)
        self.steps.extend(steps)
        self.kernels.extend([f"{call.func}{' and copy' * form.copies}"] * len(steps))

    def _take(self, size: int) -> Tensor:
        """Return memory of this size, the last that became free if there is any."""
        for i in range(len(self._free) - 1, -1, -1):
            if len(self._free[i]) == size:
                return self._free.pop(i)
        return torch.empty(size, dtype=torch.uint8)


def _over(slot: Tensor, like: Tensor) -> Tensor:
    """Return a tensor in a slot that lies there as another lay in its own memory."""
    tensor = torch.empty(0, dtype=like.dtype)
    return tensor.set_(slot.untyped_storage(), like.storage_offset(), like.shape, like.stride())


def _twin(result: Tensor, reads: list[Tensor], dying: set[Storage]) -> Storage | None:
    """Return the memory of an argument that is not read again and lies as the result does."""
    for tensor in reads:
        storage = storage_of(tensor)
        same = tensor.shape == result.shape and tensor.stride() == result.stride() and tensor.dtype == result.dtype
        whole = tensor.untyped_storage().nbytes() == result.untyped_storage().nbytes()
        others = [(o.shape, o.stride(), o.storage_offset()) for o in reads if storage_of(o) == storage]
        own = (tensor.shape, tensor.stride(), tensor.storage_offset())
        if storage in dying and same and whole and all(other == own for other in others):
            return storage
    return None
