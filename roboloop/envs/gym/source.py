"""Where a Gymnasium environment comes from: an id, ``module:Id``, ``module:Class``, or a class given in Python."""

from __future__ import annotations

import importlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any, NamedTuple, TypeVar

import gymnasium
from gymnasium.envs.registration import find_highest_version, load_env_creator, parse_env_id

from roboloop.core.errors import ConfigError, MissingExtra, UserError, nearest
from roboloop.core.raised import CRASHES, where
from roboloop.core.resolve import load_named, resolve
from roboloop.core.vouched import is_of_plugin
from roboloop.envs import gymnasium_ids
from roboloop.envs.gym.suite import ATARI, SUITE, GymEnvConfig

MAIN = "__main__"
"""Module of what a script or a notebook defines: no other process can import it."""
PICTURES = {"render_mode": "rgb_array"}
_OF_MAKE = ("id", "max_episode_steps", "disable_env_checker")
"""Arguments of ``gymnasium.make`` itself, which we give."""
Made = TypeVar("Made")
Maker = Callable[..., "gymnasium.Env[Any, Any]"]


class GymSource(NamedTuple):
    """How an environment is made anew, and the limit of its episodes where its author registered one."""

    make: Callable[[], gymnasium.Env[Any, Any]]
    limit: int | None

    def limit_of(self, env: gymnasium.Env[Any, Any]) -> int | None:
        """Return the steps of an episode: as registered, or as the made environment says."""
        own = env.spec.max_episode_steps if env.spec else None
        return self.limit or (own if own and own > 0 else None)


_given: dict[str, Maker] = {}
_lock = threading.Lock()


@contextmanager
def given(makers: Mapping[str, Maker]) -> Iterator[None]:
    """Know environments of this process by name, as ``gym/__main__:NAME``, while this is entered."""
    with _lock:
        new = {name: maker for name, maker in makers.items() if _given.get(name) is not maker}
        if taken := next((name for name in new if name in _given), None):
            raise ConfigError(f"another environment called {taken!r} is in use in this process: rename one of them")
        _given.update(new)
    try:
        yield
    finally:
        with _lock:
            for name in new:
                del _given[name]


def find(task: str, cfg: GymEnvConfig) -> GymSource:
    """Return how to make ``gym/<task>``; what cannot be made is one line."""
    found = _find(task, cfg.kwargs)
    return found._replace(make=partial(_wrapped, found.make, cfg.wrappers)) if cfg.wrappers else found


def _wrapped(make: Callable[[], gymnasium.Env[Any, Any]], wrappers: tuple[str, ...]) -> gymnasium.Env[Any, Any]:
    return wrapped(make(), wrappers, gymnasium.Env)


def wrapped(env: Made, wrappers: tuple[str, ...], kind: type) -> Made:
    """Return an environment with wrappers around it, the innermost first, each of which gives one of this kind."""
    for name in wrappers:
        try:
            env = load_named(name, "env.wrappers")(env)
        except UserError:
            raise
        except CRASHES as error:  # the user's wrapper may raise anything
            raise ConfigError(f"env.wrappers {name!r} raised {where(error)}") from error
        if not isinstance(env, kind):
            raise ConfigError(
                f"env.wrappers {name!r} must return a gymnasium.{kind.__name__}, not {type(env).__name__}"
            )
    return env


def _find(task: str, kwargs: Mapping[str, Any]) -> GymSource:
    module, _, name = task.rpartition(":")
    if module == MAIN:
        if name not in _given:
            origin = "it was defined in a script or a notebook, and can be made only there: give env= in Python"
            raise ConfigError(f"env 'gym/{task}' cannot be made here: {origin}")
        return GymSource(partial(_construct, task, _given[name], kwargs), None)
    maker = named(f"gym/{task}", module, name) if module else None
    if is_vector(name, maker):
        raise ConfigError(f"env 'gym/{task}' steps many environments at once: take gymvec/{task}")
    if maker is None:
        return _registered(name, kwargs)
    if not callable(maker):
        raise ConfigError(f"env 'gym/{task}' cannot be made: {name} is no class and no function")
    return GymSource(partial(_construct, task, maker, kwargs), None)


def is_environment(task: str) -> bool:
    """Say whether a name stands for a plug-in's class of environments; a function that is called could do anything."""
    module, _, name = task.rpartition(":")
    if module == MAIN or task.startswith(ATARI):
        return True
    maker = (named(f"gym/{task}", module, name) if module else None) or _registered_maker(name)
    if maker is None:
        return True  # making it says that nobody registered it
    return inspect.isclass(maker) and issubclass(maker, gymnasium.Env) and is_of_plugin(maker.__module__)


def is_vector(name: str, maker: Any) -> bool:
    """Say whether a class, or what is registered by a name, is a vector environment alone."""
    if maker is not None:
        return inspect.isclass(maker) and issubclass(maker, gymnasium.vector.VectorEnv)
    spec = gymnasium.registry.get(name)
    return spec is not None and spec.entry_point is None and spec.vector_entry_point is not None


