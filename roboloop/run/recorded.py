"""What was recorded elsewhere beside a legged robot's simulator: the ground of ``predict`` and ``sysid``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np

from roboloop.core.config import override
from roboloop.core.errors import ConfigError, DataError
from roboloop.core.flags import parse_flags
from roboloop.core.options import Options
from roboloop.core.types import Array
from roboloop.data.dataset import Dataset
from roboloop.data.experts import split
from roboloop.envs import registry
from roboloop.envs.config import EnvConfig
from roboloop.envs.env import EpisodeEnv
from roboloop.envs.legged.prediction import Recorded
from roboloop.envs.legged.world import LeggedWorld
from roboloop.run.config import Experiment


class Simulator(NamedTuple):
    """A robot's simulator to predict with: nothing in it is noisy or drawn."""

    env: EnvConfig
    world: LeggedWorld

    @property
    def obs_dim(self) -> int:
        """Numbers of the robot's observation."""
        return self.world.task.state_dim * len(self.world.task.lags)


def open_simulator(env_id: str, flags: list[str]) -> Simulator:
    """Make the simulator of an environment with ``--env.KEY VALUE`` flags, without noise, pushes and drawn domains."""
    cfg = parse_flags(Experiment(env=EnvConfig(id=env_id)), flags).env
    if hasattr(cfg, "legged"):
        cfg = override(cfg, {"legged": {"obs_noise": 0.0, "action_noise": 0.0, "push_n": 0.0, "randomize": False}})
        env = registry.make(cfg)
        if isinstance(env, EpisodeEnv) and isinstance(env.world, LeggedWorld):
            return Simulator(cfg, env.world)
        env.close()
    raise ConfigError(f"{env_id} is no robot in an engine, such as hopper/bullet: nothing can be predicted with it")


def add_data_options(options: Options) -> None:
    """Add what says which episodes of a dataset are meant."""
    add = options.add_argument
    add("--data", type=Path, required=True, metavar="DATASET", help="what the robot did elsewhere: roboloop record")
    add("--episodes", type=int, default=0, metavar="N", help="the first so many of them; 0 = all")
    add("--seed", type=int, default=0, help="of all draws, also of which episodes are held out")
    options.epilog = "--env.KEY VALUE sets a config key of the environment."


def chosen(data: Dataset, known: argparse.Namespace) -> tuple[Array, Array]:
    """Return the rows to learn from, and those that a run with the same seed and share holds out as well."""
    if known.episodes < 0 or known.seed < 0 or not 0 <= known.held_out < 1:
        raise ConfigError("--episodes and --seed must not be negative, --held-out is a share below 1")
    return split(data, np.arange(len(data))[: known.episodes or None], known.held_out, known.seed)


def read_episodes(data: Dataset, rows: Array, simulator: Simulator) -> list[Recorded]:
    """Return episodes as a simulator can replay them; those of another robot are refused."""
    spec, model = data.schema.spec, simulator.world.model
    has, wants = (spec.obs_shape, spec.action_dim), ((simulator.obs_dim,), model.num_joints)
    if has != wants:
        what = f"{has[0]} numbers observed and {has[1]} decided"
        raise DataError(f"{data.directory} has {what}, {simulator.env.id} {wants[0]} and {wants[1]}: another robot")
    dim = simulator.world.task.state_dim
    found = []
    for row in rows.tolist():
        episode = data.episode(row)
        actions = np.clip(episode.action, spec.action_low, spec.action_high).astype(np.float32)
        found.append(Recorded(np.array(episode.obs[:, :dim]), actions))
    return found
