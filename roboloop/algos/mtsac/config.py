"""Settings of soft actor-critic for a set of tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from roboloop.algos.limits import at_least_one, at_most, has_layers
from roboloop.algos.sac.config import SACSettings
from roboloop.algos.spec import AlgorithmSpec
from roboloop.core.errors import ConfigError
from roboloop.envs import registry


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


SPEC = AlgorithmSpec(
    "mtsac",
    MTSACConfig,
    "replay",
    "roboloop.algos.mtsac.mtsac:make",
    "roboloop.algos.mtsac.mtsac:load_policy",
    check=_check_groups,
)
