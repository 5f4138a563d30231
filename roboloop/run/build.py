"""From a config to the objects of a run."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from roboloop.algos.config import PPOConfig
from roboloop.core.schedules import UpdateRatio, WhenFull
from roboloop.core.types import Algorithm, EnvSpec, PortablePolicy, Rollout, State, Stateful
from roboloop.data.replay import Replay
from roboloop.data.rollouts import RolloutStore
from roboloop.envs import registry
from roboloop.run import plan
from roboloop.run.config import Experiment
from roboloop.run.evaluate import Evaluator
from roboloop.sample.buffers import Shape
from roboloop.sample.crew import Crew
from roboloop.sample.group import plans
from roboloop.sample.parallel import FreeSampler, LockStepSampler
from roboloop.sample.remote import RemoteEnv
from roboloop.sample.serial import SerialSampler

EVAL_LANES = 10
"""Evaluation episodes run side by side."""


class Sampler(Stateful, Protocol):
    """Collects experience; the arrays of a rollout are valid until the next call."""

    def collect(self, policy: PortablePolicy) -> Rollout:
        """Return steps of a policy that explores."""
        ...

    def faults(self) -> list[str]:
        """Return what went wrong and was mended since this was last asked."""
        ...

    def stats(self) -> dict[str, float]:
        """Return metrics of the sampler itself."""
        ...

    def close(self) -> None:
        """Release simulators and processes."""
        ...


class UpdatesDue(Stateful, Protocol):
    """Says how many updates to take after a rollout."""

    def __call__(self, step: int, episode_ended: bool) -> int:
        """Return the number that is due now."""
        ...


class Parts(NamedTuple):
    """The nouns of one run."""

    sampler: Sampler
    store: Replay | RolloutStore
    algo: Algorithm
    evaluator: Evaluator
    warmup: PortablePolicy
    updates_due: UpdatesDue
    plan: str
    """Who does what with how much memory, in words."""


def build(cfg: Experiment) -> Parts:
    """Make everything a run needs; nothing is on disk yet."""
    from roboloop.algos.policy import UniformPolicy  # torch is loaded only when it is needed
    from roboloop.algos.ppo import PPO
    from roboloop.algos.sac import SAC

    spec = spec_of(cfg)
    stack, num_envs = cfg.env.frame_stack, cfg.env.num_envs
    warmup: PortablePolicy
    store: Replay | RolloutStore
    updates_due: UpdatesDue
    algo: Algorithm
    if isinstance(cfg.algo, PPOConfig):
        columns = cfg.algo.batch_envs or num_envs
        algo = PPO(cfg.algo, spec, stack, columns, cfg.seed, cfg.device)
        store = gathered = RolloutStore(columns)
        updates_due = WhenFull(lambda: gathered.is_full)
        warmup = algo.policy  # it can only learn from its own actions
        shape = Shape(spec, cfg.algo.rollout_steps, num_envs, stack, True, algo.policy.memory_size)
    else:
        algo = sac = SAC(cfg.algo, spec, stack, cfg.seed, cfg.device)
        store = Replay(cfg.replay.capacity, spec, num_envs, sac.needs, cfg.seed)
        update, warmup = cfg.update, UniformPolicy(spec)
        updates_due = UpdateRatio(update.per_step, cfg.warmup_steps, update.every_steps, update.at == "episode")
        shape = Shape(spec, cfg.sample.steps, num_envs, stack)
    said = plan.describe(cfg, shape)  # refuses what cannot fit before any process is started
    sampler = make_sampler(cfg, shape, (algo.policy,) if warmup is algo.policy else (warmup, algo.policy))
    return Parts(sampler, store, algo, evaluator(cfg, min(cfg.eval.episodes, EVAL_LANES)), warmup, updates_due, said)


def spec_of(cfg: Experiment) -> EnvSpec:
    """Return shapes and bounds of the environment; it is made once for that."""
    env = registry.make(cfg.env)
    try:
        return env.spec
    finally:
        env.close()


def make_sampler(cfg: Experiment, shape: Shape, policies: tuple[PortablePolicy, ...]) -> Sampler:
    """Return the sampler that the config asks for."""
    groups = plans(cfg.env.num_envs, cfg.sample.groups, cfg.seed)
    if not cfg.sample.workers:
        is_remote = cfg.sample.inference == "central"
        return SerialSampler(
            lambda: RemoteEnv(cfg.env, shape.spec, cfg.sample.hang_s) if is_remote else registry.make(cfg.env),
            groups, shape, cfg.sample.restarts,
        )  # fmt: skip
    slots = cfg.sample.queue if cfg.sample.free_running else 1
    crew = Crew(cfg.env, groups, shape, cfg.sample, slots, policies)
    return FreeSampler(crew) if cfg.sample.free_running else LockStepSampler(crew)


def policy_of(cfg: Experiment, spec: EnvSpec, state: State) -> PortablePolicy:
    """Return the policy of a saved state of the whole run."""
    from roboloop.algos.policy import policy_from_state
    from roboloop.algos.ppo import policy_from_state as ppo_policy_from_state

    load = ppo_policy_from_state if isinstance(cfg.algo, PPOConfig) else policy_from_state
    return load(state["algo"]["policy"], spec)


def evaluator(cfg: Experiment, lanes: int) -> Evaluator:
    """Make an evaluator with the config's evaluation environments."""
    return Evaluator(lambda: registry.make(cfg.env, evaluation=True), cfg.env.frame_stack, lanes)
