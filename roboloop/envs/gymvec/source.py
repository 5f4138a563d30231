"""Where a vector environment comes from: an id, ``module:Id`` or ``module:Class``."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv

from roboloop.core.errors import ConfigError, nearest
from roboloop.core.vouched import is_of_plugin
from roboloop.envs.gym.source import as_one_line, check_arguments, named, takes, wrapped
from roboloop.envs.gymvec.suite import GymVecEnvConfig

LIMIT = "max_episode_steps"


def find(task: str) -> EnvSpec:
    """Return what Gymnasium knows of an id, after importing the module in front of it; a class is as if registered."""
    module, _, name = task.rpartition(":")
    maker = named(f"gymvec/{task}", module, name) if module else None
    if maker is not None:
        if not callable(maker) or (inspect.isclass(maker) and issubclass(maker, gymnasium.Env)):
            raise ConfigError(f"env 'gymvec/{task}' is no vector environment: take gym/{task}")
        return EnvSpec(name, vector_entry_point=maker)
    if name not in gymnasium.registry:
        raise ConfigError(f"unknown Gymnasium env {name!r}{nearest(name, gymnasium.registry)}")
    spec = gymnasium.registry[name]
    if spec.vector_entry_point is None:
        raise ConfigError(f"{name} registers no vector_entry_point: take gym/{task}, which is stepped env by env")
    return spec


def is_environment(task: str) -> bool:
    """Say whether a name stands for a plug-in's class of environments; a function that is called could do anything."""
    module, _, name = task.rpartition(":")
    maker = named(f"gymvec/{task}", module, name) if module else None
    if maker is None:
        spec = gymnasium.registry.get(name)
        if spec is None or spec.vector_entry_point is None:
            return True  # making it says what is wrong
        maker = _maker_of(spec)
    return inspect.isclass(maker) and issubclass(maker, VectorEnv) and is_of_plugin(maker.__module__)


def _maker_of(spec: EnvSpec) -> Any:
    entry: Any = spec.vector_entry_point
    return load_env_creator(entry) if isinstance(entry, str) else entry


def build(task: str, cfg: GymVecEnvConfig, num_envs: int, limit: int | None) -> tuple[Any, bool]:
    """Make so many environments, and say whether they were told the limit; one alone shows pictures where it can."""
    spec = find(task)
    maker = _maker_of(spec)
    takes_limit = takes(maker, LIMIT)
    options = {**cfg.kwargs, **({} if limit is None or not takes_limit else {LIMIT: limit})}
    if num_envs == 1 and "rgb_array" in getattr(maker, "metadata", {}).get("render_modes", ()):
        options["render_mode"] = "rgb_array"
    told = {LIMIT: spec.max_episode_steps} if takes_limit else {}
    check_arguments(f"gymvec/{task}", maker, {"num_envs": num_envs, **told, **spec.kwargs, **options})
    with warnings.catch_warnings(), as_one_line(f"gymvec/{task}"):
        warnings.simplefilter("ignore")  # what is wrong with its metadata, we say ourselves
        env = gymnasium.make_vec(spec, num_envs, gymnasium.VectorizeMode.VECTOR_ENTRY_POINT, **options)
    return wrapped(env, cfg.wrappers, VectorEnv), takes_limit
