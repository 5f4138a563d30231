"""From an id such as ``metaworld/reach-v3`` to an environment, importing only the simulator that is asked for."""

from __future__ import annotations

import dataclasses
import importlib
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from roboloop.core.errors import ConfigError, nearest, needs_extra
from roboloop.core.stop import StopRequest
from roboloop.core.tasks import task_index
from roboloop.core.types import Env, EnvSpec, PortablePolicy
from roboloop.envs import names
from roboloop.envs.auxiliary import Aimed, AuxiliaryTasks
from roboloop.envs.config import EnvConfig
from roboloop.envs.headless import check_pictures, usable_backend
from roboloop.envs.task_set import SEPARATOR, MemberEnv, MemberExperts
from roboloop.envs.vector import VectorWorld

SUITES = {
    "metaworld": "roboloop.envs.metaworld.world:make",
    "gym": "roboloop.envs.gym.world:make",
    "gymvec": "roboloop.envs.gymvec.world:make",
    "dmc": "roboloop.envs.dmc.world:make",
    "doom": "roboloop.envs.doom.world:make",
    "tiny": "roboloop.envs.tiny.world:make",
    "envpool": "roboloop.envs.envpool.world:make",
    "panda": "roboloop.envs.panda.suite:make",
    "play": "roboloop.envs.play.world:make",
    "hopper": "roboloop.envs.legged.hopper:make",
    "laikago": "roboloop.envs.legged.quadruped:make_laikago",
    "a1": "roboloop.envs.legged.quadruped:make_a1",
    "hybrid": "roboloop.envs.legged.hybrid:make",
    "tuned": "roboloop.envs.legged.hybrid:make_tuned",
    "soft": "roboloop.envs.soft.suite:make",
}
"""Suite -> ``module:function`` of ``make(task, cfg, evaluation)``."""

VECTOR = {"gymvec": "roboloop.envs.gymvec.world:make_vector"}
"""Suite -> ``module:function`` of ``make_vector(task, cfg, num_envs)``, where one simulator steps many environments."""

EXPERTS = {
    "metaworld": "roboloop.envs.metaworld.world:scripted_policy",
    "panda": "roboloop.envs.panda.experts:scripted_policy",
    "play": "roboloop.envs.play.experts:scripted_policy",
    "soft": "roboloop.envs.soft.experts:scripted_policy",
}
"""Suite -> ``module:function`` of ``expert(task)``, a policy that was written and not learned; few suites have any.
Where a suite has auxiliary tasks too, ``expert(task, name)`` is that of one of them."""

NAMED_EXPERTS = ("soft",)
"""Suites that have several experts for a task: there ``expert(task, name)`` is one of them by its name."""

TASKS = {"panda": "roboloop.envs.panda.auxiliary:tasks", "play": "roboloop.envs.play.tasks:tasks"}
"""Suite -> ``module:function`` of ``tasks(task, cfg)``, its auxiliary tasks; no simulator is imported for them."""

RIGS = {"panda": "roboloop.envs.panda.server:serve"}
"""Suite -> ``module:function`` of ``serve(task, cfg, port, stop)``, a rig that stands by itself."""

PACKAGES = {
    "metaworld": ("metaworld", "mujoco"),
    "gym": ("gymnasium", "mujoco"),
    "gymvec": ("gymnasium",),
    "dmc": ("dm_control", "mujoco"),
    "doom": ("vizdoom", "cv2"),
    "tiny": (),
    "envpool": ("envpool",),
    "panda": ("pybullet_data", "mujoco"),
    "play": (),
    "hopper": (),  # which engine is missing, the engine says
    "laikago": (),
    "a1": (),
    "hybrid": (),
    "tuned": (),
    "soft": ("mujoco",),
}
"""Top-level modules whose absence means that the suite's extra is not installed."""

BOTH_VIEWS = ("dmc", "soft")
"""Suites that show state or pixels, as ``env.observe`` says; all others have one view."""

MAX_NAME = 100
"""Longest name of a task in a path."""


def resolve(path: str) -> Callable[..., Any]:
    """Import ``module:function``."""
    module, function = path.split(":")
    return cast("Callable[..., Any]", getattr(importlib.import_module(module), function))


def split(env_id: str) -> tuple[str, str]:
    """Return suite and canonical task of an id; an id without a suite is Gymnasium's."""
    suite, slash, task = env_id.partition("/")
    if not slash:
        if env_id in names.METAWORLD:
            raise ConfigError(f"unknown env {env_id!r}; did you mean 'metaworld/{env_id}'?")
        suite, task = "gym", env_id
    if suite not in SUITES:
        raise ConfigError(
            f"unknown suite {suite!r} in env {env_id!r}{nearest(suite, SUITES)} (known: {', '.join(SUITES)})"
        )
    if not task:
        raise ConfigError(f"env {env_id!r} names no task")
    if suite == "metaworld" and task not in names.METAWORLD_SETS:
        task = SEPARATOR.join(map(_metaworld_task, task.split(SEPARATOR)))
    return suite, task


def _metaworld_task(task: str) -> str:
    """Return the v3 name of a Meta-World task, given by name or by its number in MT10."""
    if task.isdecimal() and int(task) < len(names.MT10):
        return names.MT10[int(task)]
    if task not in names.METAWORLD:
        known = (*names.METAWORLD, *names.METAWORLD_SETS)
        raise ConfigError(f"unknown Meta-World task {task!r}{nearest(task, known)}")
    return task


