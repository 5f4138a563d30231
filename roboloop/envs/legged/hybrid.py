"""Hybrid simulators: a legged robot in an engine whose contact and motors are set anew at every control step.

``hybrid/<robot>-<engine>``: the action is those parameters, while a frozen behaviour policy moves the robot. Whoever
learns to act here so that transitions look like another world's has learned the gap between the two.
``tuned/<robot>-<engine>``: the action is the robot's, and frozen generators that were learned so set the parameters.
"""

from __future__ import annotations

import numpy as np

from roboloop.core.errors import ConfigError
from roboloop.core.rng import stream
from roboloop.core.types import Array
from roboloop.envs.env import FLOAT, EpisodeEnv, Outcome, Task, repeated
from roboloop.envs.frozen import FrozenPolicy
from roboloop.envs.legged.make import find_robot, make_world, protocol
from roboloop.envs.legged.suite import HybridEnvConfig
from roboloop.envs.legged.world import HORIZON, LeggedTask, LeggedWorld
from roboloop.envs.replay import ReplayWorld


def view_of_generator(obs: Array, action: Array, state_dim: int) -> Array:
    """Return what a generator sees: older states if there are any, the newest one, what the robot is about to do."""
    return np.concatenate((obs[state_dim:], obs[:state_dim], action))


class _Around(ReplayWorld):
    """A world around a robot's."""

    def __init__(self, robot: LeggedWorld, action_dim: int) -> None:
        super().__init__(action_dim)
        self._robot = robot

    def render(self) -> Array:
        """Return the robot's picture."""
        return self._robot.render()

    def close(self) -> None:
        """Release the engine."""
        self._robot.close()


class HybridWorld(_Around):
    """A robot that moves by itself, in an engine whose parameters are the action; pays nothing."""

    def __init__(self, robot: LeggedWorld, behaviour: FrozenPolicy) -> None:
        super().__init__(robot, robot.num_parameters)
        self._behaviour = behaviour

    def start(self, seed: int) -> Array:
        """Start the robot's episode of this seed."""
        self._rng = stream(seed, "behaviour")
        return self._seen(self._robot.start(seed))

    def _seen(self, obs: Array) -> Array:
        """Let the robot decide what to do next, and return what the generator sees."""
        self._pending = self._behaviour.act(obs, self._rng)
        return view_of_generator(obs, self._pending, self._robot.task.state_dim)

    def advance(self, action: Array, repeat: int) -> Outcome:
        """Let the robot do what it decided, with these parameters."""
        return repeated(self._tick, action, repeat)

    def _tick(self, parameters: Array) -> Outcome:
        self._robot.set_parameters(parameters)
        out = self._robot.advance(self._pending, 1)
        # the robot's own return says how far the hybrid simulator is from the target's, but is not learned from
        return out._replace(obs=self._seen(out.obs), reward=0.0, raw_reward=out.reward)


class TunedWorld(_Around):
    """The robot's own task in an engine whose parameters frozen generators set; each control step draws one of them."""

    def __init__(self, robot: LeggedWorld, generators: list[FrozenPolicy]) -> None:
        super().__init__(robot, robot.model.num_joints)
        self._generators = generators

    def start(self, seed: int) -> Array:
        """Start the robot's episode of this seed."""
        self._rng = stream(seed, "generators")
        self._obs = self._robot.start(seed)
        return self._obs

    def advance(self, action: Array, repeat: int) -> Outcome:
        """Let the robot act, with parameters that are drawn as they were while the generators learned."""
        return repeated(self._tick, action, repeat)

    def _tick(self, action: Array) -> Outcome:
        generator = self._generators[self._rng.integers(len(self._generators))]
        view = view_of_generator(self._obs, action, self._robot.task.state_dim)
        self._robot.set_parameters(generator.act(view, self._rng))
        out = self._robot.advance(action, 1)
        self._obs = out.obs
        return out


def _robot(task: str, cfg: HybridEnvConfig) -> tuple[LeggedTask, str, LeggedWorld]:
    name, _, rest = task.partition("-")
    robot = find_robot(name)
    if not rest:
        raise ConfigError(f"{task!r} names no engine, such as {name}-bullet")
    return robot, rest, make_world(robot, rest, cfg.legged)


def _loaded(path: str, key: str, obs_dim: int, action_dim: int) -> FrozenPolicy:
    if not path:
        raise ConfigError(f"env.hybrid.{key} must name a frozen policy: roboloop export RUN --frozen FILE makes one")
    policy = FrozenPolicy.load(path)
    sees, decides = policy.layers.obs_dim, policy.layers.action_dim
    if (sees, decides) != (obs_dim, action_dim):
        has = f"{sees} numbers and decides {decides}"
        raise ConfigError(f"env.hybrid.{key} {path} sees {has}; here {obs_dim} are seen and {action_dim} decided")
    return policy


def make(task: str, cfg: HybridEnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``hybrid/<robot>-<engine>``."""
    robot, rest, world = _robot(task, cfg)
    obs_dim, joints = robot.state_dim * len(robot.lags), robot.model.num_joints
    behaviour = _loaded(cfg.hybrid.behaviour, "behaviour", obs_dim, joints)
    said = {**protocol(robot, rest, cfg.legged), "state_dim": robot.state_dim, "robot_action_dim": joints}
    return _env(HybridWorld(world, behaviour), obs_dim + joints, world.num_parameters, cfg, evaluation, said)


def make_tuned(task: str, cfg: HybridEnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``tuned/<robot>-<engine>``."""
    robot, rest, world = _robot(task, cfg)
    obs_dim, joints = robot.state_dim * len(robot.lags), robot.model.num_joints
    paths = cfg.hybrid.generators or ("",)
    generators = [_loaded(path, "generators", obs_dim + joints, world.num_parameters) for path in paths]
    said = protocol(robot, rest, cfg.legged)
    return _env(TunedWorld(world, generators), obs_dim, joints, cfg, evaluation, said)


def _env(
    world: ReplayWorld,
    obs_dim: int,
    action_dim: int,
    cfg: HybridEnvConfig,
    evaluation: bool,
    said: dict[str, str | int | float | bool],
) -> EpisodeEnv:
    bound = np.ones(action_dim, np.float32)
    horizon = cfg.horizon(HORIZON, evaluation)
    return EpisodeEnv(world, Task((obs_dim,), FLOAT, -bound, bound, horizon, cfg.action_repeat, said))
