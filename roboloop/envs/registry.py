"""From an id such as ``metaworld/reach-v3`` to an environment, importing only the simulator that is asked for."""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from roboloop.core.config import KINDS, NAMED_BY, kinds_hint, override
from roboloop.core.errors import ConfigError, UserError, nearest, needs_extra
from roboloop.core.resolve import entry_points, load_named, resolve
from roboloop.core.stop import StopRequest
from roboloop.core.tasks import SEPARATOR, task_index
from roboloop.core.types import Env, EnvSpec, PortablePolicy
from roboloop.core.vouched import check_code, vouched
from roboloop.envs.config import EnvConfig
from roboloop.envs.headless import check_pictures, usable_backend
from roboloop.envs.suite import Function, Suite

if TYPE_CHECKING:
    from roboloop.envs.auxiliary import AuxiliaryTasks
    from roboloop.envs.vector import VectorWorld

GROUP = "roboloop.suites"
"""Entry points by which an installed package brings suites."""

SUITES = {
    "metaworld": "roboloop.envs.metaworld.suite:SUITE",
    "gym": "roboloop.envs.gym.suite:SUITE",
    "gymvec": "roboloop.envs.gymvec.suite:SUITE",
    "dmc": "roboloop.envs.dmc.suite:SUITE",
    "doom": "roboloop.envs.doom.suite:SUITE",
    "tiny": "roboloop.envs.tiny.suite:SUITE",
    "envpool": "roboloop.envs.envpool.suite:SUITE",
    "panda": "roboloop.envs.panda.suite:SUITE",
    "play": "roboloop.envs.play.suite:SUITE",
    "hopper": "roboloop.envs.legged.suite:HOPPER",
    "laikago": "roboloop.envs.legged.suite:LAIKAGO",
    "a1": "roboloop.envs.legged.suite:A1",
    "hybrid": "roboloop.envs.legged.suite:HYBRID_SUITE",
    "tuned": "roboloop.envs.legged.suite:TUNED",
    "soft": "roboloop.envs.soft.suite:SUITE",
}
"""Name -> ``module:attr`` of the record."""

OF_ALL_SUITES = (
    "observe", "image_size", "grayscale", "reward_version", "goal_mode", "panda", "legged", "soft", "hybrid",
)  # fmt: skip
"""Keys that the environment section of every saved config once had; now each belongs to its suites."""

MAX_NAME = 100
"""Longest name of a task in a path."""


def known_suites() -> list[str]:
    """Return the names of all suites, ours and those of installed packages."""
    return [*SUITES, *(name for name in entry_points(GROUP) if name not in SUITES)]


def is_ours(name: str) -> bool:
    """Say whether a suite is part of roboloop."""
    return name in SUITES


def find_suite(name: str) -> Suite:
    """Return the record of a suite, by its name or as ``module:attr``."""
    path = SUITES.get(name) or entry_points(GROUP).get(name) or name
    if ":" not in path:
        known = known_suites()
        raise ConfigError(f"unknown suite {name!r}{nearest(name, known)} (known: {', '.join(known)})")
    if path == name:  # no name of ours or of a plug-in: code that somebody named
        check_code("env.id", name, [name.partition(":")[0]])
    suite = load_named(path, "suite")
    if not isinstance(suite, Suite):
        raise ConfigError(f"suite {name!r} must be a Suite, not {type(suite).__name__}; Gymnasium ids are gym/{name}")
    return suite


def records() -> Iterator[tuple[str, Suite]]:
    """Yield the name and the record of each suite; a plug-in that is broken is named when it is asked for."""
    for name in known_suites():
        try:
            yield name, find_suite(name)
        except UserError:
            if is_ours(name):
                raise


def suites_with(what: str) -> str:
    """List the suites whose record has something, for messages."""
    return ", ".join(f"{name}/..." for name, suite in records() if getattr(suite, what))


def split(env_id: str) -> tuple[str, str]:
    """Return the name of the suite and the full name of the task; an id without a suite is Gymnasium's."""
    suite, slash, task = env_id.partition("/")
    if not slash:
        if listed := _suite_listing(env_id):
            raise ConfigError(f"unknown env {env_id!r}; did you mean '{listed}/{env_id}'?")
        suite, task = "gym", env_id
    if ":" not in suite and suite not in known_suites():
        known = known_suites()
        raise ConfigError(
            f"unknown suite {suite!r} in env {env_id!r}{nearest(suite, known)} (known: {', '.join(known)})"
        )
    if not task:
        raise ConfigError(f"env {env_id!r} names no task")
    record = find_suite(suite)
    if task not in record.sets:
        task = SEPARATOR.join(map(record.task, task.split(SEPARATOR)))
    return suite, task


def _suite_listing(task: str) -> str:
    """Return which suite of ours, other than Gymnasium, lists a task; empty if none does."""
    return next((name for name in SUITES if name != "gym" and task in find_suite(name).ids), "")


