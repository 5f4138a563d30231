"""Settings of adversarial dynamics: learn a simulator's parameters until its transitions pass for a target's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from roboloop.algos.gail.discriminator_config import DiscriminatorConfig
from roboloop.algos.learner.config import check_split
from roboloop.algos.limits import at_least_one, not_negative
from roboloop.algos.ppo.config import PPOConfig, ppo_of
from roboloop.algos.spec import AlgorithmSpec
from roboloop.core.errors import ConfigError

Padding = Literal["repeat", "mask"]


@dataclass(frozen=True)
class TargetConfig:
    """What happened in the target: a dataset of the robot's own observations and actions, made by roboloop record."""

    directory: str = ""
    """The dataset."""
    episodes: int = 0
    """Episodes that are used, the first ones; 0 = all."""
    held_out: float = 0.1
    """Share of the episodes that nothing is learned from, to judge by; 0 = none."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible."""
        if not self.directory:
            raise ConfigError("config key 'algo.target.directory' is needed: roboloop record makes such a dataset")
        if self.episodes < 0 or not 0 <= self.held_out < 1:
            raise ConfigError("config key 'algo.target.episodes' must not be negative, 'held_out' is a share below 1")


def _generator() -> PPOConfig:
    return PPOConfig(
        hidden=(100, 100), state_dependent_std=True, initial_std=math.exp(-0.5), rollout_steps=1000, epochs=10,
        minibatches=16, normalize_obs=True, normalize_returns=True,
    )  # fmt: skip


def _judge() -> DiscriminatorConfig:
    return DiscriminatorConfig(hidden=(100, 100), use_action=False, lr=1e-3, weight_decay=0.0, ends="alive")


@dataclass(frozen=True)
class DynamicsConfig:
    """PPO on a discriminator of transitions, in an environment whose action is a simulator's parameters."""

    name: Literal["dynamics"] = "dynamics"
    """Which algorithm this section configures."""
    ppo: PPOConfig = field(default_factory=_generator)
    """What learns the parameters, as a policy over states and the robot's actions."""
    discriminator: DiscriminatorConfig = field(default_factory=_judge)
    """What pays it; it sees windows alone, in which the robot's actions are."""
    target: TargetConfig = field(default_factory=TargetConfig)
    """What is to be reproduced."""
    state_lags: tuple[int, ...] = (0,)
    """Steps back of the states in a window, beside the one that follows the step."""
    action_lags: tuple[int, ...] = (0,)
    """Steps back of the robot's actions in a window."""
    padding: Padding = "repeat"
    """What stands for steps before an episode began: 'repeat' its first one, or 'mask' such windows, which are then
    neither learned from nor paid."""
    ahead: int = 0
    """Steps that a window looks ahead beyond the one that it is about; it is then that step that is paid."""
    after_end: tuple[float, ...] = ()
    """With ``ahead``: the state that stands for all time after the end of the world, actions there are 0; empty = 0."""
    discriminator_updates: int = 310
    """Steps of the discriminator on each rollout, before it is paid for."""
    discriminator_batch: int = 128
    """Windows of the simulator in each of these, and as many of the target."""
    replay_rollouts: int = 1
    """Latest rollouts that the simulator's windows are drawn from."""

    @property
    def processes(self) -> int:
        """Processes that compute shards."""
        return self.ppo.processes

    @property
    def max_lag(self) -> int:
        """Steps that a window reaches back."""
        return max((*self.state_lags, *self.action_lags), default=0)

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        self.ppo.check()
        self.discriminator.check()
        self.target.check()
        at_least_one(self, "discriminator_updates", "discriminator_batch", "replay_rollouts")
        not_negative(self, "ahead")
        for name in ("state_lags", "action_lags"):
            lags = getattr(self, name)
            if min(lags, default=0) < 0 or len(set(lags)) < len(lags):
                raise ConfigError(f"config key 'algo.{name}' counts steps back, each once: not {list(lags)}")
        if self.after_end and not self.ahead:
            raise ConfigError("config key 'algo.after_end' is for windows with algo.ahead")
        if not 0 < self.ppo.gamma < 1:
            raise ConfigError(f"dynamics needs algo.ppo.gamma between 0 and 1, not {self.ppo.gamma}")
        if self.discriminator.use_action:
            raise ConfigError(
                "with algo 'dynamics' leave discriminator.use_action off: windows hold the robot's actions"
            )


def _check_lags(experiment: Any) -> None:
    """Refuse rollouts that do not hold all environments in order where windows reach back."""
    check_split(experiment)
    env, sample, batch = experiment.env, experiment.sample, experiment.rollout.batch_envs
    if experiment.algo.max_lag and not sample.rollout_envs(env.num_envs) == {batch or env.num_envs} == {env.num_envs}:
        raise ConfigError("windows with lags look back on the rollout before: they need all envs in each, in order")


SPEC = AlgorithmSpec(
    "dynamics", DynamicsConfig, "rollouts", "roboloop.algos.simgan.dynamics:make", "roboloop.algos.ppo.ppo:load_policy",
    frame_stack=False, rollout=ppo_of, check=_check_lags,
)  # fmt: skip
