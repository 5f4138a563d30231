"""Pick-and-place: soft actor-critic that places what is picked for it, or that does both.

Equations and lines: ``docs/algorithms/pick-and-place.md``.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

from roboloop.algos.mtsac.mtsac import MultiTaskSAC
from roboloop.algos.pick.config import PickConfig
from roboloop.algos.pick.picks import PickLayout, at
from roboloop.algos.pick.policy import JointPolicy, PickOptions, PickPolicy
from roboloop.algos.policy import ActorPolicy
from roboloop.algos.spec import Setup
from roboloop.core.fields import PICKS
from roboloop.core.rng import get_rng_state, set_rng_state, stream
from roboloop.core.types import Batch, BatchSpec, EnvSpec, Metrics, State, Stateful
from roboloop.nets.actors import ActorKind
from roboloop.nets.flat import Layout, restore

AnyPickPolicy = PickPolicy | JointPolicy


class PickView(Stateful, Protocol):
    """How a batch looks to the actor-critic that learns from it."""

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch that it sees."""
        ...


class Placing:
    """The pick is part of what is seen, and the action is what is done with it.

    What will be picked next is drawn evenly from what will be offered, so that values are those of picking at random:
    y = r + gamma E_{p' ~ U(picks of o')} [min Q'(o' + p', d') - alpha log pi(d' | o' + p')].
    """

    def __init__(self, picks: PickLayout, copies: int, seed: int) -> None:
        self._picks, self._copies = picks, copies
        self._rng = stream(seed, "next-pick")

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch of augmented states."""
        dim, offered = self._picks.dim, batch.next_obs[PICKS]
        next_pick = at(offered, self._rng.integers(self._picks.num, size=len(offered)))
        return batch._replace(
            obs=self._picks.with_pick(batch.obs, batch.action[:, :dim], self._copies),
            action=batch.action[:, dim:],
            next_obs=self._picks.with_pick(batch.next_obs, next_pick, self._copies),
        )

    def state(self) -> State:
        """Return where the draws are."""
        return {"rng": get_rng_state(self._rng)}

    def load(self, state: State) -> None:
        """Restore where the draws were."""
        set_rng_state(self._rng, state["rng"])


class Unaided:
    """All columns are the actor's, and it does not see what it could pick."""

    def __init__(self, picks: PickLayout) -> None:
        self._picks = picks

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch without candidates."""
        return batch._replace(obs=self._picks.without(batch.obs), next_obs=self._picks.without(batch.next_obs))

    def state(self) -> State:
        """Return nothing."""
        return {}

    def load(self, state: State) -> None:
        """Restore nothing."""


class PickAndPlace:
    """The Algorithm: ``update`` shows a batch to SAC as its view has it."""

    def __init__(self, rl: MultiTaskSAC, view: PickView, policy: AnyPickPolicy) -> None:
        self._rl, self._view, self.policy = rl, view, policy
        self.num_updates = 0
        self.progress = 0.0

    @property
    def needs(self) -> BatchSpec:
        """What SAC needs."""
        return self._rl.needs

    def update(self, batch: Batch) -> Metrics:
        """Learn from a batch."""
        self._rl.progress = self.progress
        learned = self._rl.update(self._view(batch))
        self.num_updates = self._rl.num_updates
        return learned

    def state(self) -> State:
        """Return everything the next update depends on; the policy is where SAC's is."""
        return {**self._rl.state(), "view": self._view.state()}

    def load(self, state: State) -> None:
        """Restore what ``state`` returned."""
        self._rl.load(state)
        self._view.load(state["view"])
        self.num_updates = self._rl.num_updates

    def messages(self) -> list[str]:
        """Return what happened to helper processes, one line each."""
        return self._rl.messages()

    def close(self) -> None:
        """Stop SAC's helper processes."""
        self._rl.close()


def habit_of(cfg: PickConfig) -> PickOptions:
    """Return how the policy of a config picks."""
    is_mvp = cfg.pick == "mvp"
    return PickOptions(
        copies=cfg.pick_copies,
        best=is_mvp,
        fraction=cfg.top_fraction,
        best_exploring=is_mvp and cfg.pick_in_training == "mvp",
        fraction_exploring=cfg.training_top_fraction,
    )


def actor_kind(cfg: PickConfig, picks: PickLayout) -> ActorKind:
    """Return what kind of actor picks and places by itself."""
    in_turn = cfg.pick == "autoregressive"
    return ActorKind(picks.dim, picks.is_choice, in_turn, cfg.choice_temperature)


def target_entropy(cfg: PickConfig, picks: PickLayout, spec: EnvSpec) -> float | None:
    """Return the entropy that such an actor is held at; a choice has half of what it can have at most."""
    if cfg.sac.target_entropy is not None or not picks.is_choice:
        return cfg.sac.target_entropy
    return 0.5 * math.log(picks.num) - (spec.action_dim - picks.dim)


def make_pick(cfg: PickConfig, spec: EnvSpec, seed: int, device: str = "cpu") -> PickAndPlace:
    """Return the algorithm of a config."""
    picks = PickLayout.of(spec)
    if cfg.places_only:
        rl = MultiTaskSAC(cfg.sac, picks.placing(spec, cfg.pick_copies), 1, seed, device)
        policy = PickPolicy(rl.policy, spec, habit_of(cfg), rl.critic_weights)
        return PickAndPlace(rl, Placing(picks, cfg.pick_copies, seed), policy)
    kind = actor_kind(cfg, picks)
    sac = dataclasses.replace(cfg.sac, target_entropy=target_entropy(cfg, picks, spec))
    rl = MultiTaskSAC(sac, picks.unaided(spec), 1, seed, device, actor=kind)
    return PickAndPlace(rl, Unaided(picks), JointPolicy(rl.policy, spec))


def policy_of_picks(cfg: PickConfig, spec: EnvSpec, state: State) -> AnyPickPolicy:
    """Return the policy of a saved state of the algorithm."""
    picks = PickLayout.of(spec)
    inner = picks.placing(spec, cfg.pick_copies) if cfg.places_only else picks.unaided(spec)
    actor = ActorPolicy.from_state(state["policy"], inner)
    actor.version = int(state["num_updates"])
    if not cfg.places_only:
        return JointPolicy(actor, spec)
    layout = Layout({name: tuple(value.shape) for name, value in state["critics"].items()})
    critics = layout.views(layout.zeros())
    restore(critics, state["critics"], "critics")
    return PickPolicy(actor, spec, habit_of(cfg), critics)


def make(setup: Setup) -> PickAndPlace:
    """Return the algorithm for a run."""
    return make_pick(setup.config, setup.spec, setup.seed, setup.device)


def load_policy(setup: Setup, state: State) -> AnyPickPolicy:
    """Return the policy of a saved state."""
    return policy_of_picks(setup.config, setup.spec, state)
