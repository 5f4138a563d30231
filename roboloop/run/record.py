"""The verb ``record``: a dataset by acting alone, with a trained policy, a scripted expert or at random."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import math
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roboloop.core.config import to_dict
from roboloop.core.errors import ConfigError, DataError, UserError
from roboloop.core.flags import parse_flags
from roboloop.core.options import Options
from roboloop.core.rng import derive
from roboloop.core.stop import StopRequest
from roboloop.core.tasks import forced_schedule
from roboloop.core.types import EnvSpec, PortablePolicy, Rollout
from roboloop.data.assembly import facts_at
from roboloop.data.attempts import Attempts
from roboloop.data.dataset import Dataset
from roboloop.data.episodes import Episode, Schema
from roboloop.data.index import SCHEMA
from roboloop.data.store import StoreWriter
from roboloop.envs import registry
from roboloop.envs.auxiliary import AuxiliaryTasks
from roboloop.envs.config import EnvConfig
from roboloop.run import build
from roboloop.run.commands import STOPPED
from roboloop.run.config import Experiment
from roboloop.run.datasets import disk_bytes
from roboloop.run.elsewhere import check_flags, name_of, with_env
from roboloop.run.posthoc import show, with_target_return
from roboloop.run.rundir import RunDir, find_run
from roboloop.sample.buffers import RolloutShape
from roboloop.track.terminal import LiveLine, count, number

ROLLOUT_STEPS = 32
COMMIT_S, SAY_S = 5.0, 10.0
ATTEMPTS_PER_EPISODE = 10
"""Unless --max-attempts says otherwise."""


class TooFew(UserError):
    """The attempts did not bring as many episodes as were asked for; those that they brought are kept."""

    exit_code = 8


class RecordActor(NamedTuple):
    """Who acts where, and what the dataset remembers of it."""

    cfg: Experiment
    spec: EnvSpec
    policy: PortablePolicy
    directory: Path
    about: dict[str, Any]
    """``recording`` and ``env`` are what two commands must have in common for the second to go on with the first."""
    aim: Aim | None = None
    """The auxiliary task that it is about, where that is not the env's own."""


class Aim(NamedTuple):
    """One of an environment's auxiliary tasks, after some steps that only lead up to it."""

    tasks: AuxiliaryTasks
    name: str
    leading_steps: int

    def success(self, episode: Episode) -> float:
        """Return 1 if it succeeded at any of its own steps."""
        found = self.tasks.task_successes(episode.obs[:-1], episode.action, episode.obs[1:])
        return float(found[self.leading_steps :, self.tasks.names.index(self.name)].any())


class RecordRequest(NamedTuple):
    """How many episodes of which kind."""

    episodes: int
    max_attempts: int
    success_only: bool
    seed: int


class Recording(NamedTuple):
    """Where the datasets are, and whether a signal ended the recording before they were full."""

    directories: list[Path]
    is_stopped: bool


def record(args: list[str]) -> int:
    """Record one dataset, or one for each environment."""
    return STOPPED if recorded(args).is_stopped else 0


def recorded(args: list[str], tell: Callable[[str], None] = show) -> Recording:
    """Record what the words of a command ask for, and return where it is."""
    options = _options()
    known, flags = options.parse_known_args(args)
    if flags and not flags[0].startswith("--env."):
        options.error(f"unrecognized arguments: {flags[0]}")
    check_flags(flags)
    _check(known)
    actors = _in_environments(known, flags) if known.expert or known.random else [_as_trained(known, flags)]
    todo = [actor for actor in actors if _num_held(actor) < known.episodes]
    if not todo:
        here = actors[0].directory if len(actors) == 1 else actors[0].directory.parent
        raise DataError(f"{here} holds {known.episodes} episodes of this recording already: nothing was changed")
    most = known.max_attempts or ATTEMPTS_PER_EPISODE * known.episodes
    wish = RecordRequest(known.episodes, most, known.success_only, known.seed)
    directories, missing = [actor.directory for actor in actors], []
    with StopRequest() as stop:
        for actor in todo:
            held = _fill(actor, wish, stop, tell)
            tell(_summary(actor.directory))
            if stop and (held < wish.episodes or actor is not todo[-1]):
                tell("stopped: the same command goes on")
                return Recording(directories, True)
            if held < wish.episodes:
                missing.append(f"{actor.directory} has {held} of {wish.episodes} episodes")
    if missing:
        raise TooFew(f"{'; '.join(missing)} after {wish.max_attempts} attempts: the same command tries others")
    return Recording(directories, False)


