"""Kernels below autograd: taken down while a function runs, and given a form in which they can be run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

aten = torch.ops.aten
Op = Callable[..., Any]
Storage = int
"""Address of a tensor's memory: all memory of a recording is kept until it is over, so none is used twice."""


class CannotReplay(Exception):
    """The function's kernels depend on the numbers that it reads; it must be run as it is."""


class DrawsNumbers(Exception):
    """The function draws random numbers; it must be given them."""


def storage_of(tensor: Tensor) -> Storage:
    """Return where a tensor's memory begins."""
    return tensor.untyped_storage().data_ptr()


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors among arguments or results."""
    return (leaf for leaf in tree_iter(tree) if isinstance(leaf, Tensor))


@dataclass
class Call:
    """One kernel: what it was given, what it wrote, what it returned in new memory."""

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Tensor]
    """Tensors in new memory."""
    writes: list[Tensor] = field(default_factory=list)
    """Arguments that it changes."""
    reads: list[Tensor] = field(default_factory=list)
    """Arguments whose numbers count."""

    @property
    def new(self) -> list[Storage]:
        """The memory of its results."""
        return [storage_of(result) for result in self.results]


SHAPE_ONLY = frozenset(
    {
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "new_empty_strided",
    }
)
"""Their argument says a shape; its numbers do not count."""
UNSET = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
"""What they return is written before it is read."""


class NoDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses kernels that draw random numbers."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing its compiler here, which takes a second."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run any other kernel."""
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise DrawsNumbers(str(func))
        return func(*args, **(kwargs or {}))


class KernelRecorder(NoDraws):  # type: ignore[no-untyped-call]
    """Takes down all kernels below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._kept: list[Any] = []

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a kernel and take it down."""
        tags, schema = func.tags, func._schema
        if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
            raise CannotReplay(str(func))
        kwargs = kwargs or {}
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self._kept.append((args, kwargs, out))
        given = [*tensors_in((args, kwargs))]
        old = {storage_of(tensor) for tensor in given}
        results = [tensor for tensor in tensors_in(out) if storage_of(tensor) not in old]
        values = {**dict(zip((a.name for a in schema.arguments), args, strict=False)), **kwargs}
        changed = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        writes = [tensor for name in changed for tensor in tensors_in(values.get(name))]
        if results or writes:  # else it returned a view, which stays where it is
            reads = [] if func.overloadpacket.__name__ in SHAPE_ONLY else given
            self.calls.append(Call(func, args, kwargs, results, writes, reads))
        return out


Kernel = tuple[Op, tuple[Any, ...], dict[str, Any]]
"""What to call, and with what."""


@dataclass(frozen=True)
class Form:
    """How a kernel is run again: by an op that writes into given tensors, or by a few."""

    make: Callable[[Any, Any, list[Tensor]], list[Kernel]]
    in_place: bool = False
    """Whether a result may lie where an argument lay."""
    copies: bool = False
    """Whether results are made elsewhere and copied."""

    def steps(self, args: Any, kwargs: Any, outs: list[Tensor]) -> list[Kernel]:
        """Return the steps that write the results to ``outs``."""
        return self.make(args, kwargs, outs)


def form_of(call: Call) -> Form:
    """Return how to run a kernel again."""
    func, name = call.func, call.func.overloadpacket.__name__
    if call.writes:
        if call.results:
            raise CannotReplay(str(func))
        return Form(lambda args, kwargs, outs: [(func._op, args, kwargs)])
    if name in UNSET:
        return Form(lambda args, kwargs, outs: [])
    if name in REWRITTEN and not (name == "stack" and call.args[1:] not in ((), (0,))):
        return REWRITTEN[name]
    # torch's losses give a tensor that they are to write into another shape before they sum
    found = None if "_loss" in name else _out_variant(func)
    if found is not None:
        return Form(_writing(func, *found), torch.Tag.pointwise in func.tags)

    def run_and_copy(args: Any, kwargs: Any, outs: list[Tensor]) -> list[Kernel]:
        return [(_copied(func._op, outs), args, kwargs)]

    return Form(run_and_copy, copies=True)


