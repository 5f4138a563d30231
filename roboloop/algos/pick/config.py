"""Settings of pick-and-place: who picks, and how the best pick is looked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from roboloop.algos.limits import above_zero, at_least_one, within_one
from roboloop.algos.sac.config import SACConfig
from roboloop.algos.spec import AlgorithmSpec


@dataclass(frozen=True)
class PickConfig:
    """Soft actor-critic where an action is a pick and a displacement (docs/algorithms/pick-and-place.md)."""

    name: Literal["pick"] = "pick"
    """Which algorithm this section configures."""
    pick: Literal["mvp", "uniform", "joint", "autoregressive"] = "mvp"
    """'mvp' = learn to place what is picked at random, then pick where that is worth most (arXiv:1910.13439);
    'uniform' = the same learning, but never choose; 'joint' = one actor for all columns; 'autoregressive' = an actor
    that picks, then one that places what it picked."""
    top_fraction: float = 0.0
    """With 'mvp': pick at random among this share of the candidates, the best ones; 0 = always the best."""
    pick_in_training: Literal["uniform", "mvp"] = "uniform"
    """With 'mvp': how to pick while collecting: anything, or what is worth most."""
    training_top_fraction: float = 0.2
    """With 'mvp' while collecting: the share of the best candidates among which to pick."""
    pick_copies: int = 1
    """How often the pick stands behind the observation: many copies keep a few numbers from drowning among hundreds."""
    choice_temperature: float = 1.0
    """With 'joint', where the pick is one of K (corners): softness of the choice that gradients go through."""
    sac: SACConfig = field(default_factory=lambda: SACConfig(shift_px=0))
    """What learns; ``shift_px`` is for corners only, since a shifted picture no longer shows where its picks are."""

    @property
    def batch_size(self) -> int:
        """Transitions per update."""
        return self.sac.batch_size

    @property
    def processes(self) -> int:
        """Processes that compute shards."""
        return self.sac.processes

    @property
    def places_only(self) -> bool:
        """Whether the actor is told what is picked."""
        return self.pick in ("mvp", "uniform")

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        self.sac.check()
        within_one(self, "top_fraction", "training_top_fraction")
        at_least_one(self, "pick_copies")
        above_zero(self, "choice_temperature")


@dataclass(frozen=True)
class PickSACConfig(SACConfig):
    """Soft actor-critic's settings, and how it picks."""

    copies: int = 1
    """How often networks see the pick."""
    best: bool = False
    """Whether to choose what is worth most when not exploring; else candidates are drawn."""
    fraction: float = 0.0
    """Share of the best candidates among which to choose; 0 = the best one."""
    best_exploring: bool = False
    """Whether to choose when exploring too."""
    fraction_exploring: float = 0.0
    """Share of the best candidates among which to choose then."""
    in_turn: bool = False
    """Of an actor that picks by itself: whether a second network, which sees the pick, places it."""
    choice_temperature: float = 1.0
    """Of such an actor, where the pick is one of K: softness of the choice that gradients go through."""

    @classmethod
    def of(cls, cfg: PickConfig, sac: SACConfig) -> PickSACConfig:
        """Return what an algorithm's config asks of such settings of soft actor-critic."""
        is_mvp = cfg.pick == "mvp"
        return cls(
            **vars(sac),
            copies=cfg.pick_copies,
            best=is_mvp,
            fraction=cfg.top_fraction,
            best_exploring=is_mvp and cfg.pick_in_training == "mvp",
            fraction_exploring=cfg.training_top_fraction,
            in_turn=cfg.pick == "autoregressive",
            choice_temperature=cfg.choice_temperature,
        )


SPEC = AlgorithmSpec(
    "pick", PickConfig, "replay", "roboloop.algos.pick.pick:make", "roboloop.algos.pick.pick:load_policy",
    warmup="roboloop.algos.pick.policy:RandomPicks", frame_stack=False, task_sets=False,
)  # fmt: skip
