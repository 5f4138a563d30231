"""Settings of soft actor-critic, for one task and for a set of tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from roboloop.algos.limits import above_zero, at_least_one, at_most, check_convs, has_layers, not_negative, within_one
from roboloop.algos.spec import AlgorithmSpec
from roboloop.core.config import RESOURCE
from roboloop.core.errors import ConfigError
from roboloop.envs import registry


@dataclass(frozen=True)
class SACSettings:
    """What soft actor-critic needs for any number of tasks."""

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    layer_norm: bool = False
    """Normalise hidden layers before each ReLU."""
    normalize_obs: bool = False
    """Scale observations by their running mean and deviation; for units that differ, such as metres and radians."""
    gamma: float = 0.99
    """Discount per environment step."""
    tau: float = 0.005
    """Fraction by which the target critics follow the critics at each update."""
    actor_lr: float = 3e-4
    """Adam step size of the actor."""
    critic_lr: float = 3e-4
    """Adam step size of the critics."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """'linear': step sizes of actor and critics fall to zero over training."""
    alpha_lr: float = 3e-4
    """Adam step size of the logarithm of the temperature."""
    batch_size: int = 256
    """Transitions per update."""
    n_step: int = 1
    """Rewards summed before bootstrapping."""
    alpha: float | None = None
    """Fixed temperature; None learns it."""
    initial_alpha: float = 1.0
    """Learned temperature at the start; 1.0 explores widely until the critics are of use."""
    target_entropy: float | None = None
    """Entropy the learned temperature holds, in nats; None means minus the number of action dimensions."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this before learning."""
    max_grad_norm: float = 0.0
    """Longest gradient of the actor, and of all critics; 0 is not limited."""
    num_critics: int = 2
    """Critics whose minimum is trusted."""
    shards: int = 2
    """Parts of a batch whose gradients are summed in fixed order: part of the maths, not of the resources."""
    processes: int = field(default=2, metadata=RESOURCE)
    """Processes that compute shards, at most one per core: never changes a bit of the result."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        at_least_one(self, "batch_size", "n_step", "num_critics", "shards", "processes")
        at_most(self, batch_size=10**7, n_step=10_000, num_critics=1_000, shards=1_000, processes=1_000)
        above_zero(self, "actor_lr", "critic_lr", "alpha_lr", "initial_alpha")
        within_one(self, "gamma", "tau")
        not_negative(self, "max_grad_norm")
        has_layers(self, "hidden")
        if self.alpha is not None and self.alpha < 0:
            raise ConfigError(f"alpha must not be negative, not {self.alpha}")
        if self.batch_size % self.shards:
            raise ConfigError(f"batch_size {self.batch_size} does not split into {self.shards} equal shards")


@dataclass(frozen=True)
class SACConfig(SACSettings):
    """Soft actor-critic with learned temperature, arXiv:1812.05905."""

    name: Literal["sac"] = "sac"
    """Which algorithm this section configures."""
    conv_channels: tuple[int, ...] = (32, 32, 32)
    """Channels of the convolutions that read pictures; actor and critics share them, and the critics train them."""
    conv_kernels: tuple[int, ...] = (4, 3, 3)
    """Their window sizes, in pixels."""
    conv_strides: tuple[int, ...] = (4, 2, 1)
    """Their strides, in pixels."""
    feature_dim: int = 50
    """Numbers to which actor and critics each narrow what the convolutions say."""
    shift_px: int = 4
    """Sampled pictures are shifted by up to so many pixels either way (DrQ, arXiv:2004.13649); 0 leaves them."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        super().check()
        check_convs(self)
        at_least_one(self, "feature_dim")
        not_negative(self, "shift_px")


@dataclass(frozen=True)
class MTSACConfig(SACSettings):
    """Soft actor-critic for a set of tasks: equal rows and a temperature for each (docs/algorithms/mtsac.md)."""

    name: Literal["mtsac"] = "mtsac"
    """Which algorithm this section configures."""
    net: Literal["heads", "plain", "soft"] = "heads"
    """'heads' = ``hidden`` layers that all tasks share, then layers of each task's own; 'plain' = one network that
    reads the task from its input; 'soft' = modules, mixed anew for each state and task (arXiv:2003.13661)."""
    head_hidden: tuple[int, ...] = (256,)
    """Widths of the hidden layers of each head; may be empty."""
    modules: int = 2
    """With net 'soft': modules per layer."""
    module_layers: int = 2
    """With net 'soft': layers of modules."""
    module_width: int = 256
    """With net 'soft': units of a module."""
    gate_hidden: tuple[int, ...] = (256, 256)
    """With net 'soft': widths of the gate's layers; ``hidden`` are those of the state's embedding."""
    routing: Literal["soft", "hard"] = "soft"
    """With net 'soft': mix all modules that feed one, or take the likeliest alone; gradients are the mixture's."""
    task_weights: Literal["equal", "temperature"] = "equal"
    """'temperature' weighs losses by K softmax(-log alpha): tasks that still explore pull less."""
    normalize_reward: bool = False
    """Divide rewards by the running deviation of their task's, when they are sampled."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        super().check()
        at_least_one(self, "module_width")
        if self.head_hidden:
            has_layers(self, "head_hidden")
        if self.net == "soft":
            has_layers(self, "gate_hidden")
            for name in ("modules", "module_layers"):
                if getattr(self, name) < 2:
                    raise ConfigError(f"{name} must be at least 2, not {getattr(self, name)}")
            at_most(self, modules=1_000, module_layers=1_000)
            if self.layer_norm:
                raise ConfigError("layer_norm is not for net 'soft'")
        if self.task_weights == "temperature" and self.alpha is not None:
            raise ConfigError("task_weights 'temperature' needs learned temperatures: leave alpha out")


def _check_groups(experiment: Any) -> None:
    """Refuse groups that run freely without an environment of each task."""
    num_tasks = len(registry.task_set(experiment.env.id))
    for in_group in sorted(experiment.sample.rollout_envs(experiment.env.num_envs)):
        if num_tasks and in_group % num_tasks:
            raise ConfigError(
                f"with sample.free_running each group needs every task: {in_group} envs are no multiple of {num_tasks}"
            )


SPEC = AlgorithmSpec("sac", SACConfig, "replay", "roboloop.algos.sac.sac:make", "roboloop.algos.sac.sac:load_policy")
MULTI_TASK = AlgorithmSpec(
    "mtsac",
    MTSACConfig,
    "replay",
    "roboloop.algos.sac.sac:make",
    "roboloop.algos.sac.sac:load_policy",
    check=_check_groups,
)
