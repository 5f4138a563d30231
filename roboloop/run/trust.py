"""Code and addresses that a file names: a run or a dataset may come from a stranger.

A name in such a file is used if it belongs to roboloop, to Gymnasium or to an installed plug-in, if the user typed it
in this command, or with ``--trust``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from roboloop.core.vouched import check_code, vouched
from roboloop.envs import registry
from roboloop.envs.task_set import SEPARATOR
from roboloop.run.config import Experiment


def vouch_for(config: Experiment) -> None:
    """Take all that a config names for typed: the user named its file in this command."""
    vouched.add(name for _, name in _named(config))


def vouch_for_file(data: Mapping[str, Any]) -> None:
    """Take the algorithm that a config file names for typed: it is looked up while the file is read."""
    algo = data.get("algo")
    if isinstance(algo, Mapping) and isinstance(algo.get("name"), str):
        vouched.add([algo["name"]])


def names_any(config: Experiment) -> bool:
    """Say whether a config names code or another machine."""
    return any(_named(config))


def check(config: Experiment, where: object) -> None:
    """Refuse a config that came with a run if it names what nobody here vouches for."""
    for key, name in _named(config):
        modules = [] if key == "sample.address" else [name.partition(":")[0]]
        check_code(key, name, _modules_of(name) if key == "env.id" else modules, where)


def check_env(env_id: str, where: object) -> None:
    """Refuse an environment that a dataset names if nobody here vouches for its code."""
    if modules := _modules_of(env_id):
        check_code("env.id", env_id, modules, where)


def _named(config: Experiment) -> Iterator[tuple[str, str]]:
    """Yield the keys and values of a config by which code is imported or another machine is called."""
    if ":" in config.algo.name:
        yield "algo.name", config.algo.name
    yield from (("observers", name) for name in config.observers)
    if _modules_of(config.env.id):
        yield "env.id", config.env.id
    if config.sample.address:
        yield "sample.address", config.sample.address


def _modules_of(env_id: str) -> list[str]:
    """Return the modules that are imported to make an environment, beside those of its suite."""
    suite, task = registry.split(env_id)
    return (
        [part.rpartition(":")[0] for part in task.split(SEPARATOR) if ":" in part] if suite in ("gym", "gymvec") else []
    )