def suite_of(cfg: EnvConfig) -> Suite:
    """Return the record of an environment's suite."""
    return find_suite(split(cfg.id)[0])


def task_set(env_id: str) -> tuple[str, ...]:
    """Return the tasks of an id that names several, such as ``metaworld/mt3`` or ``tiny/point+mirror``; else none."""
    suite, task = split(env_id)
    if task in (sets := find_suite(suite).sets):
        return sets[task]
    if SEPARATOR not in task:
        return ()
    tasks = tuple(task.split(SEPARATOR))
    if "" in tasks:
        raise ConfigError(f"env {env_id!r} names no task beside a {SEPARATOR!r}")
    twice = [name for name in tasks if tasks.count(name) > 1]
    if twice:
        raise ConfigError(f"env {env_id!r} names {twice[0]} twice")
    return tasks


def task_name(env_id: str) -> str:
    """Return the short path-safe name of a task, as used in run directories."""
    name = re.sub(r"[^\w.+-]", "-", split(env_id)[1]).lstrip(".") or "task"
    # what names many tasks would be too long for a directory
    return name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}-{zlib.crc32(name.encode()):08x}"


def known_ids() -> list[str]:
    """Return the ids worth listing; any other Gymnasium or DM Control task can be made too."""
    return [f"{name}/{task}" for name, suite in records() for task in suite.ids]


def default_config(env_id: str, current: EnvConfig | None = None) -> EnvConfig:
    """Return the config section of an environment; keys that ``current`` has too are taken over."""
    config = find_suite(split(env_id)[0]).config()
    shared = {} if current is None else {f.name for f in dataclasses.fields(current)}
    kept = {f.name: getattr(current, f.name) for f in dataclasses.fields(config) if f.name in shared}
    return dataclasses.replace(config, **{**kept, "id": env_id})


def default_configs() -> Iterator[tuple[str, EnvConfig]]:
    """Yield the name and the config section of every suite."""
    for name, suite in records():
        yield name, suite.config()


def config(env_id: str, **keys: Any) -> EnvConfig:
    """Return the config section of an environment with some keys set, sections as dicts."""
    base = default_config(env_id)
    with kinds_hint({KINDS: default_configs, NAMED_BY: "id"}, base, "env."):
        return override(base, keys, "env.")


