"""Generative adversarial imitation (arXiv:1606.03476): PPO on rewards that a discriminator gives to whole rollouts."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

import numpy as np

from roboloop.algos.gail.config import GAILConfig
from roboloop.algos.gail.demonstrations import demonstrations
from roboloop.algos.gail.discriminator import Discriminator, Steps
from roboloop.algos.gail.losses import EpisodeCounts
from roboloop.algos.guided.teachers import steps_of
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.learner.rollout_learner import RolloutLearner
from roboloop.algos.ppo.ppo import make_ppo
from roboloop.algos.simgan.dynamics_config import DynamicsConfig
from roboloop.algos.spec import Setup
from roboloop.core.errors import ConfigError
from roboloop.core.rng import get_rng_state, set_rng_state, stream
from roboloop.core.types import Array, EnvSpec, Metrics, Rollout, State, Stateful
from roboloop.data.experts import ExpertBuffer
from roboloop.data.rollouts import is_step


class DiscriminatorFeatures(NamedTuple):
    """What a discriminator sees of a rollout ``[T, B]``: a row for each step, ``[T * B, ...]``."""

    steps: Steps
    is_valid: Array  # rows that are learned from and paid; others are worth nothing, not even for living on


class DiscriminatorInput(Stateful, Protocol):
    """Says what a discriminator sees of rollouts; the experts' steps are drawn in the same form."""

    def look(self, rollout: Rollout) -> DiscriminatorFeatures:
        """Return copies of what is seen of the steps of a rollout; it may remember what the next one needs."""
        ...


class GAIL:
    """The Algorithm: ``update`` lets the discriminator learn from a rollout and pay for it, then PPO learn from it."""

    def __init__(
        self,
        cfg: GAILConfig | DynamicsConfig,
        rl: RolloutLearner,
        discriminator: Discriminator,
        experts: ExpertBuffer,
        seed: int,
        witness: DiscriminatorInput | None = None,
    ) -> None:
        self.cfg, self._rl, self._discriminator, self._experts = cfg, rl, discriminator, experts
        self._witness = SingleSteps() if witness is None else witness
        self._rng = stream(seed, "gail-rows")
        self._earlier: deque[Steps] = deque(maxlen=cfg.replay_rollouts - 1)
        self.num_updates = 0
        self.progress = 0.0

    @property
    def policy(self) -> LearnerPolicy:
        """The live policy: each update changes it."""
        return self._rl.policy

    def update(self, rollout: Rollout) -> Metrics:
        """Learn to tell the policy from the expert, pay by what was learned, then learn to be taken for the expert."""
        seen = self._witness.look(rollout)
        seen = seen._replace(is_valid=seen.is_valid & is_step(rollout).reshape(-1))
        steps = Steps(*(column[seen.is_valid] for column in seen.steps))
        # what the environment paid is replaced before any return is summed, so that values and their scale follow it
        paid, told = np.zeros(rollout.num_steps, np.float32), dict[str, float]()
        if len(steps.ended):
            told |= self._learn_to_tell(steps)
            paid[seen.is_valid] = self._discriminator.rewards(*steps)[0]
            told["disc_reward"] = float(paid[seen.is_valid].mean())
        self._rl.progress = self.progress
        learned = self._rl.update(rollout._replace(reward=paid.reshape(rollout.reward.shape)))
        self.num_updates = self._rl.num_updates
        return {**learned, **told}

    def _learn_to_tell(self, newest: Steps) -> Metrics:
        """Take all steps of the discriminator on a rollout, and on those before it."""
        size, sums = self.cfg.discriminator_batch, dict[str, list[float]]()
        known = Steps(*(np.concatenate(column) for column in zip(*self._earlier, newest, strict=True)))
        self._earlier.append(newest)
        for number in range(self.cfg.discriminator_updates):
            # the first lot is of the newest steps alone: nothing was learned from them yet, so that they can judge
            source, held_out = (newest, self._experts.held_out(size)) if number == 0 else (known, None)
            rows = self._rng.integers(len(source.ended), size=size)
            metrics = self._discriminator.update(
                Steps(*(column[rows] for column in source)),
                steps_of(self._experts.sample(size)),
                None if held_out is None else steps_of(held_out),
            )
            for name, value in metrics.items():
                sums.setdefault(name, []).append(value)
        return {name: float(np.mean(values)) for name, values in sums.items()}

    def state(self) -> State:
        """Return everything the next update depends on; the policy is where PPO's is."""
        return {
            **self._rl.state(),
            "discriminator": self._discriminator.state(),
            "experts": self._experts.state(),
            "witness": self._witness.state(),
            "earlier": [steps._asdict() for steps in self._earlier],
            "row_rng": get_rng_state(self._rng),
        }

    def load(self, state: State) -> None:
        """Restore what ``state`` returned."""
        self._rl.load(state)
        self._discriminator.load(state["discriminator"])
        self._experts.load(state["experts"])
        self._witness.load(state.get("witness", {}))  # older checkpoints are of single steps, which remember nothing
        self._earlier.clear()
        self._earlier.extend(Steps(**steps) for steps in state["earlier"])
        set_rng_state(self._rng, state["row_rng"])
        self.num_updates = self._rl.num_updates

    def messages(self) -> list[str]:
        """Return what happened to helper processes, one line each."""
        return self._rl.messages()

    def close(self) -> None:
        """Stop PPO's helper processes."""
        self._rl.close()


class SingleSteps:
    """Observation and action of each step by itself."""

    def look(self, rollout: Rollout) -> DiscriminatorFeatures:
        """Return all steps."""
        return DiscriminatorFeatures(taken_steps(rollout), np.ones(rollout.num_steps, bool))

    def state(self) -> State:
        """Return nothing."""
        return {}

    def load(self, state: State) -> None:
        """Restore nothing."""


def taken_steps(rollout: Rollout) -> Steps:
    """Return the steps of a rollout as rows of their own; one that only the clock ended has not ended."""

    def rows(column: Array) -> Array:
        return column.reshape(-1, *column.shape[2:]).copy()  # samplers reuse their arrays

    return Steps(rows(rollout.obs[:-1]), rows(rollout.action), rows(rollout.terminated))


def make_gail(
    cfg: GAILConfig, spec: EnvSpec, experts: ExpertBuffer, num_envs: int, seed: int, device: str = "cpu"
) -> GAIL:
    """Return the algorithm of a config, with experts of one task."""
    if spec.obs_dtype.names is not None:
        raise ConfigError(f"gail compares plain observations, not the fields {', '.join(spec.obs_dtype.names)}")
    rl = make_ppo(cfg.ppo, spec, 1, num_envs, seed, device)
    lives = EpisodeCounts(experts.num_steps, experts.num_ends)
    return GAIL(cfg, rl, Discriminator(cfg.discriminator, spec, lives, cfg.ppo.gamma, seed), experts, seed)


def make(setup: Setup) -> GAIL:
    """Return the algorithm for a run, with the demonstrations that its config names."""
    experts = demonstrations(setup.config.expert, setup)
    return make_gail(setup.config, setup.spec, experts, setup.num_envs, setup.seed, setup.device)
