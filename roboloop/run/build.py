"""From a config to the objects of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from roboloop.algos.config import SACSettings
from roboloop.algos.dynamics_config import DynamicsConfig
from roboloop.algos.gail_config import GAILConfig
from roboloop.algos.guided_config import GuidedSettings, IntentionSettings
from roboloop.algos.pick_config import PickConfig
from roboloop.algos.refine_config import RefineConfig
from roboloop.core.config import to_dict
from roboloop.core.errors import ConfigError
from roboloop.core.schedules import InSlack, UpdateRatio, WhenFull
from roboloop.core.types import Algorithm, BatchSpec, Env, EnvSpec, PortablePolicy, Rollout, State, Stateful
from roboloop.data.config import ExpertConfig
from roboloop.data.dataset import Dataset
from roboloop.data.experts import ExpertBuffer, open_experts
from roboloop.data.journal import Frontier, Journal, Record
from roboloop.data.recorder import NoRecorder, Recorder, Source
from roboloop.data.replay import Replay
from roboloop.data.rollouts import RolloutStore
from roboloop.envs import registry
from roboloop.envs.config import EnvConfig
from roboloop.run import checkpoint, plan
from roboloop.run.checkpoint import Checkpoint
from roboloop.run.config import Experiment
from roboloop.run.evaluate import Evaluator
from roboloop.sample.board import Board
from roboloop.sample.buffers import Shape
from roboloop.sample.crew import Crew
from roboloop.sample.group import plans
from roboloop.sample.links import Place
from roboloop.sample.local import LocalPlace
from roboloop.sample.parallel import FreeSampler, LockStepSampler
from roboloop.sample.pilot import real_time_env
from roboloop.sample.realtime import InlineSampler, PilotedSampler
from roboloop.sample.remote import RemoteEnv
from roboloop.sample.serial import SerialSampler

EVAL_LANES = 10
"""Evaluation episodes that run side by side at most."""


class Sampler(Stateful, Protocol):
    """Collects experience; the arrays of a rollout are valid until the next call."""

    def collect(self, policy: PortablePolicy) -> Rollout:
        """Return steps of a policy that explores."""
        ...

    @property
    def in_tick(self) -> bool:
        """Whether a robot moves in this process and soon needs its next action: nothing slow may be done now."""
        ...

    def rest(self) -> list[Rollout]:
        """Bring whatever moves to a stand, and return what had been collected meanwhile."""
        ...

    def faults(self) -> list[str]:
        """Return what went wrong and was mended since this was last asked."""
        ...

    def timing(self) -> dict[str, Any]:
        """Return how deadlines were kept since this was last asked."""
        ...

    def stats(self) -> dict[str, float]:
        """Return metrics of the sampler itself."""
        ...

    def close(self) -> None:
        """Release simulators and processes."""
        ...


class Store(Protocol):
    """Takes what was collected and gives what is learned from."""

    journaled: bool
    """Whether its rows are kept in a journal beside the checkpoints."""

    def add(self, rollout: Rollout) -> None:
        """Take a rollout."""
        ...

    def sample(self) -> Any:
        """Return what the algorithm's update takes."""
        ...

    def attach(self, journal: Journal) -> None:
        """Keep all rows from now on in a journal that already holds the rows there are."""
        ...

    def commit(self) -> Frontier:
        """Make all rows durable and return where the journal ends."""
        ...

    def state(self) -> State:
        """Return what the journal does not hold."""
        ...

    def load(self, state: State, records: Iterable[Record]) -> None:
        """Restore rows from a journal's records, then the rest."""
        ...


class UpdatesDue(Stateful, Protocol):
    """Says which updates to take after a rollout."""

    def __call__(self, step: int, episode_ended: bool) -> Iterable[int]:
        """Yield once per update that is due now; one that looks at the clock decides before each."""
        ...


class Parts(NamedTuple):
    """The nouns of one run."""

    sampler: Sampler
    store: Store
    algo: Algorithm
    evaluator: Evaluator
    warmup: PortablePolicy
    updates_due: UpdatesDue
    recorder: Recorder | NoRecorder
    plan: str
    """Who does what with how much memory, in words."""


def build(cfg: Experiment) -> Parts:
    """Make everything a run needs; nothing is on disk yet."""
    check_device(cfg.device)
    return _offline(cfg) if cfg.is_offline else _online(cfg)


def check_device(name: str) -> None:
    """Refuse a device that torch does not know, or that this machine does not have."""
    if name == "cpu":
        return
    import torch

    try:
        torch.zeros(1, device=name).cpu().numpy()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition(". ")[0].partition("\n")[0]
        raise ConfigError(f"config key 'device' must be one that is here, not {name!r}: {reason}") from None


