"""``planar/reach``: a suite of its own, with options, auxiliary tasks and an expert.

A planar arm of two links is led by joint speeds; its tip shall reach a goal that is drawn for each episode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from roboloop.core.types import Array, State
from roboloop.envs.config import EnvConfig
from roboloop.envs.env import EpisodeEnv, Outcome, Task, repeated
from roboloop.envs.suite import Suite

REACHED_M = 0.1
PERIOD_S = 0.1
STEPS = 50
TIP, GOAL = slice(4, 6), slice(6, 8)
"""Where tip and goal are in an observation."""


@dataclass(frozen=True)
class PlanarEnvConfig(EnvConfig):
    """Keys of the planar arm; each is a flag ``--env.KEY``."""

    link_m: float = 0.5
    """Length of each link."""
    max_speed_rad_s: float = 2.0
    """Joint speed of an action of 1."""


class Planar:
    """The arm and its goal."""

    def __init__(self, cfg: PlanarEnvConfig) -> None:
        self._link_m, self._max_speed_rad_s = cfg.link_m, cfg.max_speed_rad_s
        self._q, self._goal = np.zeros(2), np.zeros(2)

    def reset(self, seed: int) -> Array:
        """Draw pose and goal."""
        rng = np.random.default_rng(seed)
        self._q = rng.uniform(-np.pi, np.pi, 2)
        angle, radius = rng.uniform(-np.pi, np.pi), self._link_m * rng.uniform(0.5, 1.8)
        self._goal = radius * np.array([np.cos(angle), np.sin(angle)])
        return self._obs()

    def step(self, action: Array, repeat: int) -> Outcome:
        """Hold joint speeds for some periods."""
        return repeated(self._tick, action, repeat)

    def _tick(self, action: Array) -> Outcome:
        self._q = self._q + PERIOD_S * self._max_speed_rad_s * np.asarray(action, float)
        obs = self._obs()
        distance_m = float(np.linalg.norm(obs[TIP] - obs[GOAL]))
        return Outcome(obs, -distance_m, False, False, float(distance_m < REACHED_M))

    def _obs(self) -> Array:
        q = np.array([self._q[0], self._q.sum()])
        tip = self._link_m * np.array([np.cos(q).sum(), np.sin(q).sum()])
        return np.concatenate((np.cos(q), np.sin(q), tip, self._goal)).astype(np.float32)

    def render(self) -> Array:
        """Return both links (white) and the goal (green)."""
        picture = np.zeros((96, 96, 3), np.uint8)
        q = np.array([self._q[0], self._q.sum()])
        elbow = self._link_m * np.array([np.cos(q[0]), np.sin(q[0])])
        tip = elbow + self._link_m * np.array([np.cos(q[1]), np.sin(q[1])])
        along = np.linspace(0, 1, 48)[:, None]
        for points, color in ((np.vstack((along * elbow, elbow + along * (tip - elbow))), (255, 255, 255)),
                              (self._goal[None], (0, 255, 0))):  # fmt: skip
            at = np.clip(48 + 44 * points / (2 * self._link_m), 1, 94).astype(int)
            for x, y in at:
                picture[95 - y : 97 - y, x : x + 2] = color
        return picture

    def get_state(self) -> State:
        """Return pose and goal."""
        return {"q": self._q.copy(), "goal": self._goal.copy()}

    def set_state(self, state: State) -> None:
        """Restore pose and goal."""
        self._q, self._goal = np.array(state["q"]), np.array(state["goal"])

    def close(self) -> None:
        """Hold nothing."""


def make(task: str, cfg: PlanarEnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``planar/reach``: the arm with an episode's clock."""
    bound, f32 = np.ones(2, np.float32), np.dtype(np.float32)
    protocol = {"suite": "planar 0.1", "task": task, "link_m": cfg.link_m, "max_speed_rad_s": cfg.max_speed_rad_s}
    horizon = cfg.horizon(STEPS, evaluation)
    names = tuple(tasks(task, cfg))
    return EpisodeEnv(Planar(cfg), Task((8,), f32, -bound, bound, horizon, cfg.action_repeat, protocol, tasks=names))


def tasks(task: str, cfg: PlanarEnvConfig) -> dict[str, Callable[[Array, Array, Array], tuple[Array, Array]]]:
    """Return the main task and two auxiliary ones: rewards and successes as functions of N transitions."""

    def within(radius_m: float) -> Callable[[Array, Array, Array], tuple[Array, Array]]:
        def judge(obs: Array, action: Array, next_obs: Array) -> tuple[Array, Array]:
            is_there = np.linalg.norm(next_obs[:, TIP] - next_obs[:, GOAL], axis=1) < radius_m
            return is_there.astype(np.float32), is_there

        return judge

    def still(obs: Array, action: Array, next_obs: Array) -> tuple[Array, Array]:
        speed = np.abs(action).max(1)
        return 1 - speed, speed < 0.1

    return {task: within(REACHED_M), "near": within(3 * REACHED_M), "still": still}


def expert(task: str, name: str = "") -> Callable[[Array], Array]:
    """Return the expert of the main task or of an auxiliary one: a function from observations to actions."""

    def lead(obs: Array) -> Array:
        """Move the tip toward the goal by the damped inverse of the Jacobian."""
        tip, link = obs[:, TIP], _second_link(obs)
        jacobian = np.stack((-tip[:, 1], tip[:, 0], -link[:, 1], link[:, 0]), 1).reshape(-1, 2, 2).transpose(0, 2, 1)
        square = jacobian.transpose(0, 2, 1) @ jacobian + 0.01 * np.eye(2)
        speed = np.linalg.solve(square, jacobian.transpose(0, 2, 1) @ (obs[:, GOAL] - tip)[:, :, None])[:, :, 0]
        return np.clip(2.5 * speed, -1, 1).astype(np.float32)

    def rest(obs: Array) -> Array:
        return np.zeros((len(obs), 2), np.float32)

    return rest if name == "still" else lead


def _second_link(obs: Array) -> Array:
    """Return the vector from elbow to tip; its direction is in the observation, its length is half of the reach."""
    direction = np.stack((obs[:, 1], obs[:, 3]), 1)
    both = np.stack((obs[:, 0] + obs[:, 1], obs[:, 2] + obs[:, 3]), 1)
    length = np.linalg.norm(obs[:, TIP], axis=1) / np.maximum(np.linalg.norm(both, axis=1), 1e-6)
    return length[:, None] * direction


SUITE = Suite("planar", make, ("reach",), PlanarEnvConfig, tasks=tasks, expert=expert)
