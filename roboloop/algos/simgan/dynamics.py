"""Adversarial dynamics: GAIL whose actor is a simulator's parameters and whose expert is what happened in a target."""

from __future__ import annotations

from pathlib import Path

from roboloop.algos.gail.discriminator import Discriminator
from roboloop.algos.gail.gail import GAIL
from roboloop.algos.gail.losses import EpisodeCounts
from roboloop.algos.ppo.ppo import make_ppo
from roboloop.algos.simgan.dynamics_config import DynamicsConfig
from roboloop.algos.simgan.transition_windows import Identified, TransitionWitness, WindowShape
from roboloop.algos.spec import Setup
from roboloop.core.errors import ConfigError
from roboloop.core.types import EnvSpec
from roboloop.data.config import ExpertConfig
from roboloop.data.dataset import Dataset
from roboloop.data.experts import ExpertBuffer


def make_dynamics(
    cfg: DynamicsConfig, spec: EnvSpec, target: Dataset, num_envs: int, seed: int, device: str = "cpu"
) -> GAIL:
    """Return the algorithm of a config, for an environment of ``spec`` and what the robot did in the target."""
    shape = WindowShape.of(cfg, *robot_dims(spec))
    check_target(shape, target)
    expert = ExpertConfig(cfg.target.directory, cfg.target.episodes, 1, cfg.target.held_out, end_share=0.0)
    experts = ExpertBuffer([target], expert, seed, shape.read)
    lives = EpisodeCounts(experts.num_steps, experts.num_ends)
    discriminator = Discriminator(cfg.discriminator, shape.spec, lives, cfg.ppo.gamma, seed)
    witness = TransitionWitness(shape, Identified(shape.state_dim, shape.action_dim), num_envs)
    return GAIL(cfg, make_ppo(cfg.ppo, spec, 1, num_envs, seed, device), discriminator, experts, seed, witness)


def robot_dims(spec: EnvSpec) -> tuple[int, int]:
    """Return how many numbers the robot's state and action have, at the end of observations."""
    try:
        state_dim, action_dim = int(spec.protocol["state_dim"]), int(spec.protocol["robot_action_dim"])
    except KeyError:
        raise ConfigError("dynamics needs an environment whose action is a simulator's parameters, such as "
                          "hybrid/...: this one shows no robot's state and action") from None  # fmt: skip
    if len(spec.obs_shape) != 1 or spec.obs_shape[0] < state_dim + action_dim or min(state_dim, action_dim) < 1:
        raise ConfigError(f"observations {spec.obs_shape} cannot end with {state_dim} and {action_dim} numbers")
    return state_dim, action_dim


def check_target(shape: WindowShape, target: Dataset) -> None:
    """Refuse data of another robot."""
    spec = target.schema.spec
    if spec.obs_dtype.names is not None or len(spec.obs_shape) != 1 or spec.obs_shape[0] < shape.state_dim:
        raise ConfigError(f"the dataset {target.directory} has observations {spec.obs_shape}, the robot's state has "
                          f"{shape.state_dim} numbers")  # fmt: skip
    if not spec.is_continuous or spec.action_dim != shape.action_dim:
        raise ConfigError(f"the dataset {target.directory} has actions of {spec.action_dim} numbers, the robot "
                          f"{shape.action_dim}")  # fmt: skip


def make(setup: Setup) -> GAIL:
    """Return the algorithm for a run."""
    target = Dataset.open(Path(setup.config.target.directory))
    return make_dynamics(setup.config, setup.spec, target, setup.num_envs, setup.seed, setup.device)