def _options() -> Options:
    options = Options(prog="roboloop record", allow_abbrev=False)
    add = options.add_argument
    add("source", nargs="+", help="a run; with --expert or --random one or more environment ids")
    add("--episodes", type=int, required=True, metavar="N", help="whole episodes to keep")
    add("--out", type=Path, metavar="DIR", help="the dataset, or where one of each task is put if there are several")
    add("--expert", action="store_true", help="act as the suite's scripted expert")
    add("--random", action="store_true", help="act at random")
    add("--task", metavar="NAME", help="with --expert: one of the env's auxiliary tasks, which success is then about")
    lead = "with --expert: tasks one after another in each episode, such as grasp:30,release; the last one is meant"
    add("--schedule", metavar="NAME:STEPS,...,NAME", help=lead)
    add("--checkpoint", help="of a run: 'best', which it is unless given, 'last' or a step")
    add("--target", type=float, metavar="R", help="return to ask a Decision Transformer for")
    add("--env", metavar="ID", help="of a run: another environment of equal observations and actions")
    add("--explore", action="store_true", help="draw actions as in training, not the likeliest ones")
    std = "with --explore: deviation of continuous actions of PPO, where they reach from -1 to 1, not the learned one"
    add("--std", type=float, metavar="X", help=std)
    noise = "Gaussian noise where actions reach from -1 to 1; for choices the probability of a random one"
    add("--noise", type=float, default=0.0, metavar="STD", help=noise)
    add("--success-only", action="store_true", help="keep only episodes that succeeded")
    most = f"episodes to play at most, kept or not; {ATTEMPTS_PER_EPISODE} N unless given"
    add("--max-attempts", type=int, metavar="M", help=most)
    options.epilog = "--env.KEY VALUE sets a config key of the environment; of a run, over what it was trained in."
    add("--seed", type=int, default=0, help="of episodes and draws; equal commands give equal data")
    add("--envs", type=int, metavar="E", help="environments side by side; as many as workers unless given")
    add("--workers", type=int, default=0, help="processes that step them; changes nothing but the speed")
    return options


