"""Policies whose action is a pick and a displacement: the pick is drawn, or chosen by what placing it is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from roboloop.algos.picks import PICKS, Picks, at
from roboloop.algos.policy import ActionScale, ActorPolicy
from roboloop.core.blueprint import WithoutWeights, kind_of
from roboloop.core.state import spec_from_data, spec_to_data
from roboloop.core.types import Array, Decision, EnvSpec
from roboloop.nets.flat import Layout, Views, under
from roboloop.nets.layers import Scratch
from roboloop.nets.mlp import Ensemble, MLPSpec


@dataclass(frozen=True)
class Habit:
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


class Chooser(Protocol):
    """Chooses one of each observation's candidates."""

    def choose(self, obs: Array, rng: np.random.Generator) -> Array:
        """Return the number of a candidate for each observation ``[N]``."""
        ...


class Uniform:
    """Draws evenly."""

    def choose(self, obs: Array, rng: np.random.Generator) -> Array:
        """Return any candidate."""
        return rng.integers(obs[PICKS].shape[1], size=len(obs))


class Worth:
    """What placing each candidate is worth: min_i Q_i(o + p, tanh mean(o + p)), for any number of observations."""

    def __init__(self, critics: Views, actor: ActorPolicy, picks: Picks, placing: EnvSpec, copies: int) -> None:
        self.critics = critics
        # the actor's rows change between one and all candidates: each has memory of its own
        self._actor = ActorPolicy(actor.weights, placing, actor.norm)
        self._scale, self._picks, self._copies = ActionScale(placing), picks, copies
        self._net = MLPSpec.of(under("0", critics))
        self._size = 1 + max(int(name.split(".")[0]) for name in critics)
        self._rows = 0

    def __call__(self, obs: Array) -> Array:
        """Return values ``[N, K]`` of all candidates of observations ``[N]``."""
        count, num = len(obs), self._picks.num
        candidates = obs[PICKS].reshape(count * num, -1)
        seen = self._picks.with_pick(np.repeat(obs, num), candidates, self._copies)
        memory = np.zeros((len(seen), 0), np.float32)
        move = self._scale.to_unit(self._actor.act(seen, memory, False, np.random.default_rng(0)).action)
        x = np.concatenate((self._actor.norm(seen), move), axis=1)
        if len(x) != self._rows:
            scratch = Scratch(next(iter(self.critics.values())).device)
            self._ensemble = Ensemble(self._net, self._size, self.critics, None, len(x), scratch)
            self._rows = len(x)
        values: Array = self._ensemble.forward(torch.from_numpy(x)).amin(0).numpy().reshape(count, num)
        return values


class Best:
    """Chooses what is worth most, or draws among the best few."""

    def __init__(self, worth: Worth, fraction: float) -> None:
        self._worth, self._fraction = worth, fraction

    def choose(self, obs: Array, rng: np.random.Generator) -> Array:
        """Return one of the best candidates."""
        return among_best(self._worth(obs), self._fraction, rng)


def among_best(values: Array, fraction: float, rng: np.random.Generator) -> Array:
    """Return a column of each row of values ``[N, K]``: the greatest, or any of the greatest share."""
    few = max(1, round(fraction * values.shape[1]))
    if few == 1:
        best: Array = values.argmax(1)
        return best
    order = np.argsort(-values, axis=1, kind="stable")[:, :few]
    return at(order, rng.integers(few, size=len(values)))


class PickPolicy:
    """Picks among the candidates that it is offered, and has an actor place what was picked."""

    memory_size = 0

    def __init__(self, actor: ActorPolicy, spec: EnvSpec, habit: Habit, critics: Views | None = None) -> None:
        """Act in an environment of this spec; critics are needed to choose the best."""
        self.actor, self._spec, self._habit = actor, spec, habit
        self._picks = Picks.of(spec)
        self._scale = ActionScale(spec)
        self._critics = critics if habit.best or habit.best_exploring else None
        self._layout = Layout({name: tuple(view.shape) for name, view in (self._critics or {}).items()})
        self._chooser: Chooser = Uniform()
        self._exploring: Chooser = Uniform()
        if self._critics is not None:
            placing = self._picks.placing(spec, habit.copies)
            worth = Worth(self._critics, actor, self._picks, placing, habit.copies)
            self._chooser = Best(worth, habit.fraction) if habit.best else self._chooser
            self._exploring = Best(worth, habit.fraction_exploring) if habit.best_exploring else self._exploring

    @property
    def version(self) -> int:
        """Which weights these are."""
        return self.actor.version

    @version.setter
    def version(self, version: int) -> None:
        self.actor.version = version

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Return picks and displacements, ``[B, P + D]``."""
        chosen = (self._exploring if explore else self._chooser).choose(obs, rng)
        pick = at(obs[PICKS], chosen).astype(np.float32)
        said = self.actor.act(self._picks.with_pick(obs, pick, self._habit.copies), memory, explore, rng)
        return said._replace(action=np.concatenate((pick, said.action), axis=1))

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
        return cls(actor, spec_from_data(data["spec"]), Habit(**data["habit"]), critics or None)

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


class JointPolicy:
    """An actor that picks by itself: candidates are not looked at."""

    memory_size = 0

    def __init__(self, actor: ActorPolicy, spec: EnvSpec) -> None:
        self.actor, self._spec, self._picks = actor, spec, Picks.of(spec)

    @property
    def version(self) -> int:
        """Which weights these are."""
        return self.actor.version

    @version.setter
    def version(self, version: int) -> None:
        self.actor.version = version

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

    @property
    def num_weights(self) -> int:
        """Length of the actor's flat weights."""
        return self.actor.num_weights

    def write_weights(self, out: Array) -> None:
        """Write the actor's."""
        self.actor.write_weights(out)

    def read_weights(self, flat: Array, version: int) -> None:
        """Take over what ``write_weights`` wrote."""
        self.actor.read_weights(flat, version)


class RandomPicks(WithoutWeights):
    """Any candidate, moved anywhere: for warm-up, since a place drawn evenly is mostly a miss."""

    def __init__(self, spec: EnvSpec) -> None:
        self._spec, self._dim = spec, Picks.of(spec).dim
        self._low, self._high = (np.asarray(b)[self._dim :] for b in (spec.action_low, spec.action_high))

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Return one random pick and displacement per observation."""
        pick = at(obs[PICKS], Uniform().choose(obs, rng))
        move = rng.uniform(self._low, self._high, (len(obs), len(self._low)))
        return Decision(np.concatenate((pick, move), axis=1).astype(np.float32), memory)

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        return {"kind": kind_of(self), "spec": spec_to_data(self._spec)}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> RandomPicks:
        """Build the same policy anew."""
        return cls(spec_from_data(data["spec"]))
