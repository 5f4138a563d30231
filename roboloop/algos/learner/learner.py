"""What an author writes: modules, losses in plain PyTorch, and which loss moves what. The house does the rest."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from torch import Tensor, nn

from roboloop.algos.learner.inputs import Input, Rows
from roboloop.algos.learner.optimizer import Adam
from roboloop.algos.limits import above_zero
from roboloop.core.errors import ConfigError
from roboloop.core.fields import PICKS
from roboloop.core.shared_state import STREAM
from roboloop.core.types import Array, EnvSpec
from roboloop.nets.observations import Fields

if TYPE_CHECKING:
    from roboloop.nets.conv import ConvSpec

Loss = tuple[Tensor, dict[str, Tensor]]
"""A number to make small, and what there is to log."""
Seen = Any
"""Observations: a tensor ``[N, D]``, or ``Rows`` of ``vector``, ``picture0``, ... and ``mask`` where there is more."""
M = TypeVar("M", bound=nn.Module)


class Decided(NamedTuple):
    """What ``decide`` says of N observations."""

    action: Tensor
    """``[N, A]`` in [-1, 1]; choices as their number."""
    memory: Tensor | None = None
    """``[N, M]`` after this step."""
    log_prob: Tensor | None = None
    value: Tensor | None = None


@dataclass(frozen=True)
class Step:
    """One gradient step: the loss of a method moves some modules; then targets follow."""

    loss: str
    """Name of a method ``(batch, noise) -> (loss, metrics)``, the mean over the rows that it is given."""
    of: Mapping[str, Adam]
    """Names of the modules (or parameters) that it moves, each with its optimiser."""
    follow: Mapping[str, str] = field(default_factory=dict)
    """Target module -> the module that it follows."""
    tau: float = 0.005
    """Fraction of the way that targets go."""
    every: int = 1
    """Taken at each so-many-th update."""


class Learner(nn.Module):
    """Base of algorithms: a subclass says ``build``, ``steps``, its losses, and ``act``.

    A loss is a pure function of modules, batch and noise: it draws nothing and keeps nothing but what ``kept``
    names, so that the house may run it on any shard, in any process.
    """

    acting: tuple[str, ...] = ("actor",)
    """The modules that ``act`` uses: what samplers are sent."""
    takes: ClassVar[frozenset[str]] = frozenset()
    """What it can learn from beside vectors and continuous actions: ``pictures``, ``choices``, ``picks``."""
    is_bounded: ClassVar[bool] = True
    """Whether actions are clipped to the bounds of the environment."""
    most_metrics: int = 15
    """Most numbers that a loss may return to be logged."""
    memory_size: int = 0
    """Numbers of memory in each environment."""
    num_tasks: int = 1
    """Tasks of a batch: as many rows of each, which lie task by task in every shard."""
    heads: int = 1
    """Tasks by which rows must also lie to act, as the one-hot that ends observations says; 1 = any order."""
    shift_px: int = 0
    """Pixels by which pictures of a batch are shifted at most."""

    def __init__(self, cfg: Any, spec: EnvSpec, frame_stack: int = 1) -> None:
        super().__init__()
        self.cfg, self.spec, self.frame_stack = cfg, spec, frame_stack
        self.fields = Fields.of(spec, frame_stack)
        self.obs_dim, self.action_dim = self.fields.vector_dim, spec.action_dim
        refuse_what_it_cannot_take(self)
        self.reads: Sequence[ConvSpec] = ()  # whose blocks pictures come in; without, they come as pixels
        with STREAM:  # first weights are drawn
            self.build()

    def build(self) -> None:
        """Make the modules, as attributes."""
        raise NotImplementedError

    def steps(self) -> tuple[Step, ...]:
        """Return the gradient steps of an update, in order."""
        raise NotImplementedError

    def act(self, obs: Seen, noise: Tensor | None) -> Tensor:
        """Return actions ``[B, A]`` in [-1, 1] for observations ``[B, D]``.

        ``noise`` is what ``draws`` returned; None asks for the best action.
        """
        raise NotImplementedError

    def decide(self, obs: Seen, memory: Tensor, noise: Tensor | None) -> Decided:
        """Return actions and what else a policy says; a learner without memory writes ``act`` instead.

        ``memory [N, memory_size]`` may be overwritten, and returned.
        """
        return Decided(self.act(obs, noise))

    def draws(self, rng: np.random.Generator, rows: int) -> Array:
        """Return the noise by which so many actions explore."""
        return rng.standard_normal((rows, self.action_dim), dtype=np.float32)

    def calm_draws(self, rng: np.random.Generator, rows: int) -> Array | None:
        """Return the noise of so many actions that do not explore; usually there is none."""
        return None

    def noise(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape, per row, of the standard normal numbers that losses are given."""
        return {}

    def kept(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape, per row, of what a loss leaves in ``batch`` for later losses of the same update."""
        return {}

    def scratch(self) -> dict[str, Input]:
        """Return arrays of ``batch`` that ``prepare`` fills."""
        return {}

    def prepare(self, batch: Rows) -> None:
        """Compute from its inputs what a shard's losses need; unlike them it may branch on numbers and use numpy."""


def target_of(module: M) -> M:
    """Return a copy that no loss moves, to follow the module."""
    target = copy.deepcopy(module)
    target.requires_grad_(False)
    return target


def refuse_what_it_cannot_take(learner: Learner) -> None:
    """Raise ConfigError for choices, picks and pictures where the learner does not say that it takes them."""
    kind, takes, spec = type(learner).__name__, learner.takes, learner.spec
    if not spec.is_continuous and "choices" not in takes:
        raise ConfigError(f"{kind} needs continuous actions; PPO takes choices: --algo ppo")
    names = spec.obs_dtype.names or ()
    if PICKS in names and "picks" not in takes:
        raise ConfigError(f"{kind} takes vectors, not the fields {', '.join(names)}; --algo pick chooses among picks")
    if learner.fields.pictures and "pictures" not in takes:
        raise ConfigError(f"{kind} takes vectors, not pictures; SAC and PPO take both: --algo sac")


def check_learner(learner: Learner) -> None:
    """Raise ConfigError where steps and modules do not fit."""
    kind, names = type(learner).__name__, [*dict(learner.named_children()), *dict(learner.named_parameters())]
    moved: dict[str, str] = {}
    for step in learner.steps():
        above_zero(step, "every")
        if not callable(getattr(learner, step.loss, None)):
            raise ConfigError(f"{kind} has no loss {step.loss!r}")
        for name in (*step.of, *step.follow, *step.follow.values()):
            if name not in names:
                raise ConfigError(f"{kind}.{step.loss} names {name!r}, which build() did not make")
        for name in step.of:
            if name in moved:
                raise ConfigError(f"{kind}: both {moved[name]} and {step.loss} move {name!r}")
            moved[name] = step.loss
    if unknown := [name for name in learner.acting if name not in names]:
        raise ConfigError(f"{kind}.acting names {unknown[0]!r}, which build() did not make")
    _check_modules(learner, kind, moved)


def _check_modules(learner: Learner, kind: str, moved: Mapping[str, str]) -> None:
    for name, parameter in learner.named_parameters():
        if parameter.requires_grad and name.partition(".")[0] not in moved:
            raise ConfigError(f"{kind}: no step moves {name!r}; take target_of() or requires_grad_(False)")
    for name, module in learner.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            what = f"{kind}.{name}: {type(module).__name__} keeps what each shard sees to itself"
            raise ConfigError(f"{what}; take roboloop.nets.modules.BatchNorm")