def _online(cfg: Experiment) -> Parts:
    spec = spec_of(cfg)
    stack, num_envs = cfg.env.frame_stack, cfg.env.num_envs
    warmup: PortablePolicy
    store: Store
    updates_due: UpdatesDue
    algo: Algorithm
    if (ppo := cfg.on_policy) is not None:
        columns = ppo.batch_envs or num_envs
        algo = _on_policy(cfg, spec, columns)
        store = gathered = RolloutStore(columns)
        updates_due = WhenFull(lambda: gathered.is_full)
        warmup = algo.policy  # it can only learn from its own actions
        shape = Shape(spec, ppo.rollout_steps, num_envs, stack, True, algo.policy.memory_size)
    else:
        algo = learner = _off_policy(cfg, spec)
        warmup = _at_random(cfg, spec)
        shape = Shape(spec, cfg.sample.steps, num_envs, stack, memory_size=algo.policy.memory_size)
    said = plan.describe(cfg, shape)  # refuses what cannot fit before it is allocated or any process is started
    if ppo is None:
        store = Replay(cfg.replay.capacity, spec, num_envs, learner.needs, cfg.seed)
    recorder = make_recorder(cfg, shape)
    sampler = make_sampler(cfg, shape, (algo.policy,) if warmup is algo.policy else (warmup, algo.policy))
    if ppo is None:
        updates_due = make_updates_due(cfg, sampler)
    return Parts(sampler, store, algo, evaluator(cfg, cfg.eval.episodes), warmup, updates_due, recorder, said)


def _on_policy(cfg: Experiment, spec: EnvSpec, columns: int) -> Algorithm:
    if isinstance(cfg.algo, GAILConfig):
        from roboloop.algos.gail import make_gail

        return make_gail(cfg.algo, spec, experts_of(cfg.algo.expert, spec, cfg), columns, cfg.seed, cfg.device)
    if isinstance(cfg.algo, DynamicsConfig):
        from roboloop.algos.dynamics import make_dynamics

        target = Dataset.open(Path(cfg.algo.target.directory))
        return make_dynamics(cfg.algo, spec, target, columns, cfg.seed, cfg.device)
    if isinstance(cfg.algo, RefineConfig):
        from roboloop.run import refine

        return refine.make(cfg, cfg.algo, spec, columns)
    from roboloop.algos.ppo import PPO

    assert cfg.on_policy is not None
    return PPO(cfg.on_policy, spec, cfg.env.frame_stack, columns, cfg.seed, cfg.device)


class OffPolicy(Algorithm, Protocol):
    """An algorithm that learns from batches of a replay."""

    @property
    def needs(self) -> BatchSpec:
        """Of what size and shape."""
        ...


def _at_random(cfg: Experiment, spec: EnvSpec) -> PortablePolicy:
    """Return who acts before anything is learned."""
    from roboloop.algos.pick_policy import RandomPicks  # torch is loaded only when it is needed
    from roboloop.algos.policy import UniformPolicy

    return RandomPicks(spec) if isinstance(cfg.algo, PickConfig) else UniformPolicy(spec)


def _off_policy(cfg: Experiment, spec: EnvSpec) -> OffPolicy:
    if isinstance(cfg.algo, GuidedSettings):
        from roboloop.run.guided import make

        return make(cfg, cfg.algo, spec)
    if isinstance(cfg.algo, PickConfig):
        from roboloop.algos.pick import make_pick

        return make_pick(cfg.algo, spec, cfg.seed, cfg.device)
    from roboloop.algos.sac import SAC

    assert isinstance(cfg.algo, SACSettings)
    return SAC(cfg.algo, spec, cfg.env.frame_stack, cfg.seed, cfg.device)


def experts_of(expert: ExpertConfig, spec: EnvSpec, cfg: Experiment, tasks: tuple[str, ...] = ()) -> ExpertBuffer:
    """Return what the experts of some tasks, or of the main one, did; data of other spaces are refused."""
    from roboloop.run.offline import check_spaces

    datasets = open_experts(Path(expert.directory), tasks or task_names(cfg, spec)[:1])
    for dataset in datasets:
        check_spaces(cfg.env.id, spec, dataset)
    return ExpertBuffer(datasets, expert, cfg.seed)


def task_names(cfg: Experiment, spec: EnvSpec) -> tuple[str, ...]:
    """Return the tasks of an environment, the main one first; one that names none has one."""
    return spec.tasks or (registry.task_name(cfg.env.id),)


def _offline(cfg: Experiment) -> Parts:
    from roboloop.run import offline

    spec = spec_of(cfg)
    store = offline.open_store(cfg, spec)
    said = offline.describe(cfg, store)
    algo = offline.learner(cfg, spec, store)
    one_each = UpdateRatio(1.0, 0, 1, False)
    still = offline.StandingStill()
    return Parts(still, store, algo, evaluator(cfg, cfg.eval.episodes), algo.policy, one_each, NoRecorder(), said)


