"""From a config to the objects of a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from roboloop.algos.spec import EpisodeSource, SavedRun, Setup
from roboloop.core.config import to_dict
from roboloop.core.errors import ConfigError
from roboloop.core.schedules import InSlack, UpdateRatio, WhenFull
from roboloop.core.types import Algorithm, Env, EnvSpec, OffPolicy, PortablePolicy, Sampler, Store, UpdatesDue
from roboloop.data.no_recorder import NoRecorder
from roboloop.data.replay import Replay
from roboloop.data.rollouts import RolloutStore
from roboloop.envs import registry
from roboloop.envs.config import EnvConfig
from roboloop.run import checkpoint, plan
from roboloop.run.checkpoint import Checkpoint
from roboloop.run.config import Experiment
from roboloop.run.evaluate import Evaluator
from roboloop.run.rundir import RunDir, find_run
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.group import GroupPlan, plans
from roboloop.sample.groups import group_maker
from roboloop.sample.serial import SerialSampler

if TYPE_CHECKING:
    from roboloop.data.recorder import Recorder
    from roboloop.sample.board import SharedBoard
    from roboloop.sample.links import Backend

EVAL_LANES = 10
"""Evaluation episodes that run side by side at most."""


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
        torch.device(name)
    except RuntimeError:
        raise ConfigError(f"config key 'device' must be cpu, cuda or another device of torch, not {name!r}") from None
    try:
        torch.zeros(1, device=name).cpu().numpy()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition(". ")[0].partition("\n")[0]
        raise ConfigError(f"config key 'device' must be one that is here, not {name!r}: {reason}") from None


def _online(cfg: Experiment) -> Parts:
    spec = spec_of(cfg)
    made = cfg.algorithm
    algo = made.build(setup_of(cfg, spec, open_run=open_run))
    size = algo.policy.memory_size
    if (rollout := cfg.rollout) is not None:
        warmup = algo.policy  # it can only learn from its own actions
        shape = RolloutShape(spec, rollout.rollout_steps, cfg.env.num_envs, cfg.env.frame_stack, True, size)
    else:
        warmup = made.warmup_policy(spec)
        shape = RolloutShape(spec, cfg.sample.steps, cfg.env.num_envs, cfg.env.frame_stack, memory_size=size)
    said = plan.describe(cfg, shape)  # refuses what cannot fit before it is allocated or any process is started
    store = RolloutStore(cfg.batch_envs) if rollout is not None else _replay(cfg, spec, algo)
    recorder = make_recorder(cfg, shape)
    sampler = make_sampler(cfg, shape, (algo.policy,) if warmup is algo.policy else (warmup, algo.policy))
    due = make_updates_due(cfg, sampler, store)
    return Parts(sampler, store, algo, evaluator(cfg, cfg.eval.episodes), warmup, due, recorder, said)


def _replay(cfg: Experiment, spec: EnvSpec, algo: Algorithm) -> Replay:
    assert isinstance(algo, OffPolicy)
    return Replay(cfg.replay.capacity, spec, cfg.env.num_envs, algo.needs, cfg.seed)


def _offline(cfg: Experiment) -> Parts:
    from roboloop.run import offline

    spec = spec_of(cfg)
    store = offline.open_store(cfg, spec)
    said = offline.describe(cfg, store)
    algo = cfg.algorithm.build(setup_of(cfg, spec, tuple(store.parts), open_run))
    one_each = UpdateRatio(1.0, 0, 1, False)
    still = offline.NoSampler()
    return Parts(still, store, algo, evaluator(cfg, cfg.eval.episodes), algo.policy, one_each, NoRecorder(), said)


def setup_of(
    cfg: Experiment,
    spec: EnvSpec,
    sources: tuple[EpisodeSource, ...] = (),
    open_run: Callable[[str, str], SavedRun] | None = None,
) -> Setup:
    """Return what an algorithm, or the policy of one, is made from."""
    columns = cfg.batch_envs if cfg.rollout is not None else cfg.env.num_envs
    return Setup(cfg.algo, spec, cfg.env, columns, cfg.seed, cfg.device, cfg, sources, open_run)


def open_run(path: str, which: str) -> SavedRun:
    """Open a checkpoint of another run, for an algorithm that begins with it."""
    run = RunDir.open(find_run(Path(path)))
    point, spec = run.pick(which), spec_of(run.config)
    return SavedRun(run.config, spec, point.state["algo"], partial(policy_of, run.config, spec, point))


def spec_of(cfg: Experiment) -> EnvSpec:
    """Return shapes and bounds of the environment; it is made once for that."""
    registry.check_members(cfg.env)
    env = registry.make(cfg.env)
    try:
        return env.spec
    finally:
        env.close()


def make_sampler(cfg: Experiment, shape: RolloutShape, policies: tuple[PortablePolicy, ...]) -> Sampler:
    """Return the sampler that the config asks for."""
    registry.check_reachable(cfg.env)
    if cfg.sample.real_time != "off":
        return _real_time_sampler(cfg, shape, policies)
    groups = plans(cfg.env.num_envs, cfg.sample.groups, cfg.seed)
    if cfg.sample.workers:
        return _parallel_sampler(cfg, groups, shape, policies)
    make_env = _remote_env(cfg, shape.spec) if cfg.sample.inference == "central" else None
    return SerialSampler(
        make_env or (lambda e: registry.make(cfg.env, column=e)), groups, shape, cfg.sample.restarts,
        group_maker(cfg.env),
    )  # fmt: skip


def _real_time_sampler(cfg: Experiment, shape: RolloutShape, policies: tuple[PortablePolicy, ...]) -> Sampler:
    from roboloop.sample.pilot import real_time_env
    from roboloop.sample.realtime import InlineSampler, PilotedSampler

    if cfg.sample.real_time == "inline":
        return InlineSampler(real_time_env(registry.make(cfg.env)), shape, cfg.sample, cfg.seed)
    return PilotedSampler(cfg.env, shape, cfg.sample, cfg.seed, policies)


def _parallel_sampler(
    cfg: Experiment, groups: list[GroupPlan], shape: RolloutShape, policies: tuple[PortablePolicy, ...]
) -> Sampler:
    from roboloop.sample.crew import WorkerPool
    from roboloop.sample.parallel import FreeSampler, LockStepSampler

    slots = cfg.sample.queue if cfg.sample.free_running else 1
    crew = WorkerPool(cfg.env, groups, shape, cfg.sample, slots, policies, _place(cfg))
    return FreeSampler(crew) if cfg.sample.free_running else LockStepSampler(crew)


def _remote_env(cfg: Experiment, spec: EnvSpec) -> Callable[[int], Env]:
    """Return what makes each environment in a process of its own."""
    from roboloop.sample.remote import RemoteEnv

    return lambda e: RemoteEnv(cfg.env, spec, cfg.sample.hang_s, e)


def _place(cfg: Experiment) -> Callable[[SharedBoard], Backend]:
    """Return what makes the place where workers live."""
    if cfg.sample.on == "processes":
        from roboloop.sample.local import LocalPlace

        return LocalPlace
    from roboloop.sample.on_ray import RayPlace

    return partial(RayPlace, cfg.sample)


def make_updates_due(cfg: Experiment, sampler: Sampler, store: Store) -> UpdatesDue:
    """Return when the algorithm learns."""
    if isinstance(store, RolloutStore):
        return WhenFull(lambda: store.is_full)
    update = cfg.update
    if update.at == "slack":
        from roboloop.sample.realtime import InlineSampler

        assert isinstance(sampler, InlineSampler)
        return InSlack(update.per_step, cfg.warmup_steps, sampler.time_left_s)
    return UpdateRatio(update.per_step, cfg.warmup_steps, update.every_steps, update.at == "episode")


def make_recorder(cfg: Experiment, shape: RolloutShape) -> Recorder | NoRecorder:
    """Return what keeps the episodes of training as a dataset, if any are to be kept."""
    if cfg.record.keep == "none":
        return NoRecorder()
    from roboloop.data.recorder import Recorder, RecordSource

    about = {"experiment": cfg.experiment, "algo": cfg.algo.name, "seed": cfg.seed, "record": to_dict(cfg.record)}
    about["env"] = to_dict(cfg.env)
    is_stacked = shape.stacked and shape.frame_stack > 1
    source = RecordSource(cfg.env.id, shape.spec, shape.num_envs, shape.steps, is_stacked, cfg.seed, about)
    return Recorder(cfg.record, source)


def policy_of(cfg: Experiment, spec: EnvSpec, point: Checkpoint) -> PortablePolicy:
    """Return the policy of a checkpoint."""
    with checkpoint.fits(point.path):
        return cfg.algorithm.policy(setup_of(cfg, spec), point.state["algo"])


def evaluator(cfg: Experiment, episodes: int, task: str = "") -> Evaluator:
    """Make an evaluator for so many episodes in the config's evaluation environments, judged by one of their tasks."""
    lanes = eval_lanes(cfg.env, episodes)
    aim = registry.with_task_reward(cfg.env, task) if task else None

    def make_env(lane: int) -> Env:
        env = registry.make(cfg.env, True, lane)
        return aim(env) if aim else env

    return Evaluator(make_env, cfg.env.frame_stack, lanes)


def eval_lanes(env: EnvConfig, episodes: int) -> int:
    """Return how many evaluation episodes run side by side; a robot is one, and a set has as many of each task."""
    num_tasks = max(1, len(registry.task_set(env.id)))
    return 1 if env.on_wall_clock else num_tasks * min(episodes, max(1, EVAL_LANES // num_tasks))
