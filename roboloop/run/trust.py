"""Code and addresses that a file names: a run or a dataset may come from a stranger.

A name in such a file is used if it belongs to roboloop, to Gymnasium or to an installed plug-in, if the user typed it
in this command, or with ``--trust``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from roboloop.core.resolve import load_named, resolve
from roboloop.core.vouched import check_code, vouched
from roboloop.envs import registry
from roboloop.envs.config import EnvConfig
from roboloop.envs.task_set import SEPARATOR
from roboloop.run.config import Experiment


def vouch_for(config: Experiment) -> None:
    """Take all that a config names for typed: the user named its file in this command."""
    vouched.add(name for _, name in named(config))


def vouch_for_file(data: Mapping[str, Any]) -> None:
    """Take algorithm and suite that a config file names for typed: they are looked up while the file is read."""
    for section, key in (("algo", "name"), ("env", "id")):
        part = data.get(section)
        if isinstance(part, Mapping) and isinstance(part.get(key), str):
            vouched.add([part[key], part[key].partition("/")[0]])


def names_any(config: Experiment) -> bool:
    """Say whether a config names code or another machine."""
    return any(named(config))


def check(config: Experiment, where: object) -> None:
    """Refuse a config that came with a run if it names what nobody here vouches for."""
    for key, name in named(config):
        _check(key, name, where)


def check_env(env: EnvConfig, where: object) -> None:
    """Refuse an environment that a dataset names if nobody here vouches for its code."""
    for key, name in _named_in_env(env):
        _check(key, name, where)


def _check(key: str, name: str, where: object) -> None:
    if key == "sample.address":
        check_code(key, name, (), where)
    elif key == "env.id":
        _check_id(name, where)
    else:
        check_code(key, name, [name.partition(":")[0]], where)
        if key.startswith("env.") and name not in vouched and not _is_of_a_plugin(key, name):
            check_code(key, name, (), where)


def _is_of_a_plugin(key: str, name: str) -> bool:
    """Say whether a function is an installed plug-in's own; what its modules import, or ours, could do anything."""
    top = name.partition(":")[0].partition(".")[0]
    found = load_named(name, key)
    own = getattr(found, "__module__", "").partition(".")[0] == top
    if top == "gymnasium":
        import gymnasium

        return own and isinstance(found, type) and issubclass(found, gymnasium.Wrapper)
    return own and top != "roboloop"


def _check_id(env_id: str, where: object) -> None:
    """Refuse an id that names code.

    A package that is installed vouches for its ids and for its classes of environments, not for all of its functions.
    """
    if not (modules := _modules_of(env_id)):
        return
    check_code("env.id", env_id, modules, where)
    suite, task = registry.split(env_id)
    is_environment = registry.find_suite(suite).is_environment
    if env_id in vouched or is_environment is None:
        return
    if not all(map(resolve(is_environment), task.split(SEPARATOR))):
        check_code("env.id", env_id, [], where)


def named(config: Experiment) -> Iterator[tuple[str, str]]:
    """Yield the keys and values of a config by which code is imported or another machine is called."""
    if ":" in config.algo.name:
        yield "algo.name", config.algo.name
    yield from (("observers", name) for name in config.observers)
    yield from (("trackers", name) for name in config.trackers if ":" in name)
    yield from _named_in_env(config.env)
    if config.sample.address:
        yield "sample.address", config.sample.address


def _named_in_env(env: EnvConfig) -> Iterator[tuple[str, str]]:
    if _modules_of(env.id):
        yield "env.id", env.id
    yield from ((f"env.{key}", name) for key, name in env.code())


def _modules_of(env_id: str) -> Sequence[str]:
    """Return the modules of other people that are imported to make an environment."""
    suite, task = registry.split(env_id)
    own = [suite.partition(":")[0]] if ":" in suite else []
    return [*own, *registry.find_suite(suite).modules(task)]