def as_written_now(env: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved environment section without the keys of other suites that older versions wrote."""
    if not isinstance(env.get("id"), str) or not any(key in env for key in OF_ALL_SUITES):
        return dict(env)
    known = {field.name for field in dataclasses.fields(default_config(env["id"]))}
    return {key: value for key, value in env.items() if key in known or key not in OF_ALL_SUITES}


def config_of(data: Mapping[str, Any]) -> EnvConfig:
    """Return the config section that the process which started this one sent, and so vouches for."""
    vouched.add([data["id"].partition("/")[0]])
    return config(data["id"], **data)


def complete(cfg: EnvConfig) -> EnvConfig:
    """Return a config with the keys of its suite: a plain EnvConfig stands for their defaults."""
    return default_config(cfg.id, cfg) if type(cfg) is EnvConfig else cfg


@contextmanager
def _needs(suite: Suite) -> Iterator[None]:
    """Prepare for a suite's imports, and turn the absence of its simulator into one line."""
    with usable_backend(), needs_extra(f"suite {suite.name!r}", suite.packages, suite.name):
        yield


def make(cfg: EnvConfig, evaluation: bool = False, column: int = 0) -> Env:
    """Make one environment; evaluation only changes the horizon. Of a set of K tasks, column e does task e mod K."""
    cfg = complete(cfg)
    cfg.check()
    suite, (_, task), tasks = suite_of(cfg), split(cfg.id), task_set(cfg.id)
    if cfg.is_drawn:
        check_pictures(cfg.drawn_size)
    number = column % len(tasks) if tasks else 0
    with _needs(suite):
        env = cast("Env", resolve(suite.make)(tasks[number] if tasks else task, cfg, evaluation))
    if tasks and cfg.tasks:
        raise ConfigError(f"env.tasks is for one environment: {cfg.id} is a set of tasks")
    if cfg.reward or cfg.tasks:
        env = _with_own_rewards(env, cfg)
    if not tasks:
        return env
    from roboloop.envs.task_set import MemberEnv

    return MemberEnv(env, task, tasks, number)


def _with_own_rewards(env: Env, cfg: EnvConfig) -> Env:
    """Return an environment with the reward and the auxiliary tasks that a config names."""
    from roboloop.envs.auxiliary import DeclaredTasksWrapper, TransitionFunction, TransitionRewardWrapper

    if cfg.reward:
        reward = TransitionFunction(load_named(cfg.reward, "env.reward"), f"env.reward {cfg.reward!r}")
        env = cast("Env", TransitionRewardWrapper(env, reward))
    if cfg.tasks:
        env = cast("Env", DeclaredTasksWrapper(env, auxiliary_tasks(cfg)))
    return env


def vector_maker(cfg: EnvConfig) -> Callable[[int], VectorWorld] | None:
    """Return what makes one simulator of so many environments; None where each has its own."""
    suite, (_, task), config = suite_of(cfg), split(cfg.id), complete(cfg)
    if (maker := suite.make_vector) is None:
        return None

    def make_vector(num_envs: int) -> VectorWorld:
        with _needs(suite):
            return cast("VectorWorld", resolve(maker)(task, config, num_envs))

    return make_vector


def check_columns(cfg: EnvConfig) -> None:
    """Refuse environments that do not fall into equally many for each task of a set."""
    tasks = task_set(cfg.id)
    if tasks and cfg.num_envs % len(tasks):
        raise ConfigError(
            f"env.num_envs must be a multiple of the {len(tasks)} tasks of {cfg.id}, not {cfg.num_envs}: each "
            "environment does one of them"
        )


def check_members(cfg: EnvConfig) -> None:
    """Refuse a set of tasks that see or do different things."""
    tasks = task_set(cfg.id)
    if not tasks or suite_of(cfg).same_spaces:
        return
    specs: list[EnvSpec] = []
    for column in range(len(tasks)):
        env = make(cfg, column=column)
        specs.append(env.spec)
        env.close()
    for task, spec in zip(tasks, specs, strict=True):
        if dataclasses.replace(spec, protocol=specs[0].protocol) != specs[0]:
            raise ConfigError(f"{tasks[0]} and {task} cannot be one set: their observations or actions differ")


def serve_rig(cfg: EnvConfig, port: int, stop: StopRequest) -> None:
    """Be the simulated rig of an environment, for other processes to train on, until asked to stop."""
    cfg.check()
    suite = suite_of(cfg)
    if suite.serve is None:
        raise ConfigError(f"{cfg.id} is no rig: there are rigs for {suites_with('serve')}")
    with _needs(suite):
        resolve(suite.serve)(split(cfg.id)[1], cfg, port, stop)


def check_reachable(cfg: EnvConfig) -> None:
    """Refuse a robot that does not answer at its address; what has no address is not asked."""
    if (check := suite_of(cfg).check_reachable) is not None:
        resolve(check)(split(cfg.id)[1], cfg)


def auxiliary_tasks(cfg: EnvConfig) -> AuxiliaryTasks:
    """Return what the transitions of an environment are worth to each of its tasks; no simulator is made."""
    from roboloop.envs.auxiliary import TaskFunctions

    cfg = complete(cfg)
    make_tasks: Function | None = load_named(cfg.tasks, "env.tasks") if cfg.tasks else suite_of(cfg).tasks
    if make_tasks is None:
        known = suites_with("tasks")
        raise ConfigError(f"{cfg.id} declares no auxiliary tasks: there are some in {known}; env.tasks names your own")
    made = resolve(make_tasks)(split(cfg.id)[1], cfg)
    return TaskFunctions(made, cfg.tasks or cfg.id) if isinstance(made, Mapping) else cast("AuxiliaryTasks", made)


def with_task_reward(cfg: EnvConfig, name: str) -> Callable[[Env], Env]:
    """Return what makes an environment's reward and success those of one of its auxiliary tasks."""
    from roboloop.envs.auxiliary import TaskRewardWrapper

    tasks = auxiliary_tasks(cfg)
    return lambda env: cast("Env", TaskRewardWrapper(env, tasks, name))


def scripted_policy(env: EnvConfig | str, name: str = "") -> PortablePolicy:
    """Return the expert of an environment, of one of its auxiliary tasks, or another one by its name.

    An id may leave out the suite that lists it.
    """
    from roboloop.envs.experts import make_expert
    from roboloop.envs.task_set import MemberExperts

    if isinstance(env, str) and "/" not in env and (listed := _suite_listing(env)):
        env = f"{listed}/{env}"
    cfg = complete(EnvConfig(id=env)) if isinstance(env, str) else env
    suite, (_, task) = suite_of(cfg), split(cfg.id)
    if not cfg.expert and suite.expert is None:
        known = suites_with("expert")
        raise ConfigError(f"{cfg.id} has no scripted expert: there are experts for {known}; env.expert names your own")
    if name and (cfg.expert or not suite.has_named_experts):
        task_index(name, auxiliary_tasks(cfg).names, cfg.id)
    if cfg.expert:
        load_named(cfg.expert, "env.expert")
    path = cfg.expert or _path_of(cast("Function", suite.expert))
    with _needs(suite):
        if tasks := task_set(cfg.id):
            return MemberExperts([make_expert(path, [each]) for each in tasks])
        return make_expert(path, [task, name] if name else [task])


def _path_of(function: Function) -> str:
    return function if isinstance(function, str) else f"{function.__module__}:{function.__qualname__}"
