"""A learner's update as work for shards: its modules over shared memory, its losses differentiated by autograd."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from roboloop.algos.learner.inputs import Arrays, Input, Rows, rows_of
from roboloop.algos.learner.kernels import CannotReplay, DrawsNumbers, NoDraws
from roboloop.algos.learner.learner import Learner, Step
from roboloop.algos.learner.optimizer import GradientStep
from roboloop.algos.learner.shards import stretch
from roboloop.algos.learner.tape import Tape
from roboloop.core.blueprint import kind_of
from roboloop.core.config import override, to_dict
from roboloop.core.errors import ConfigError
from roboloop.core.resolve import load
from roboloop.core.state import spec_from_data, spec_to_data
from roboloop.nets.flat import ALIGN, Layout, Views
from roboloop.nets.modules import BatchNorm

PREPARE = "prepare"
"""The phase in which shards compute from their inputs what losses need."""
BUFFERS, FIXED = "buffers", "fixed"
"""Segments of what no step moves: statistics, and parameters that stay as they were made."""
FULL_NAME = str


class Weights:
    """All numbers of a learner's modules in one memory: a flat segment per moved module, per target, and the rest."""

    def __init__(self, learner: Learner) -> None:
        steps = learner.steps()
        own = [*(name for step in steps for name in step.of), *(name for step in steps for name in step.follow)]
        self.segments: dict[str, list[FULL_NAME]] = {name: [] for name in dict.fromkeys((*own, FIXED, BUFFERS))}
        self._shapes: dict[FULL_NAME, tuple[int, ...]] = {}
        lying: dict[FULL_NAME, tuple[int, ...]] = {}
        for full, parameter in learner.named_parameters():
            top = full.partition(".")[0]
            self._add(top if top in own else FIXED, full, parameter)
            lying[full] = with_long_rows(self._shapes[full])
        for full in persistent_buffers(learner):
            self._add(BUFFERS, full, learner.get_buffer(full))
            lying[full] = self._shapes[full]
        self.layouts = {name: Layout({full: lying[full] for full in fulls}) for name, fulls in self.segments.items()}

    def _add(self, segment: str, full: FULL_NAME, tensor: Tensor) -> None:
        if tensor.dtype != torch.float32:
            raise ConfigError(f"{full} must be float32, not {str(tensor.dtype).removeprefix('torch.')}")
        self.segments[segment].append(full)
        self._shapes[full] = tuple(tensor.shape)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return segment -> length, for a memory."""
        return {name: (layout.size,) for name, layout in self.layouts.items()}

    def views(self, memory: Mapping[str, Tensor]) -> Views:
        """Return full name -> tensor over segments, in the shapes that modules know."""
        return {full: view for name in self.segments for full, view in self.segment(name, memory[name]).items()}

    def segment(self, name: str, flat: Tensor) -> Views:
        """Return full name -> tensor over one flat segment, or over what lies as it does, such as a gradient."""
        views = self.layouts[name].views(flat)
        return {full: view if view.shape == self._shapes[full] else view.mT for full, view in views.items()}


def with_long_rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return how weights lie in memory: with long rows, since BLAS is up to four times slower on short ones."""
    is_short = len(shape) in (2, 3) and shape[-1] < shape[-2]
    return (*shape[:-2], shape[-1], shape[-2]) if is_short else shape


def own_memory(module: nn.Module) -> Views:
    """Return tensors for a module's numbers that lie as in training, where it matters for the last bit."""
    parameters = {name: tuple(p.shape) for name, p in module.named_parameters()}
    shapes = {name: with_long_rows(shape) for name, shape in parameters.items()}
    layout = Layout(shapes | {name: tuple(module.get_buffer(name).shape) for name in persistent_buffers(module)})
    views = layout.views(layout.zeros())
    return {name: view if shapes.get(name) == parameters.get(name) else view.mT for name, view in views.items()}


def persistent_buffers(module: nn.Module) -> list[FULL_NAME]:
    """Return the names of buffers that are saved."""
    saved = module.state_dict(keep_vars=True)
    return [name for name, _ in module.named_buffers() if name in saved]


