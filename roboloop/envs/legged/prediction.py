"""How well a simulator predicts what happened elsewhere: from a recorded state, with the recorded actions.

The robot is put where a recorded state says, k recorded actions are replayed, and what the simulator then shows is
compared with what was recorded. Every k steps it is put back on the record, never does it run past an episode's end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from roboloop.core.types import Array
from roboloop.envs.legged.clearance import lowest_m, raised
from roboloop.envs.legged.model import GRAVITY_M_S2
from roboloop.envs.legged.world import LeggedWorld

Parameters: TypeAlias = Callable[[Array, Array], Array]
"""From the robot's observation and what it is about to do to the simulator's parameters t."""

BEARABLE_WEIGHTS = 3.0
"""The floor's spring may push with so many times the robot's weight where a robot is put down: about what a running
animal's leg bears."""


class Recorded(NamedTuple):
    """One episode of a target."""

    states: Array
    """[L + 1, D], noisy or not: the last is the true final one."""
    actions: Array
    """[L, A] as they were taken, within bounds."""


class Start(NamedTuple):
    """A recorded moment, and what came of it."""

    states: Array
    """[N, D] up to this moment, as far as an observation looks back; the newest is the last."""
    q: Array
    dq: Array
    lowest_m: float
    """Height of the robot's lowest point; noise may have put it into the floor."""
    actions: Array
    """[k, A] that followed."""
    after: Array
    """[D] shown after them."""


@dataclass(frozen=True)
class Errors:
    """How far predictions over some control steps are from what was recorded."""

    steps: int
    count: int
    """Predictions; nothing is known where there are none."""
    rmse: Array
    """Of each number of the state, [D]."""
    normalised: float
    """Root mean square over all numbers, each in units of its deviation over the data."""
    median: float
    """The same of single predictions, the middle one: blind to the few that go entirely wrong."""
    l1: float
    """Sum of the absolute differences, averaged over predictions."""


def starts(world: LeggedWorld, episodes: Sequence[Recorded], steps: int) -> list[Start]:
    """Return each k-th moment of episodes after which k steps are recorded."""
    looks_back = max(world.task.lags)
    found = []
    for states, actions in episodes:
        for t in range(0, len(actions) - steps + 1, steps):
            q, dq = world.task.pose(states[t])
            seen = states[max(0, t - looks_back) : t + 1]
            low_m = lowest_m(world.model, q)
            found.append(Start(seen, q, dq, low_m, actions[t : t + steps], states[t + steps]))
    return found


def deviation(episodes: Sequence[Recorded]) -> Array:
    """Return how much each number of the states varies over the data; what never varies counts as it is."""
    spread: Array = np.concatenate([episode.states for episode in episodes]).std(0, dtype=float)
    return np.where(spread > 1e-6, spread, 1.0)


def predict(world: LeggedWorld, moments: Sequence[Start], parameters: Parameters | None = None) -> Array:
    """Return what a simulator shows after each moment's actions, [N, D]; without parameters it stays as it is."""
    world.start(0)  # the parameters of whoever predicted before are forgotten
    predicted = np.empty((len(moments), world.task.state_dim))
    for row, moment in enumerate(moments):
        predicted[row] = _replayed(world, moment, parameters)
    return predicted


def _replayed(world: LeggedWorld, moment: Start, parameters: Parameters | None) -> Array:
    states = list(moment.states)
    for number, action in enumerate(moment.actions):
        if parameters is not None:
            world.set_parameters(parameters(_observation(states, world.task.lags), action))
        if number == 0:  # how deep a robot may be in the floor depends on the parameters
            put_down(world, moment)
        world.advance(action, 1)  # a robot that falls goes on falling: that is what is predicted
        states.append(world.true_state())
    return world.true_state()


def _observation(states: list[Array], lags: tuple[int, ...]) -> Array:
    newest = len(states) - 1
    return np.concatenate([states[max(0, newest - lag)] for lag in lags])


def put_down(world: LeggedWorld, moment: Start) -> None:
    """Put the robot where it was, but no deeper in the floor than the floor can bear without shooting it up."""
    hardest_n_m = max(contact.stiffness_n_m for contact in world.contacts)
    weight_n = world.model.mass_kg * abs(GRAVITY_M_S2)
    # a floor without a spring pushes nobody up
    deepest_m = BEARABLE_WEIGHTS * weight_n / hardest_n_m if hardest_n_m else np.inf
    too_deep_m = max(0.0, -deepest_m - moment.lowest_m)
    world.restore(raised(world.model, moment.q, too_deep_m), moment.dq)


def standstill(moments: Sequence[Start]) -> Array:
    """Return the prediction that nothing changes, which a simulator should beat."""
    return np.stack([moment.states[-1] for moment in moments])


def errors(predicted: Array, moments: Sequence[Start], scale: Array, steps: int) -> Errors:
    """Compare predictions with what was recorded."""
    if not moments:
        return Errors(steps, 0, np.full(len(scale), np.nan), np.nan, np.nan, np.nan)
    gaps = predicted - np.stack([moment.after for moment in moments])
    squares = (gaps / scale) ** 2
    return Errors(
        steps=steps,
        count=len(moments),
        rmse=np.sqrt((gaps**2).mean(0)),
        normalised=float(np.sqrt(squares.mean())),
        median=float(np.sqrt(np.median(squares.mean(1)))),
        l1=float(np.abs(gaps).sum(1).mean()),
    )
