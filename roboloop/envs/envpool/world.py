"""EnvPool's C++ ports of MuJoCo tasks behind our contract: ``envpool/`` in front of a metaworld, gym or dmc id.

They are other simulators than those of the plain ids (MuJoCo 3.6, goals and noise drawn in another way), so results are
not comparable bit for bit, and the protocol says so. EnvPool takes seeds only when a pool is made, hence every episode
makes one: a few milliseconds for Gymnasium's tasks, about 25 for Meta-World's, up to 120 for DM Control's. A seed and
its actions then determine the episode, and a state is restored by replay. EnvPool's speed comes from batches, which a
pool of one environment does not have; and on Meta-World our own simulator is quicker than a batch on one core.
"""

from __future__ import annotations

import warnings
from importlib import metadata
from typing import Any

import envpool
import numpy as np

from roboloop.core.errors import ConfigError, nearest
from roboloop.core.types import Array
from roboloop.envs.config import EnvConfig
from roboloop.envs.env import EpisodeEnv, Outcome, Task, repeated
from roboloop.envs.registry import split
from roboloop.envs.replay import ReplayWorld
from roboloop.envs.spaces import columns, decoder, observations

NEVER = 2**31 - 1
"""As horizon: the clock is ours."""
SEEDS = 2**31
"""EnvPool's seeds are 32-bit; ours are taken modulo this."""


def _camel(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in name.replace("_", "-").split("-"))


def their_id(env_id: str) -> str:
    """Return EnvPool's name of one of our ids."""
    suite, task = split(env_id)
    if suite not in ("metaworld", "gym", "dmc"):
        raise ConfigError(f"unknown env 'envpool/{env_id}': EnvPool stands in for metaworld, gym and dmc")
    names = {"metaworld": f"MetaWorld/{_camel(task.removesuffix('-v3'))}-v3", "dmc": f"{_camel(task)}-v1", "gym": task}
    known = envpool.list_all_envs()
    if names[suite] not in known:
        raise ConfigError(f"EnvPool has no {names[suite]!r}{nearest(names[suite], known)}")
    return names[suite]


def pool(name: str, num_envs: int, seed: int, **options: Any) -> Any:
    """Make a pool by EnvPool's name, on one thread, with Meta-World's goal in view."""
    if name.startswith("MetaWorld/"):
        options["partially_observable"] = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the precision of bounds, when a pool's spaces are first asked for
        envs = envpool.make(name, env_type="gymnasium", num_envs=num_envs, num_threads=1, seed=seed, **options)
        _ = envs.observation_space, envs.action_space
    return envs


def _first(tree: Any) -> Any:
    """Return the only environment's part of a batch."""
    return {key: _first(part) for key, part in tree.items()} if isinstance(tree, dict) else tree[0]


class PoolWorld(ReplayWorld):
    """A pool of one environment, made anew for each episode."""

    def __init__(self, name: str, action_space: Any, observation_space: Any) -> None:
        low, _, choices = columns(action_space)
        super().__init__(len(low))
        self._name = name
        self._pool: Any = None
        self._decode, self._action_dtype = decoder(action_space), action_space.dtype
        self._read = observations(observation_space, choices).read

    def start(self, seed: int) -> Array:
        """Make the pool of a seed, and begin."""
        self._pool = pool(self._name, 1, seed % SEEDS, max_episode_steps=NEVER)
        obs, _ = self._pool.reset()
        return self._read(_first(obs), {})

    def advance(self, action: Array, repeat: int) -> Outcome:
        """Hold an action for some control steps."""
        return repeated(self._tick, np.asarray(self._decode(action), self._action_dtype)[None], repeat)

    def _tick(self, action: Array) -> Outcome:
        obs, reward, terminated, truncated, info = self._pool.step(action)
        success = info.get("success", info.get("is_success"))
        known = None if success is None else float(success[0])
        ended, cut = bool(terminated[0]), bool(truncated[0])
        return Outcome(self._read(_first(obs), {}), float(reward[0]), ended, cut, known)

    def render(self) -> Array:
        """Refuse: EnvPool's renderer ends the process where it finds no display."""
        raise ConfigError("EnvPool gives no pictures; evaluate with the id without 'envpool/' to see some")

    def close(self) -> None:
        """Release the simulator and its thread."""
        self._pool = None


def make(task: str, cfg: EnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``envpool/<our id>``."""
    name = their_id(task)
    example = pool(name, 1, 0)
    actions, obs = example.action_space, example.observation_space
    low, high, choices = columns(actions)
    seen = observations(obs, choices)
    if seen.dtype != np.float32:
        raise ConfigError(f"env 'envpool/{task}' shows pictures: EnvPool is supported for vectors only")
    limit = int(example.config["max_episode_steps"])
    return EpisodeEnv(
        PoolWorld(name, actions, obs),
        Task(
            obs_shape=seen.shape,
            obs_dtype=seen.dtype,
            action_low=low,
            action_high=high,
            horizon=cfg.horizon(limit, evaluation),
            action_repeat=cfg.action_repeat,
            protocol={"suite": f"envpool {metadata.version('envpool')}", "task": name},
            action_choices=choices,
        ),
    )
