"""Configs of the algorithms: frozen, defaults in one place, contradictions raise."""

from __future__ import annotations

from dataclasses import dataclass

from roboloop.core.errors import ConfigError


@dataclass(frozen=True)
class SACConfig:
    """Soft actor-critic with learned temperature, arXiv:1812.05905."""

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
    num_critics: int = 2
    """Critics whose minimum is trusted."""
    shards: int = 2
    """Parts of a batch whose gradients are summed in fixed order: part of the maths, not of the resources."""
    processes: int = 2
    """Processes that compute shards, at most one per core: never changes a bit of the result."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        for name in ("batch_size", "n_step", "num_critics", "shards", "processes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("actor_lr", "critic_lr", "alpha_lr", "initial_alpha"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("gamma", "tau"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must lie in [0, 1], not {getattr(self, name)}")
        if not self.hidden or min(self.hidden) < 1:
            raise ConfigError(f"hidden needs at least one layer of at least one unit, not {self.hidden}")
        if self.alpha is not None and self.alpha < 0:
            raise ConfigError(f"alpha must not be negative, not {self.alpha}")
        if self.batch_size % self.shards:
            raise ConfigError(f"batch_size {self.batch_size} does not split into {self.shards} equal shards")