def _check(known: argparse.Namespace) -> None:
    known.envs = max(1, known.workers) if known.envs is None else known.envs
    for name, least in (("episodes", 1), ("max_attempts", 1), ("envs", 1), ("workers", 0), ("seed", 0)):
        value = getattr(known, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least {least}, not {value}")
    if known.workers > known.envs:
        raise ConfigError(f"--workers {known.workers} is more than --envs {known.envs}: each needs one at least")
    if known.expert and known.random:
        raise ConfigError("--expert and --random are two ways to act: choose one")
    if (known.task or known.schedule) and not known.expert:
        raise ConfigError("--task and --schedule are for --expert")
    if known.task and known.schedule:
        raise ConfigError("--task is a --schedule of one task: choose one of them")
    if known.expert or known.random:
        given = [name for name in ("checkpoint", "target", "env", "explore") if getattr(known, name)]
        if given:
            raise ConfigError(f"--{given[0]} is for the policy of a run")
    if known.std is not None and not (known.explore and known.std > 0):
        raise ConfigError("--std is a deviation above 0 and goes with --explore")
    if not (known.expert or known.random) and len(known.source) > 1:
        raise ConfigError("record takes one run, or environment ids with --expert or --random")


def _in_environments(known: argparse.Namespace, flags: list[str]) -> list[RecordActor]:
    """Return who acts without having learned anything, one for each environment."""
    kind = "expert" if known.expert else "random"
    root = known.out or Path("datasets") / kind
    is_root = known.out is None or len(known.source) > 1
    actors: list[RecordActor] = []
    for env_id in known.source:
        cfg = parse_flags(Experiment(env=EnvConfig(id=env_id)), flags)
        schedule = _schedule(known)
        spec = build.spec_of(cfg)
        policy = _expert(cfg.env, schedule) if known.expert else _random(spec)
        directory = root / registry.task_name(env_id) if is_root else root
        if is_root and schedule:
            directory = directory.with_name(f"{directory.name}-tasks") / schedule[-1][0]
        if directory in [actor.directory for actor in actors]:
            raise ConfigError(f"{env_id} would be recorded to {directory} twice")
        actor = _actor(known, cfg, spec, policy, directory, {"by": kind})
        if schedule:
            actor.about["recording"]["schedule"] = [list(part) for part in schedule]
            name, leading_steps = schedule[-1][0], sum(steps for _, steps in schedule)
            actor = actor._replace(aim=Aim(registry.auxiliary_tasks(cfg.env), name, leading_steps))
        actors.append(actor)
    return actors


def _schedule(known: argparse.Namespace) -> list[tuple[str, int]]:
    """Return the tasks that are forced, with the steps of all but the last; empty = the environment's own."""
    text = known.task or known.schedule
    return forced_schedule(text) if text else []


def _expert(env: EnvConfig, schedule: list[tuple[str, int]]) -> PortablePolicy:
    if not schedule:
        return registry.scripted_policy(env)
    from roboloop.algos.forced import PolicySequence  # torch is loaded only when it is needed

    return PolicySequence([registry.scripted_policy(env, name) for name, _ in schedule], [n for _, n in schedule[:-1]])


def _random(spec: EnvSpec) -> PortablePolicy:
    from roboloop.algos.policy import UniformPolicy

    return UniformPolicy(spec)


def _as_trained(known: argparse.Namespace, flags: list[str]) -> RecordActor:
    """Return the policy of a run's checkpoint, where it was trained or elsewhere."""
    name = known.source[0]
    path = find_run(Path(name))
    if not path.exists() and name.partition("/")[0] in registry.known_suites():
        raise ConfigError(f"{name} is not a run directory: an environment is recorded with --expert or --random")
    run = RunDir.open(path)
    point = run.pick(known.checkpoint or "best")
    cfg = with_env(run.config, known.env, flags)
    spec = build.spec_of(cfg)
    policy = build.policy_of(cfg, spec, point)
    if known.target is not None:
        policy = with_target_return(policy, known.target, run)
    if known.std is not None:
        policy = _with_std(policy, known.std, run)
    weights = np.zeros(policy.num_weights, np.float32)
    policy.write_weights(weights)
    # by what it is and not by its path: a run may be moved, and another may take its place
    by: dict[str, Any] = {
        "by": run.config.algo.name,
        "checkpoint_step": point.step,
        "weights_crc32": zlib.crc32(weights.tobytes()),
        **({} if known.std is None else {"std": known.std}),
    }
    where = name_of(known.env or "", flags)
    directory = known.out or run.path / (f"recorded-{where}" if where else "recorded")
    actor = _actor(known, cfg, spec, policy, directory, by)
    actor.about.update(run=str(run.path), experiment=run.config.experiment, algo=run.config.algo.name)
    return actor


def _with_std(policy: PortablePolicy, std: float, run: RunDir) -> PortablePolicy:
    from roboloop.algos.learner.on_policy import with_std  # not before it is needed: it imports torch

    steady = with_std(policy, std)
    if steady is None:
        raise DataError(f"--std is for continuous actions of PPO: {run.path} trained {run.config.algo.name}")
    return steady


def _actor(
    known: argparse.Namespace,
    cfg: Experiment,
    spec: EnvSpec,
    policy: PortablePolicy,
    directory: Path,
    by: dict[str, Any],
) -> RecordActor:
    from roboloop.algos.behaviour import Behaviour  # torch is loaded only when it is needed

    env = dataclasses.replace(cfg.env, num_envs=known.envs)
    registry.check_columns(env)
    # one group for each environment: then it makes no difference who steps them
    sample = dataclasses.replace(
        cfg.sample, groups=known.envs, workers=known.workers, steps=ROLLOUT_STEPS, free_running=False,
        inference="workers",
    )  # fmt: skip
    names = ("explore", "noise", "success_only", "seed", "envs")
    recording = {**by, **{name: getattr(known, name) for name in names}}
    behaviour = Behaviour(policy, spec, known.explore, known.noise)
    about = {"recording": recording, "env": to_dict(env)}
    return RecordActor(dataclasses.replace(cfg, env=env, sample=sample), spec, behaviour, directory, about)


def _num_held(actor: RecordActor) -> int:
    """Return how many episodes there are of an earlier, unfinished recording; refuse what is something else."""
    if not (actor.directory / SCHEMA).exists():
        return 0  # the store refuses a directory that holds other files
    data = Dataset.open(actor.directory)
    wanted = json.loads(json.dumps(actor.about))
    held = {**data.schema.source, "env": registry.as_written_now(data.schema.source.get("env", {}))}
    if any(held.get(name) != wanted[name] for name in ("recording", "env")):
        raise DataError(f"{actor.directory} is a dataset of another recording: nothing was changed; give another --out")
    return len(data)


def _fill(actor: RecordActor, wish: RecordRequest, stop: StopRequest, tell: Callable[[str], None]) -> int:
    """Record until there are as many episodes as wished for or no attempts are left; return how many there are."""
    cfg, policy = actor.cfg, actor.policy
    envs, stack = cfg.env.num_envs, cfg.env.frame_stack
    shape = RolloutShape(actor.spec, ROLLOUT_STEPS, envs, stack, memory_size=policy.memory_size)
    with StoreWriter(actor.directory, Schema.of(cfg.env.id, actor.spec, actor.about)) as store:
        keeper = _Keeper(store, wish, envs, tell, actor.aim)
        sampler = build.make_sampler(dataclasses.replace(cfg, seed=keeper.seed), shape, (policy,))
        try:
            while not keeper.is_done and not stop:
                keeper.take(sampler.collect(policy))
                for fault in sampler.faults():
                    keeper.line.clear()
                    tell(fault)
        finally:
            keeper.line.clear()
            sampler.close()
    return keeper.num_held


class _Keeper:
    """Puts the attempts that are wanted into a store, in their order, until there are enough."""

    def __init__(
        self,
        store: StoreWriter,
        wish: RecordRequest,
        num_envs: int,
        tell: Callable[[str], None],
        aim: Aim | None = None,
    ) -> None:
        self._store, self._wish, self._tell, self._aim = store, wish, tell, aim
        # who is told in another way watches no terminal
        self._attempts, self.line = Attempts(num_envs), LiveLine(sys.stdout if tell is show else io.StringIO())
        live = store.live
        self.num_held, self._steps = len(live["id"]), int(live["step"].max(initial=0))
        # a recording that goes on plays other episodes than before: which of those failed is not on record
        self._session = int(live["segment"].max(initial=-1)) + 1
        self.seed = derive(wish.seed, "recording", self._session)
        self._commit_at_s, self._say_at_s = time.monotonic() + COMMIT_S, time.monotonic() + SAY_S

    @property
    def is_done(self) -> bool:
        """Whether there are enough episodes, or have been enough attempts."""
        return self.num_held >= self._wish.episodes or self._attempts.settled >= self._wish.max_attempts

    def take(self, rollout: Rollout) -> None:
        """Keep what a rollout completes; now and then commit, and say how far it is."""
        self._steps += rollout.num_steps
        for attempt, episode, end in self._attempts.add(rollout, self._steps):
            is_over = self.num_held == self._wish.episodes or attempt >= self._wish.max_attempts
            if self._aim:
                end["success"] = self._aim.success(episode)
            if not is_over and self._wants(float(end["success"])):
                task = self._aim.name if self._aim else self._store.schema.task_of(int(end["env"]))
                self._store.append(episode, facts_at(episode, end, task, self._session, self.seed))
                self.num_held += 1
        now = time.monotonic()
        if now >= self._commit_at_s:
            self._store.commit()
            self._commit_at_s = now + COMMIT_S
        told = f"{self._store.directory.name}: {self.num_held} of {self._wish.episodes} episodes"
        if self.line.is_due:
            self.line.show(f"{told}, {self._attempts.settled} attempts, {count(self._steps)} steps")
        if now >= self._say_at_s and not self.line.is_seen:
            self._tell(told)
            self._say_at_s = now + SAY_S

    def _wants(self, success: float) -> bool:
        if self._wish.success_only and math.isnan(success):
            raise ConfigError(f"{self._store.schema.env_id} does not say what succeeded: leave out --success-only")
        return not self._wish.success_only or success > 0


def _summary(directory: Path) -> str:
    data = Dataset.open(directory)
    table = data.table
    if not len(data):
        return f"{directory}: no episodes"
    known = table["success"][~np.isnan(table["success"])]
    success = f"{(known > 0).mean():.0%}" if len(known) else "not said"
    size = count(disk_bytes(directory))
    return (
        f"{directory}: {len(data)} episodes, {data.num_steps} steps, mean return "
        f"{number(table['episode_return'].mean())}, success {success}, {size}B"
    )
