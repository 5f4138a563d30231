"""Guided play: soft actor-critic for K tasks of one environment, taught by somebody else than its rewards.

Taught by a discriminator, one task is DAC (arXiv:1809.02925) and several are LfGP (arXiv:2301.00051); by formulas of
the tasks' rewards it is SAC-X (arXiv:1802.10567), by examples of success VPACE, SQIL or RCE.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch

from roboloop.algos.gail.discriminator import Discriminator
from roboloop.algos.gail.losses import EpisodeCounts
from roboloop.algos.guided.config import AdversarialSettings, ExampleSettings, GuidedSettings, IntentionSettings
from roboloop.algos.guided.example_sac import ExampleSAC, ExampleSACConfig
from roboloop.algos.guided.intention_policy import IntentionPolicy, as_set, showing_task
from roboloop.algos.guided.teachers import DiscriminatorReward, EnvReward, ExampleReward, Formula, RewardSource, Teacher
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.learner.replay_learner import ReplayLearner
from roboloop.algos.mtsac.config import MTSACConfig
from roboloop.algos.mtsac.mtsac import MultiTaskSAC
from roboloop.algos.mtsac.multitask import reward_view
from roboloop.algos.sac.setup import make_sac
from roboloop.core.errors import ConfigError
from roboloop.core.types import Array, Batch, BatchSpec, EnvSpec, Metrics, Rollout, State
from roboloop.data.experts import ExpertBuffer
from roboloop.nets.observations import Fields

Newest = Callable[[int, int], Batch]
"""Returns the last so many steps of an environment's last episode."""


class GuidedPlay:
    """The Algorithm: ``update`` asks the teacher what a batch is worth to each task, and has SAC learn from that."""

    def __init__(self, rl: ReplayLearner, teacher: Teacher, policy: LearnerPolicy | IntentionPolicy) -> None:
        self._rl, self._teacher, self.policy = rl, teacher, policy
        self._is_set = isinstance(policy, IntentionPolicy)
        self.num_updates = 0
        self.progress = 0.0

    @property
    def needs(self) -> BatchSpec:
        """What SAC needs, for one task: each transition is learned from by all."""
        return self._rl.needs._replace(size=self._teacher.num_rows, num_tasks=1)

    def update(self, batch: Batch) -> Metrics:
        """Have the batch taught, and learn from it."""
        relabel, metrics = self._teacher.relabel(batch)
        self._rl.progress = self.progress
        if caps := self._teacher.value_caps:
            self._rl.trainer.views["bounds.cap"].copy_(torch.tensor(caps))
        learned = self._rl.update(self._rows(relabel))
        self._teacher.on_episode_end(learned)
        self.num_updates = self._rl.num_updates
        return {**learned, **metrics}

    def _rows(self, relabel: Batch) -> Batch:
        """Return ``[K, n, ...]`` as the rows of a batch that lies task by task."""
        num_tasks, n = relabel.reward.shape

        def shown(obs: Array) -> Array:
            flat = obs.reshape(num_tasks, n, -1)
            return showing_task(flat, np.repeat(np.arange(num_tasks), n).reshape(num_tasks, n), num_tasks)

        if self._is_set:
            relabel = relabel._replace(obs=shown(relabel.obs), next_obs=shown(relabel.next_obs))
        return Batch(*(column.reshape(num_tasks * n, *column.shape[2:]) for column in relabel))

    def on_episode_end(self, rollout: Rollout, newest: Newest) -> list[Metrics]:
        """Tell a scheduler that learns what was chosen in episodes that ended, and what it brought the main task.

        Returned are the shares of each episode in which each task acted.
        """
        shares: list[Metrics] = []
        if not isinstance(self.policy, IntentionPolicy):
            return shares
        intentions, scheduler = self.policy.intentions, self.policy.scheduler
        for end in rollout.episodes:
            # as it was before the last step: a choice that was made for that step alone is not judged
            memory = rollout.memory[end.env - rollout.first_env]
            choices = intentions.choices(memory)
            if end.lost or not choices:
                continue
            shares.append({f"choice/{task}": share for task, share in self.policy.shares(memory).items()})
            if scheduler.learns and isinstance(self._teacher, RewardSource):
                steps = newest(end.env, intentions.steps(memory) + 1)
                scheduler.tell(choices, self._teacher.rewards(steps)[0])
        return shares

    def state(self) -> State:
        """Return everything the next update depends on; the policy is where SAC's is."""
        scheduler = self.policy.scheduler.state() if isinstance(self.policy, IntentionPolicy) else {}
        return {**self._rl.state(), "teacher": self._teacher.state(), "scheduler": scheduler}

    def load(self, state: State) -> None:
        """Restore what ``state`` returned."""
        self._rl.load(state)
        self._teacher.load(state["teacher"])
        if isinstance(self.policy, IntentionPolicy):
            self.policy.scheduler.load(state["scheduler"])
        self.num_updates = self._rl.num_updates

    def messages(self) -> list[str]:
        """Return what happened to helper processes, one line each."""
        return self._rl.messages()

    def close(self) -> None:
        """Stop SAC's helper processes."""
        self._rl.close()


def make_guided(
    cfg: GuidedSettings,
    spec: EnvSpec,
    tasks: tuple[str, ...],
    told_by: ExpertBuffer | Formula,
    seed: int,
    device: str = "cpu",
) -> GuidedPlay:
    """Return the algorithm of a config for some of an environment's tasks, the main one first."""
    if Fields.of(spec, 1).pictures or spec.obs_dtype.names:
        raise ConfigError("guided play learns from one vector, not from pictures or other fields")
    if not isinstance(cfg, IntentionSettings):
        rl = make_sac(cfg.sac, spec, 1, seed, device)
        return GuidedPlay(rl, make_teacher(cfg, spec, tasks, told_by, seed), rl.policy)
    learner, own = learner_of(cfg, len(tasks))
    rl = ReplayLearner(learner, own, as_set(spec, tasks), 1, seed, device, reward_view(own, len(tasks)))
    teacher = make_teacher(cfg, spec, tasks, told_by, seed, rl.cfg.shards)
    return GuidedPlay(rl, teacher, IntentionPolicy(rl.policy, cfg.schedule, tasks, spec.max_episode_steps, seed))


def learner_of(cfg: IntentionSettings, num_tasks: int) -> tuple[type[MultiTaskSAC], MTSACConfig]:
    """Return the class that learns a set of tasks, each from all rows of a batch, and its own config."""
    if isinstance(cfg, ExampleSettings):
        return ExampleSAC, ExampleSACConfig.of(cfg, num_tasks)
    return MultiTaskSAC, dataclasses.replace(cfg.sac, batch_size=num_tasks * cfg.batch_size)


def make_teacher(
    cfg: GuidedSettings,
    spec: EnvSpec,
    tasks: tuple[str, ...],
    told_by: ExpertBuffer | Formula,
    seed: int,
    shards: int = 1,
) -> Teacher:
    """Return who teaches; examples come first in each of so many shards."""
    if not isinstance(told_by, ExpertBuffer):
        return EnvReward(tasks, told_by, cfg.batch_size)
    if isinstance(cfg, ExampleSettings):
        return ExampleReward(cfg, tasks, told_by, seed, shards)
    assert isinstance(cfg, AdversarialSettings)
    lives = EpisodeCounts(told_by.num_steps, told_by.num_ends)
    judge = Discriminator(cfg.discriminator, spec, lives, cfg.sac.gamma, seed, tasks=tasks)
    return DiscriminatorReward(cfg, tasks, judge, told_by)