def task_set(env_id: str) -> tuple[str, ...]:
    """Return the tasks of an id that names several, such as ``metaworld/mt3`` or ``tiny/point+mirror``; else none."""
    suite, task = split(env_id)
    if suite == "metaworld" and task in names.METAWORLD_SETS:
        return names.METAWORLD_SETS[task]
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
    tasks = {
        "metaworld": (*names.METAWORLD, *names.METAWORLD_SETS),
        "gym": names.GYM,
        "gymvec": names.GYMVEC,
        "dmc": names.DMC,
        "doom": names.DOOM,
        "tiny": names.TINY,
    }
    tasks |= {"envpool": names.ENVPOOL, "panda": names.PANDA, "play": names.PLAY, "soft": names.SOFT}
    tasks |= dict.fromkeys(names.LEGGED_ROBOTS, names.LEGGED) | dict.fromkeys(("hybrid", "tuned"), names.HYBRID)
    return [f"{suite}/{task}" for suite in SUITES for task in tasks[suite]]


@contextmanager
def _needs(suite: str) -> Iterator[None]:
    """Prepare for a suite's imports, and turn the absence of its simulator into one line."""
    with usable_backend(), needs_extra(f"suite {suite!r}", PACKAGES[suite], suite):
        yield


def make(cfg: EnvConfig, evaluation: bool = False, column: int = 0) -> Env:
    """Make one environment; evaluation only changes the horizon. Of a set of K tasks, column e does task e mod K."""
    cfg.check()
    suite, task = split(cfg.id)
    tasks = task_set(cfg.id)
    if cfg.observe == "pixels" and suite not in BOTH_VIEWS:
        known = ", ".join(f"{name}/..." for name in BOTH_VIEWS)
        raise ConfigError(f"env.observe 'pixels' is for {known}; {cfg.id} has one view only")
    if cfg.observe == "pixels":
        check_pictures(cfg.image_size)
    with _needs(suite):
        make_one = cast("Callable[[str, EnvConfig, bool], Env]", resolve(SUITES[suite]))
        if not tasks:
            return make_one(task, cfg, evaluation)
        number = column % len(tasks)
        return MemberEnv(make_one(tasks[number], cfg, evaluation), task, tasks, number)


def vector_maker(cfg: EnvConfig) -> Callable[[int], VectorWorld] | None:
    """Return what makes one simulator of so many environments; None where each has its own."""
    suite, task = split(cfg.id)
    if suite not in VECTOR:
        return None

    def make_vector(num_envs: int) -> VectorWorld:
        with _needs(suite):
            return cast("VectorWorld", resolve(VECTOR[suite])(task, cfg, num_envs))

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
    """Refuse a set of tasks that see or do different things; those of Meta-World never do."""
    tasks = task_set(cfg.id)
    if not tasks or split(cfg.id)[0] == "metaworld":
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
    suite, task = split(cfg.id)
    if suite not in RIGS:
        known = ", ".join(f"{name}/..." for name in RIGS)
        raise ConfigError(f"{cfg.id} is no rig: there are rigs for {known}")
    with _needs(suite):
        resolve(RIGS[suite])(task, cfg.panda, port, stop)


def knock(cfg: EnvConfig) -> None:
    """Refuse a robot that does not answer at its address; what has no address is not asked."""
    suite, task = split(cfg.id)
    if suite in RIGS and cfg.panda.address:
        from roboloop.envs.panda import drivers

        drivers.knock(task, cfg.panda)


def auxiliary_tasks(cfg: EnvConfig) -> AuxiliaryTasks:
    """Return what the transitions of an environment are worth to each of its tasks; no simulator is made."""
    suite, task = split(cfg.id)
    if suite not in TASKS:
        known = ", ".join(f"{name}/..." for name in TASKS)
        raise ConfigError(f"{cfg.id} declares no auxiliary tasks: there are some in {known}")
    return cast("AuxiliaryTasks", resolve(TASKS[suite])(task, cfg))


def aimed_at(cfg: EnvConfig, name: str) -> Callable[[Env], Env]:
    """Return what makes an environment's reward and success those of one of its auxiliary tasks."""
    tasks = auxiliary_tasks(cfg)
    return lambda env: cast("Env", Aimed(env, tasks, name))


def scripted_policy(env_id: str, name: str = "") -> PortablePolicy:
    """Return the expert that a suite has for a task, for one of its auxiliary tasks, or another one by its name.

    An id without a suite is Meta-World's.
    """
    env_id = env_id if "/" in env_id else f"metaworld/{env_id}"
    suite, task = split(env_id)
    if suite not in EXPERTS:
        known = ", ".join(f"{name}/..." for name in EXPERTS)
        raise ConfigError(f"{env_id} has no scripted expert: there are experts for {known}")
    if name and suite not in NAMED_EXPERTS:
        task_index(name, auxiliary_tasks(EnvConfig(id=env_id)).names, env_id)
    with _needs(suite):
        expert = cast("Callable[..., PortablePolicy]", resolve(EXPERTS[suite]))
        tasks = task_set(env_id)
        if tasks:
            return MemberExperts([expert(name) for name in tasks])
        return expert(task, name) if name else expert(task)
