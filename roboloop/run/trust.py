"""Code, paths and addresses that a file names: a run or a dataset may come from a stranger.

Code that such a file names is used if it belongs to roboloop, to Gymnasium or to an installed plug-in, if the user
typed it in this command, or with ``--trust``; a path, an address or an account only in the last two cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from roboloop.core.errors import ConfigError
from roboloop.core.resolve import load_named, resolve
from roboloop.core.tasks import SEPARATOR
from roboloop.core.vouched import check_code, check_typed, vouched
from roboloop.envs import registry
from roboloop.envs.config import EnvConfig
from roboloop.envs.headless import usable_backend
from roboloop.run.config import Experiment

Named: TypeAlias = Iterator[tuple[str, str]]
"""Keys, each with its value."""


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
    _check(_code(config), _places(config), where)


def check_env(env: EnvConfig, where: object) -> None:
    """Refuse an environment that a dataset names if nobody here vouches for its code, files and addresses."""
    _check(_code_of_env(env), _places_of_env(env), where)


def _check(code: Named, places: Named, where: object) -> None:
    for key, name in code:
        _check_code(key, name, where)
    for key, name in places:
        check_typed(key, name, where, "was not typed in this command")


def _check_code(key: str, name: str, where: object) -> None:
    if key == "env.id":
        _check_id(name, where)
    else:
        check_code(key, name, [name.partition(":")[0]], where)
        if (
            key.startswith(("env.", "algo."))
            and key != "algo.name"
            and name not in vouched
            and not _is_of_a_plugin(key, name)
        ):
            check_typed(key, name, where)


def _is_of_a_plugin(key: str, name: str) -> bool:
    """Say whether a function is an installed plug-in's own; what its modules import, or ours, could do anything."""
    top = name.partition(":")[0].partition(".")[0]
    try:
        found = load_named(name, key)
    except ConfigError:  # it leads into a module of another package, or nowhere
        return False
    own = getattr(found, "__module__", "").partition(".")[0] == top
    if top == "gymnasium":
        import gymnasium

        return own and isinstance(found, type) and issubclass(found, gymnasium.Wrapper)
    return own and top != "roboloop"


def _check_id(env_id: str, where: object) -> None:
    """Refuse an id that names code.

    A package that is installed vouches for its classes of environments, and ids that stand for one; for no function.
    """
    if modules := _modules_of(env_id):
        check_code("env.id", env_id, modules, where)
    suite, task = registry.split(env_id)
    is_environment = registry.find_suite(suite).is_environment
    if env_id in vouched or is_environment is None:
        return
    with usable_backend():  # looking at a class imports its module
        is_sound = all(map(resolve(is_environment), task.split(SEPARATOR)))
    if not is_sound:
        check_typed("env.id", env_id, where, "is no class of an installed plug-in")


def named(config: Experiment) -> Named:
    """Yield the keys and values of a config by which code is imported, or something outside the run is used."""
    yield from _code(config)
    yield from _places(config)


def _code(config: Experiment) -> Named:
    if ":" in config.algo.name:
        yield "algo.name", config.algo.name
    yield from ((f"algo.{key}", name) for key, name in getattr(config.algo, "code", tuple)())
    yield from (("observers", name) for name in config.observers)
    yield from (("trackers", name) for name in config.trackers if ":" in name)
    yield from _code_of_env(config.env)


def _code_of_env(env: EnvConfig) -> Named:
    if _modules_of(env.id) or not _is_listed(env.id):
        yield "env.id", env.id
    yield from ((f"env.{key}", name) for key, name in env.code())


def _is_listed(env_id: str) -> bool:
    """Say whether we know what makes an environment: an id that a package registered may stand for any function."""
    suite, task = registry.split(env_id)
    record = registry.find_suite(suite)
    return record.is_environment is None or set(task.split(SEPARATOR)) <= set(record.ids)


def _places(config: Experiment) -> Named:
    """Yield the keys that name a file, an account or another machine."""
    if config.sample.address:
        yield "sample.address", config.sample.address
    if "wandb" in config.trackers and config.wandb.entity:
        yield "wandb.entity", config.wandb.entity
    yield from _places_of_env(config.env)


def _places_of_env(env: EnvConfig) -> Named:
    yield from ((f"env.{key}", name) for key, name in env.places())


def _modules_of(env_id: str) -> Sequence[str]:
    """Return the modules of other people that are imported to make an environment."""
    suite, task = registry.split(env_id)
    own = [suite.partition(":")[0]] if ":" in suite else []
    return [*own, *registry.find_suite(suite).modules(task)]