def lay(module: nn.Module, views: Views, keep: bool) -> None:
    """Make tensors those of a module; with ``keep`` they take over its numbers first."""
    laid: dict[int, nn.Parameter] = {}
    for full, view in views.items():
        head, _, leaf = full.rpartition(".")
        owner = module.get_submodule(head)
        tensor = getattr(owner, leaf)
        if keep:
            view.copy_(tensor.detach())
        if isinstance(tensor, nn.Parameter):
            # of views that share memory, autograd would take what is written to one for a change of all
            laid[id(tensor)] = nn.Parameter(view.data, tensor.requires_grad)
        else:
            setattr(owner, leaf, view)
    for owner in module.modules():  # parameters may be shared
        for leaf, tensor in [*owner._parameters.items()]:
            if id(tensor) in laid:
                setattr(owner, leaf, laid[id(tensor)])


class LearnerWork:
    """The Work of a learner: which class, with which config, over which inputs."""

    def __init__(self, learner: Learner, rows: int, inputs: Mapping[str, Input]) -> None:
        cfg = learner.cfg
        self._made_by, self._cfg, self._spec = type(learner), cfg, learner.spec
        self._frame_stack, self._rows, self._inputs = learner.frame_stack, rows, dict(inputs)
        self.steps, self.shards, self.weights = learner.steps(), cfg.shards, Weights(learner)
        self.prepares = type(learner).prepare is not Learner.prepare
        self.metrics_per_step = learner.most_metrics + 1
        common = {f"inputs/{name}": each for name, each in inputs.items() if each.common}
        self.given, self.staged = Arrays(self._given(learner)), Arrays(common)
        self._kept = Arrays({n: Input((self.shards, rows, *shape)) for n, shape in learner.kept().items()})
        self._layout = Layout(self._shapes())

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        shards = self.shards
        shapes: dict[str, tuple[int, ...]] = self.weights.shapes()
        for step in self.steps:
            for name in step.of:
                size = self.weights.layouts[name].size
                shapes |= {
                    f"{name}/m": (size,), f"{name}/v": (size,), f"{name}/grad": (shards, size),
                    f"{name}/squares": (shards, ALIGN),
                }  # fmt: skip
        shapes |= {"metrics": (shards, len(self.steps) * self.metrics_per_step)}
        shapes |= {"seen": (shards, self.weights.layouts[BUFFERS].size)}
        return shapes | {"given": (self.given.size,), "staged": (self.staged.size,), "kept": (self._kept.size,)}

    def _given(self, learner: Learner) -> dict[str, Input]:
        """Return the arrays that each update is given anew: one stretch, so that it is one copy to another device."""
        given: dict[str, Input] = {}
        for step in self.steps:
            for name in step.of:
                given |= {f"{name}/step": Input((1,)), f"{name}/lr": Input((1,))}
        own = {name: each for name, each in self._inputs.items() if not each.common}
        noise = {name: Input((self._rows, *shape)) for name, shape in learner.noise().items()}
        for kind, arrays in (("inputs", own), ("noise", noise)):
            given |= {f"{kind}/{name}": each.times(self.shards) for name, each in arrays.items()}
        return given

    @property
    def num_floats(self) -> int:
        """Length of the shared memory."""
        return self._layout.size

    def views(self, memory: Tensor) -> Views:
        """Return the shared arrays by name."""
        views = self._layout.views(memory)
        return views | self.given.views(views["given"]) | self.staged.views(views["staged"])

    def batch(self, views: Views, index: int, learner: Learner) -> tuple[Rows, Rows]:
        """Return what a shard's losses are given: inputs, what they keep, what is prepared for them; and noise."""
        parts: dict[str, Views] = {"inputs": {}, "noise": {}}
        for name, view in views.items():
            kind, _, leaf = name.partition("/")
            if kind in parts:
                parts[kind][leaf] = view if name in self.staged.inputs else view[index]
        kept = {name: view[index] for name, view in self._kept.views(views["kept"]).items()}
        scratch = Arrays(learner.scratch())
        own = scratch.views(torch.zeros(scratch.size, device=views["kept"].device))
        return rows_of({**parts["inputs"], **kept, **own}), rows_of(parts["noise"])

    def make_learner(self) -> Learner:
        """Return a learner with modules of its own."""
        return self._made_by(self._cfg, self._spec, self._frame_stack)

    def to_data(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return {**learner_data(self.make_learner()), "rows": self._rows, "inputs": self._inputs}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> LearnerWork:
        """Return the work that ``to_data`` described."""
        inputs = {name: Input(tuple(shape), *rest) for name, (shape, *rest) in data["inputs"].items()}
        return cls(learner_from_data(data), data["rows"], inputs)

    def make_shard(self, memory: Tensor, index: int) -> LearnerShard:
        """Build one shard over the shared memory."""
        return LearnerShard(self, memory, index)


def learner_data(learner: Learner) -> dict[str, Any]:
    """Return as plain data what another process needs to make the same modules."""
    cfg, spec = learner.cfg, spec_to_data(learner.spec)
    kinds = {"learner": kind_of(learner), "config_kind": kind_of(cfg)}
    return {**kinds, "config": to_dict(cfg), "spec": spec, "frame_stack": learner.frame_stack}


def learner_from_data(data: Mapping[str, Any]) -> Learner:
    """Return the learner that ``learner_data`` described."""
    cfg = override(load(data["config_kind"])(), data["config"])
    learner: Learner = load(data["learner"])(cfg, spec_from_data(data["spec"]), data["frame_stack"])
    return learner


class LearnerShard:
    """Computes its rows' gradients of each loss, and moves its stretch of each module."""

    def __init__(self, work: LearnerWork, memory: Tensor, index: int) -> None:
        learner, mem = work.make_learner().to(memory.device), work.views(memory)
        lay(learner, work.weights.views(mem), keep=False)
        batch, noise = work.batch(mem, index, learner)
        seen = work.weights.segment(BUFFERS, mem["seen"][index])
        norms = {name: m for name, m in learner.named_modules() if isinstance(m, BatchNorm)}
        for name, norm in norms.items():
            norm.seen = seen[f"{name}.running"]
        replay = learner.cfg.replay_kernels and memory.device.type == "cpu"
        self._prepares = work.prepares
        self._runs: dict[str, Callable[[], None]] = {PREPARE: lambda: learner.prepare(batch)} if work.prepares else {}
        self._moves: dict[str, Move] = {}
        self.losses: dict[str, ShardLoss] = {}
        for place, step in enumerate(work.steps):
            metrics = mem["metrics"][index, place * work.metrics_per_step : (place + 1) * work.metrics_per_step]
            grads = {f: g for n in step.of for f, g in work.weights.segment(n, mem[f"{n}/grad"][index]).items()}
            loss = ShardLoss(learner, step, grads, metrics, 1.0 / work.shards, batch, noise, replay)
            own = [name for name in norms if name.partition(".")[0] in step.of] if index == 0 else []
            every = [[work.weights.segment(BUFFERS, s)[f"{n}.running"] for s in mem["seen"]] for n in own]
            move = Move(step, mem, index, [(norms[n], all_seen) for n, all_seen in zip(own, every, strict=True)])
            self._runs |= {
                f"{step.loss}/gradients": loss.run,
                f"{step.loss}/sum": move.sum,
                f"{step.loss}/move": move.move,
            }
            self._moves[f"{step.loss}/move"] = move
            self.losses[step.loss] = loss
        self.PHASES = tuple(self._runs)

    def run(self, phase: str) -> None:
        """Run one of PHASES."""
        self._runs[phase]()

    def changes(self, phase: str) -> list[Tensor]:
        """Return what a phase changes in place."""
        move = self._moves.get(phase)
        return move.changes if move else []

    def catch_up(self, phase: str) -> None:
        """Compute what this phase and later ones need of earlier ones that is not in the shared memory."""
        if self._prepares and phase != PREPARE:
            self._runs[PREPARE]()
        move = self._moves.get(phase)
        if move is not None and move.is_limited:
            move.sum()


class ShardLoss:
    """The gradient of one loss on one shard's rows, written to the shared memory."""

    def __init__(
        self, learner: Learner, step: Step, grads: Views, metrics: Tensor, share: float, batch: Rows, noise: Rows,
        replay: bool,
    ) -> None:  # fmt: skip
        self._loss, self._name = getattr(learner, step.loss), f"{type(learner).__name__}.{step.loss}"
        self._batch, self._noise, self._replay = batch, noise, replay
        parameters = dict(learner.named_parameters())
        self._parameters, self._grads = [parameters[full] for full in grads], list(grads.values())
        self._metrics, self._share = metrics, share
        self._tape: Tape | None = None
        self._count = 0
        self.names: tuple[str, ...] = ()

    def run(self) -> None:
        """Compute it: at first by autograd, later by the kernels that autograd ran."""
        self._count += 1
        if self._count == 1:
            self._begin()
        elif self._tape is None:
            self.compute()
        else:
            self._tape.run()
            if self._count & (self._count - 1) == 0:
                self._check()

    def compute(self) -> None:
        """Compute it by autograd."""
        loss, metrics = self._loss(self._batch, self._noise)
        self.names = (self._loss.__name__, *metrics)
        if len(self.names) > len(self._metrics):
            raise ConfigError(f"{self._name} returns {len(metrics)} metrics; {len(self._metrics) - 1} is the most")
        # not as grad_outputs, for which torch imports sympy
        found = torch.autograd.grad(self._share * loss, self._parameters, allow_unused=True)
        self._keep([torch.zeros_like(g) if v is None else v for g, v in zip(self._grads, found, strict=True)])
        values = [value.detach() for value in (loss, *metrics.values())]
        self._metrics[: len(values)].copy_(torch.stack(values))

    def _keep(self, found: list[Tensor]) -> None:
        if self._metrics.device.type == "cpu":
            for grad, value in zip(self._grads, found, strict=True):
                grad.copy_(value)  # which a tape leaves out
        else:
            torch._foreach_copy_(self._grads, found)

    def _begin(self) -> None:
        try:
            if self._replay:
                with contextlib.suppress(CannotReplay):
                    self._tape = Tape(self.compute)
            if self._tape is None:
                with NoDraws():
                    self.compute()
        except DrawsNumbers as error:
            raise ConfigError(f"{self._name} draws random numbers ({error}): name them in noise() instead") from None

    def _check(self) -> None:
        """Refuse a loss that depends on more than it is given: its kernels would be those of the past."""
        kept = [tensor.clone() for tensor in (*self._grads, self._metrics)]
        self.compute()
        for before, now in zip(kept, (*self._grads, self._metrics), strict=True):
            if not torch.equal(before.nan_to_num(), now.nan_to_num()):
                raise ConfigError(
                    f"{self._name} is no longer what it was at the first update: it may depend on its modules, batch "
                    "and noise alone"
                )


class Move:
    """What follows on all shards' gradients of a loss: modules, their statistics, and their targets."""

    def __init__(self, step: Step, mem: Views, index: int, norms: Iterable[tuple[BatchNorm, list[Tensor]]]) -> None:
        self.is_limited = any(adam.max_grad_norm for adam in step.of.values())
        self._norms, self._tau = list(norms), step.tau
        self._steps = []
        for name, adam in step.of.items():
            own = {key: mem[f"{name}/{key}"] for key in ("grad", "m", "v", "squares", "step", "lr")}
            self._steps.append(GradientStep(own, mem[name], index, adam))
        shards = len(mem["metrics"])
        parts = {target: stretch(mem[target].numel(), shards, index) for target in step.follow}
        self._follow = [
            (mem[target][parts[target]], mem[source][parts[target]]) for target, source in step.follow.items()
        ]

    @property
    def changes(self) -> list[Tensor]:
        """What moving changes in place."""
        statistics = [norm.running.view(-1) for norm, _ in self._norms]
        return [*(t for step in self._steps for t in step.changes), *(t for t, _ in self._follow), *statistics]

    def sum(self) -> None:
        """Sum this stretch of the gradients, where their lengths must be known before they move."""
        for step in self._steps:
            step.sum()

    def move(self) -> None:
        """Move this stretch of modules and targets."""
        for step in self._steps:
            step.move()
        for target, source in self._follow:
            target.lerp_(source, self._tau)
        for norm, all_seen in self._norms:
            norm.running.lerp_(torch.stack(all_seen).mean(0), norm.momentum)