BOUND = frozenset(
    "add addmm amax amin baddbmm bmm cat clamp clamp_min div exp maximum minimum mm mul neg pow sub sum tanh".split()
)
"""Kernels that ``torch.NAME`` calls with the same arguments, in two thirds of the time that the op itself takes."""


def _writing(func: OpOverload, op: Op, names: list[str]) -> Callable[[Any, Any, list[Tensor]], list[Kernel]]:
    """Return how an op writes its results into given tensors."""
    name = func.overloadpacket.__name__
    call = getattr(torch, name) if name in BOUND else op

    def steps(args: Any, kwargs: Any, outs: list[Tensor]) -> list[Kernel]:
        if name in ("add", "div", "mul", "sub") and not isinstance(args[1], Tensor):
            args = (args[0], torch.tensor(args[1], dtype=outs[0].dtype), *args[2:])  # else made anew at each call
        return [(call, args, {**kwargs, **dict(zip(names, outs, strict=True))})]

    return steps


def _copied(op: Op, outs: list[Tensor]) -> Op:
    """Return an op without a form that writes into given tensors, with its results copied there."""

    def run(*args: Any, **kwargs: Any) -> None:
        for out, result in zip(outs, tensors_in(op(*args, **kwargs)), strict=True):
            out.copy_(result)

    return run


def _has_kernel(op: OpOverload) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op._name, "CPU"))


def _out_variant(func: OpOverload) -> tuple[Op, list[str]] | None:
    """Return the op that writes its results into given tensors, and their names; None where it would copy anyway."""
    packet, wanted = func.overloadpacket, [(a.name, str(a.type)) for a in func._schema.arguments]
    for overload in packet.overloads():
        op = getattr(packet, overload)
        outs = [a.name for a in op._schema.arguments if a.is_out]
        rest = [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]
        if outs and rest == wanted and len(outs) == len(func._schema.returns) and _has_kernel(op):
            return op._op, outs
    if func._overloadname == "Scalar" and "out" in packet.overloads():  # a number is taken where a tensor is
        op = packet.out
        if len(op._schema.arguments) == len(wanted) + 1 and _has_kernel(op):
            return op._op, ["out"]
    return None


def _cleared_but(view: Op) -> Form:
    """Return how a gradient is written into a part of zeros: ``args`` are gradient, shape and which part."""

    def steps(args: Any, kwargs: Any, outs: list[Tensor]) -> list[Kernel]:
        (out,) = outs
        return [(aten.zero_.default._op, (out,), {}), (aten.copy_.default._op, (view(out, *args[2:]), args[0]), {})]

    return Form(steps)


def _copy(args: Any, kwargs: Any, outs: list[Tensor]) -> list[Kernel]:
    return [(aten.copy_.default._op, (outs[0], args[0]), {})]


def _relu(args: Any, kwargs: Any, outs: list[Tensor]) -> list[Kernel]:
    if outs[0].data_ptr() == args[0].data_ptr():
        return [(torch.relu_, (outs[0],), {})]
    return [(torch.clamp_min, (args[0], 0.0), {"out": outs[0]})]


def _stack(args: Any, kwargs: Any, outs: list[Tensor]) -> list[Kernel]:
    return [(torch.cat, ([x.unsqueeze(0) for x in args[0]],), {"out": outs[0]})]


REWRITTEN = {
    "stack": Form(_stack),
    "relu": Form(_relu, in_place=True),
    "clone": Form(_copy),
    "_to_copy": Form(_copy),
    "slice_backward": _cleared_but(aten.slice.Tensor),
    "select_backward": _cleared_but(aten.select.int),
}
"""Kernels that have no form that writes into given tensors, but are made of some that have."""