def named(env_id: str, module: str, name: str) -> Any:
    """Import a module and return what it calls by that name; None where it registers the name with Gymnasium."""
    held = _imported(env_id, module)
    if name in gymnasium.registry:
        return None
    try:
        found: Any = reduce(getattr, name.split("."), held)
    except AttributeError:
        if _has_version(name):
            return None
        known = [each for each, value in vars(held).items() if inspect.isclass(value)]
        hint = nearest(name, [*known, *gymnasium.registry])
        raise ConfigError(
            f"unknown Gymnasium env {name!r}: module {module} neither registers nor has it{hint}"
        ) from None
    if inspect.isclass(found) and issubclass(found, gymnasium.Wrapper):
        raise ConfigError(f"env {env_id!r} cannot be made: {name} is a wrapper, for env.wrappers")
    return found


def _imported(env_id: str, module: str) -> Any:
    if not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(f"env {env_id!r} cannot be made: {module!r} is no name of a module")
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"env {env_id!r} cannot be made: {error}") from None


def _has_version(name: str) -> bool:
    """Say whether an id without a version stands for one that is registered with one."""
    try:
        space, plain, version = parse_env_id(name)
    except gymnasium.error.Error:
        return False
    return version is None and find_highest_version(space, plain) is not None


def _registered_maker(name: str) -> Any:
    """Return what makes the environment of an id; None of an id that nobody registered."""
    if name not in gymnasium.registry:
        return None
    entry = gymnasium.registry[name].entry_point
    with as_one_line(f"gym/{name}"):
        return load_env_creator(entry) if isinstance(entry, str) else entry


def _registered(name: str, kwargs: Mapping[str, Any]) -> GymSource:
    if direct := gymnasium_ids.ids().get(name):
        raise ConfigError(f"env 'gym/{name}' is {direct} here: give that id")
    if taken := next((key for key in _OF_MAKE if key in kwargs), None):
        hint = " (env.max_episode_steps is the horizon)" if taken == "max_episode_steps" else ""
        raise ConfigError(f"env.kwargs.{taken} is set by roboloop: leave it out{hint}")
    try:
        limit = gymnasium.spec(name).max_episode_steps
    except gymnasium.error.Error:
        limit = None  # making it says why
    return GymSource(partial(_make_registered, name, kwargs), limit)


def _make_registered(name: str, kwargs: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """Make an environment by its id without a time limit, or say in one line why it cannot be made."""
    try:
        own = gymnasium.spec(name).kwargs
        maker = _registered_maker(name)
        check_arguments(f"gym/{name}", maker, {**own, **kwargs})
        # older ones do not know the keyword of pictures
        with as_one_line(f"gym/{name}"):
            return gymnasium.make(name, max_episode_steps=-1, disable_env_checker=True, **_pictures(maker), **kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        reason = str(error).splitlines()[0]
        wanted = "pip install 'roboloop[box2d]'" if "box2d" in reason.lower() else reason
        raise MissingExtra(f"env 'gym/{name}' needs a package: {wanted}") from error
    except gymnasium.error.Error as error:
        known = nearest(name, gymnasium.registry)
        raise ConfigError(f"unknown Gymnasium env {name!r}{known or ': ' + str(error).splitlines()[0]}") from error


@contextmanager
def as_one_line(env_id: str) -> Iterator[None]:
    """Name what a module or a constructor raises; a stranger's file may have given any arguments."""
    try:
        yield
    except (UserError, gymnasium.error.Error, MemoryError):
        raise  # which are one line elsewhere
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in SUITE.packages:
            raise  # whose extra is named elsewhere
        raise MissingExtra(f"env {env_id!r} needs a package: {error}") from error
    except CRASHES as error:
        raise ConfigError(f"env {env_id!r} cannot be made: {where(error)}") from error


def check_arguments(env_id: str, maker: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that a constructor does not take, or lacks, in one line."""
    try:
        inspect.signature(maker).bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"env {env_id!r} cannot be made with env.kwargs {dict(arguments)}: {error}") from None
    except ValueError:  # written in C: it has no signature
        pass


def _construct(task: str, maker: Maker, kwargs: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """Call what makes an environment; one that makes something else is one line."""
    options = {**(_pictures(maker) if takes(maker, "render_mode") else {}), **kwargs}
    check_arguments(f"gym/{task}", maker, options)
    with as_one_line(f"gym/{task}"):
        env = maker(**options)
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(f"env 'gym/{task}' cannot be made: it returned a {type(env).__name__}, not a gymnasium.Env")
    return env


def takes(maker: Callable[..., Any], name: str) -> bool:
    """Say whether what makes an environment takes an argument of this name."""
    try:
        parameters = inspect.signature(maker).parameters.values()
    except ValueError:
        return True
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


def _pictures(maker: Any) -> dict[str, Any]:
    """Return the keyword that gives pictures, where the metadata of what makes an environment promise some."""
    has_any = "rgb_array" in getattr(maker, "metadata", {}).get("render_modes", ())
    return PICTURES if has_any else {}


def importable(maker: Maker) -> str | None:
    """Return ``module:Name`` by which other processes find a class or function; None where they cannot."""
    module, name = getattr(maker, "__module__", MAIN), getattr(maker, "__qualname__", "<")
    if module == MAIN or "<" in name:
        return None
    try:
        return f"{module}:{name}" if resolve(f"{module}:{name}") is maker else None
    except (ImportError, AttributeError):
        return None


def name_of(maker: Maker) -> str:
    """Return a plain name for an environment that only this process can make."""
    name = getattr(maker, "__name__", type(maker).__name__)
    return name if name.isidentifier() else "given"
