"""Policies whose action is a pick and a displacement: the pick is drawn, or chosen by what placing it is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from roboloop.algos.pick.picks import PickLayout, at
from roboloop.algos.policy import ActionScale, ActorPolicy, ActsThrough, squashed
from roboloop.core.blueprint import WithoutWeights, kind_of
from roboloop.core.fields import PICKS
from roboloop.core.state import spec_from_data, spec_to_data
from roboloop.core.types import Array, Decision, EnvSpec
from roboloop.nets.flat import Layout, Views, under
from roboloop.nets.layers import Scratch
from roboloop.nets.mlp import MLPSpec
from roboloop.nets.trunk import TrunkSpec


@dataclass(frozen=True)
class PickOptions:
    """How a policy picks."""

    copies: int = 1
    """How often the actor sees the pick."""
    best: bool = False
    """Whether to choose what is worth most when not exploring; else candidates are drawn."""
    fraction: float = 0.0
    """Share of the best candidates among which to choose; 0 = the best one."""
    best_exploring: bool = False
    """Whether to choose when exploring too."""
    fraction_exploring: float = 0.0


class Hand(Protocol):
    """Chooses one of each observation's candidates, and where to place it."""

    def decide(self, obs: Array, explore: bool, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the number of a candidate ``[N]`` and its displacement in [-1, 1], ``[N, D]``."""
        ...


class Uniform:
    """Draws candidates evenly, and has the actor place them."""

    def __init__(self, actor: ActorPolicy, picks: PickLayout, placing: EnvSpec, copies: int) -> None:
        self._actor, self._picks, self._copies = actor, picks, copies
        self._scale = ActionScale(placing)

    def decide(self, obs: Array, explore: bool, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return any candidate."""
        chosen = drawn_evenly(obs, rng)
        seen = self._picks.with_pick(obs, at(obs[PICKS], chosen), self._copies)
        memory = np.zeros((len(obs), 0), np.float32)
        return chosen, self._scale.to_unit(self._actor.act(seen, memory, explore, rng).action)


def drawn_evenly(obs: Array, rng: np.random.Generator) -> Array:
    """Return the number of one candidate for each observation."""
    return rng.integers(obs[PICKS].shape[1], size=len(obs))


class CandidateValues(NamedTuple):
    """What is thought of all candidates."""

    values: Array  # [N, K]: min_i Q_i(o + p, tanh mean(o + p))
    outputs: Array  # [N, K, 2D]: the actor's mean and log std


class CandidateCritic:
    """Returns the value of placing each candidate; pictures are encoded once for all candidates."""

    def __init__(self, critics: Views, actor: ActorPolicy, picks: PickLayout, copies: int) -> None:
        self._critics, self._actor, self._picks, self._copies = critics, actor, picks, copies
        self._size = 1 + max(int(name.split(".")[0]) for name in critics if name[0].isdigit())
        self._rows = 0

    def __call__(self, obs: Array) -> CandidateValues:
        """Rate all candidates of observations ``[N]``."""
        rows, num, actor = len(obs), self._picks.num, self._actor
        if rows != self._rows:
            self._build(rows)
        numbers = torch.from_numpy(actor.norm(self._picks.numbers_with_candidates(obs, self._copies)))
        # all candidates of an observation have it in common: the first layers see it once
        seen, picked = numbers[::num, : self._picks.vector_dim], numbers[:, self._picks.vector_dim :]
        for_actor = for_critics = seen
        if actor.sight is not None:
            features = actor.sight.features(obs)
            for_actor, for_critics = (torch.cat((trunk.forward(features), seen), 1) for trunk in self._trunks)
        outputs = self._head.forward_shared(for_actor, picked)
        # the critics know squashed actions only: at the mean itself they would be asked what they never learned
        own = torch.cat((picked, outputs[:, : outputs.shape[1] // 2].tanh()), 1)
        values = torch.cat([head.forward_shared(for_critics, own) for head in self._heads], 1).amin(1)
        return CandidateValues(values.numpy().reshape(rows, num), outputs.numpy().reshape(rows, num, -1))

    def _build(self, rows: int) -> None:
        scratch, weights, sees = Scratch(), self._actor.weights, self._actor.sight is not None
        head = under("head", weights) if sees else weights
        self._head = MLPSpec.of(head).build(head, None, rows * self._picks.num, scratch, "actor")
        of_one = MLPSpec.of(under("0", self._critics))
        self._heads = [
            of_one.build(under(str(e), self._critics), None, rows * self._picks.num, scratch, f"critic{e}")
            for e in range(self._size)
        ]
        if sees:
            trunk = TrunkSpec.of(weights).trunk
            named = (("actor.trunk", weights), ("critics.trunk", self._critics))
            self._trunks = [trunk.build(under("trunk", w), None, rows, scratch, name) for name, w in named]
        self._rows = rows


class Best:
    """Chooses what is worth most, or draws among the best few."""

    def __init__(self, judge: CandidateCritic, fraction: float) -> None:
        self.judge, self._fraction = judge, fraction

    def decide(self, obs: Array, explore: bool, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return one of the best candidates."""
        judged = self.judge(obs)
        chosen = among_best(judged.values, self._fraction, rng)
        return chosen, squashed(at(judged.outputs, chosen), explore, rng)


def among_best(values: Array, fraction: float, rng: np.random.Generator) -> Array:
    """Return a column of each row of values ``[N, K]``: the greatest, or any of the greatest share."""
    few = max(1, round(fraction * values.shape[1]))
    if few == 1:
        best: Array = values.argmax(1)
        return best
    order = np.argsort(-values, axis=1, kind="stable")[:, :few]
    return at(order, rng.integers(few, size=len(values)))


class PickPolicy(ActsThrough):
    """Picks among the candidates that it is offered, and has an actor place what was picked."""

    memory_size = 0

    def __init__(self, actor: ActorPolicy, spec: EnvSpec, habit: PickOptions, critics: Views | None = None) -> None:
        """Act in an environment of this spec; critics are needed to choose the best."""
        self.actor, self._spec, self._habit = actor, spec, habit
        picks = PickLayout.of(spec)
        placing = picks.placing(spec, habit.copies)
        self._scale = ActionScale(placing)
        self._critics = critics if habit.best or habit.best_exploring else None
        self._layout = Layout({name: tuple(view.shape) for name, view in (self._critics or {}).items()})
        uniform = Uniform(actor, picks, placing, habit.copies)
        self._calm: Hand = uniform
        self._exploring: Hand = uniform
        if self._critics is not None:
            judge = CandidateCritic(self._critics, actor, picks, habit.copies)
            self._calm = Best(judge, habit.fraction) if habit.best else uniform
            self._exploring = Best(judge, habit.fraction_exploring) if habit.best_exploring else uniform

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Return picks and displacements, ``[B, P + D]``."""
        chosen, move = (self._exploring if explore else self._calm).decide(obs, explore, rng)
        pick = at(obs[PICKS], chosen).astype(np.float32)
        return Decision(np.concatenate((pick, self._scale.to_env(move)), axis=1), memory)

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        shapes = {name: list(shape) for name, shape in self._layout.shapes.items()}
        about = {"spec": spec_to_data(self._spec), "habit": vars(self._habit), "critics": shapes}
        return {"kind": kind_of(self), "actor": self.actor.blueprint(), **about}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> PickPolicy:
        """Build the same policy anew, with weights still to be read."""
        layout = Layout({name: tuple(shape) for name, shape in data["critics"].items()})
        actor, critics = ActorPolicy.from_blueprint(data["actor"]), layout.views(layout.zeros())
        return cls(actor, spec_from_data(data["spec"]), PickOptions(**data["habit"]), critics or None)

    @property
    def num_weights(self) -> int:
        """Length of the flat weights: the actor's, then those of critics that choose."""
        return self.actor.num_weights + self._layout.size

    def write_weights(self, out: Array) -> None:
        """Write actor and critics."""
        begin = self.actor.num_weights
        self.actor.write_weights(out[:begin])
        for name, view in self._layout.views(torch.from_numpy(out[begin:])).items():
            view.copy_((self._critics or {})[name])

    def read_weights(self, flat: Array, version: int) -> None:
        """Take over what ``write_weights`` wrote."""
        begin = self.actor.num_weights
        self.actor.read_weights(flat[:begin], version)
        for name, view in self._layout.views(torch.from_numpy(flat[begin:])).items():
            (self._critics or {})[name].copy_(view)


class JointPolicy(ActsThrough):
    """An actor that picks by itself: candidates are not looked at."""

    memory_size = 0

    def __init__(self, actor: ActorPolicy, spec: EnvSpec) -> None:
        self.actor, self._spec, self._picks = actor, spec, PickLayout.of(spec)

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Return the actor's actions."""
        return self.actor.act(self._picks.without(obs), memory, explore, rng)

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        return {"kind": kind_of(self), "actor": self.actor.blueprint(), "spec": spec_to_data(self._spec)}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> JointPolicy:
        """Build the same policy anew, with weights still to be read."""
        return cls(ActorPolicy.from_blueprint(data["actor"]), spec_from_data(data["spec"]))


class RandomPicks(WithoutWeights):
    """Any candidate, moved anywhere: for warm-up, since a place drawn evenly is mostly a miss."""

    def __init__(self, spec: EnvSpec) -> None:
        self._spec, self._dim = spec, PickLayout.of(spec).dim
        self._low, self._high = (np.asarray(b)[self._dim :] for b in (spec.action_low, spec.action_high))

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Return one random pick and displacement per observation."""
        pick = at(obs[PICKS], drawn_evenly(obs, rng))
        move = rng.uniform(self._low, self._high, (len(obs), len(self._low)))
        return Decision(np.concatenate((pick, move), axis=1).astype(np.float32), memory)

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        return {"kind": kind_of(self), "spec": spec_to_data(self._spec)}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> RandomPicks:
        """Build the same policy anew."""
        return cls(spec_from_data(data["spec"]))
