"""How well a simulator predicts what happened elsewhere: from a recorded state, with the recorded actions.

The robot is put where a recorded state says, k recorded actions are replayed, and what the simulator then shows is
compared with what was recorded. Every k steps it is put back on the record, never does it run past an episode's end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
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


class Pose(NamedTuple):
    """Where a recorded state puts the robot."""

    q: Array
    dq: Array
    lowest_m: float
    """Height of the robot's lowest point; noise may have put it into the floor."""


class Start(NamedTuple):
    """A recorded moment, and what came of it."""

    states: Array
    """[N, D] up to this moment, as far as the observations of the steps before look back; the newest is the last."""
    pose: Pose
    before: tuple[tuple[Pose, Array], ...]
    """Where the robot was in the steps before, and what it did then, oldest first; none where an episode begins."""
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
    found, looks_back = [], max(world.task.lags)
    for states, actions in episodes:
        pose_at = cache(partial(_pose, world, states))
        for t in range(0, len(actions) - steps + 1, steps):
            # one step tells a mean speed from the speed; who shows older states may show no speeds at all
            first = max(0, t - 1 - looks_back)
            seen = states[max(0, first - looks_back) : t + 1]
            before = tuple((pose_at(i), actions[i]) for i in range(first, t))
            found.append(Start(seen, pose_at(t), before, actions[t : t + steps], states[t + steps]))
    return found


def _pose(world: LeggedWorld, states: Array, t: int) -> Pose:
    q, dq = world.task.pose(states[t])
    return Pose(q, dq, lowest_m(world.model, q))


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
    pose = moment.pose._replace(dq=moment.pose.dq + _unsaid(world, moment, parameters))
    states = list(moment.states)
    for number, action in enumerate(moment.actions):
        _ask(world, states, action, parameters)
        if number == 0:  # how deep a robot may be in the floor depends on the parameters
            put_down(world, pose)
        world.advance(action, 1)  # a robot that falls goes on falling: that is what is predicted
        states.append(world.true_state())
    return world.true_state()


def _unsaid(world: LeggedWorld, moment: Start, parameters: Parameters | None) -> Array:
    """Return what dq a state leaves unsaid, as the simulator itself has it after the recorded steps before.

    A state may give a mean speed over the last control step, which is not the speed at its end, or no speed at all.
    What is missing follows from the forces of the steps before, hardly from where each began, so that noise does little
    to it: the robot is put back on the record after each of them, and keeps what the record does not say.
    """
    unsaid: Array = np.zeros_like(moment.pose.dq)
    first = len(moment.states) - 1 - len(moment.before)
    for number, (pose, action) in enumerate(moment.before):
        _ask(world, list(moment.states[: first + number + 1]), action, parameters)
        put_down(world, pose._replace(dq=pose.dq + unsaid))
        world.advance(action, 1)
        unsaid = world.frame().dq - world.task.pose(world.true_state())[1]
    return unsaid


def _ask(world: LeggedWorld, states: list[Array], action: Array, parameters: Parameters | None) -> None:
    """Set the parameters for the action to come."""
    if parameters is None:
        return
    newest = len(states) - 1
    obs = np.concatenate([states[max(0, newest - lag)] for lag in world.task.lags])
    world.set_parameters(parameters(obs, action))


def put_down(world: LeggedWorld, pose: Pose) -> None:
    """Put the robot there, but no deeper in the floor than the floor can bear without shooting it up."""
    hardest_n_m = max(contact.stiffness_n_m for contact in world.contacts)
    weight_n = world.model.mass_kg * abs(GRAVITY_M_S2)
    # a floor without a spring pushes nobody up
    deepest_m = BEARABLE_WEIGHTS * weight_n / hardest_n_m if hardest_n_m else np.inf
    too_deep_m = max(0.0, -deepest_m - pose.lowest_m)
    world.restore(raised(world.model, pose.q, too_deep_m), pose.dq)


def standstill(moments: Sequence[Start]) -> Array:
    """Return the prediction that nothing changes, which a simulator should beat."""
    return np.array([moment.states[-1] for moment in moments])


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