def spec_of(cfg: Experiment) -> EnvSpec:
    """Return shapes and bounds of the environment; it is made once for that."""
    registry.check_members(cfg.env)
    env = registry.make(cfg.env)
    try:
        return env.spec
    finally:
        env.close()


def make_sampler(cfg: Experiment, shape: Shape, policies: tuple[PortablePolicy, ...]) -> Sampler:
    """Return the sampler that the config asks for."""
    registry.knock(cfg.env)
    groups = plans(cfg.env.num_envs, cfg.sample.groups, cfg.seed)
    if cfg.sample.real_time == "inline":
        return InlineSampler(real_time_env(registry.make(cfg.env)), shape, cfg.sample, cfg.seed)
    if cfg.sample.real_time == "process":
        return PilotedSampler(cfg.env, shape, cfg.sample, cfg.seed, policies)
    if not cfg.sample.workers:
        is_remote = cfg.sample.inference == "central"
        return SerialSampler(
            lambda e: (
                RemoteEnv(cfg.env, shape.spec, cfg.sample.hang_s, e) if is_remote else registry.make(cfg.env, column=e)
            ),
            groups, shape, cfg.sample.restarts,
        )  # fmt: skip
    slots = cfg.sample.queue if cfg.sample.free_running else 1
    crew = Crew(cfg.env, groups, shape, cfg.sample, slots, policies, _place(cfg))
    return FreeSampler(crew) if cfg.sample.free_running else LockStepSampler(crew)


def _place(cfg: Experiment) -> Callable[[Board], Place]:
    """Return what makes the place where workers live."""
    if cfg.sample.on == "processes":
        return LocalPlace
    from roboloop.sample.on_ray import RayPlace

    return partial(RayPlace, cfg.sample)


def make_updates_due(cfg: Experiment, sampler: Sampler) -> UpdatesDue:
    """Return when an off-policy algorithm learns."""
    update = cfg.update
    if update.at == "slack":
        assert isinstance(sampler, InlineSampler)
        return InSlack(update.per_step, cfg.warmup_steps, sampler.time_left_s)
    return UpdateRatio(update.per_step, cfg.warmup_steps, update.every_steps, update.at == "episode")


def make_recorder(cfg: Experiment, shape: Shape) -> Recorder | NoRecorder:
    """Return what keeps the episodes of training as a dataset, if any are to be kept."""
    if cfg.record.keep == "none":
        return NoRecorder()
    about = {"experiment": cfg.experiment, "algo": cfg.algo.name, "seed": cfg.seed, "record": to_dict(cfg.record)}
    about["env"] = to_dict(cfg.env)
    is_stacked = shape.stacked and shape.frame_stack > 1
    source = Source(cfg.env.id, shape.spec, shape.num_envs, shape.steps, is_stacked, cfg.seed, about)
    return Recorder(cfg.record, source)


def policy_of(cfg: Experiment, spec: EnvSpec, point: Checkpoint) -> PortablePolicy:
    """Return the policy of a checkpoint."""
    with checkpoint.fits(point.path):
        return _policy_of(cfg, spec, point.state)


def _policy_of(cfg: Experiment, spec: EnvSpec, state: State) -> PortablePolicy:
    from roboloop.algos import imitation, policy, ppo

    saved = state["algo"]["policy"]
    if isinstance(cfg.algo, IntentionSettings):
        from roboloop.run.guided import policy_of_intentions

        return policy_of_intentions(cfg, cfg.algo, spec, state)
    if isinstance(cfg.algo, PickConfig):
        from roboloop.algos.pick import policy_of_picks

        return policy_of_picks(cfg.algo, spec, state["algo"])
    made: imitation.ImitationPolicy | ppo.PPOPolicy | policy.ActorPolicy
    if cfg.is_offline:
        made = imitation.ImitationPolicy.from_state(saved, spec)
    elif cfg.on_policy is not None:
        made = ppo.PPOPolicy.from_state(saved, spec)
    else:
        made = policy.ActorPolicy.from_state(saved, spec)
    made.version = int(state["algo"]["num_updates"])
    return made


def evaluator(cfg: Experiment, episodes: int, task: str = "") -> Evaluator:
    """Make an evaluator for so many episodes in the config's evaluation environments, judged by one of their tasks."""
    lanes = eval_lanes(cfg.env, episodes)
    aim = registry.aimed_at(cfg.env, task) if task else None

    def make_env(lane: int) -> Env:
        env = registry.make(cfg.env, True, lane)
        return aim(env) if aim else env

    return Evaluator(make_env, cfg.env.frame_stack, lanes)


def eval_lanes(env: EnvConfig, episodes: int) -> int:
    """Return how many evaluation episodes run side by side; a robot is one, and a set has as many of each task."""
    num_tasks = max(1, len(registry.task_set(env.id)))
    return 1 if env.on_wall_clock else num_tasks * min(episodes, max(1, EVAL_LANES // num_tasks))
