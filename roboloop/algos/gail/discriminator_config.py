"""Settings of the discriminator that all adversarial methods share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roboloop.algos.limits import above_zero, has_layers, not_negative

RewardForm = Literal["logit", "log_d", "minus_log_one_minus_d"]
Ends = Literal["absorbing", "alive", "none"]


@dataclass(frozen=True)
class DiscriminatorConfig:
    """Tells an expert's steps from the policy's; its opinion is the reward (arXiv:1606.03476, arXiv:1809.02925)."""

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the tanh layers; none = linear."""
    use_action: bool = True
    """Whether it sees actions, or states alone."""
    lr: float = 3e-4
    """AdamW step size."""
    weight_decay: float = 0.01
    """AdamW pull of every weight towards zero, in step sizes."""
    max_grad_norm: float = 10.0
    """Longest gradient; 0 is not limited."""
    gradient_penalty: float = 10.0
    """Weight of the squared distance of its slope from 1, between expert and policy, in units of normalised inputs."""
    spectral_norm: bool = False
    """Divide each layer by its largest singular value; the penalty may then be 0."""
    reward: RewardForm = "logit"
    """What it pays: log D - log(1 - D), log D (never above 0), or -log(1 - D) (never below 0)."""
    ends: Ends = "absorbing"
    """How the end of the world is paid, without which rewards favour long or short lives whatever the expert does:
    'absorbing' learns what the time after it is worth, 'alive' adds ln(life of the expert / life of the policy) to
    each step, 'none' pays nothing."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible."""
        above_zero(self, "lr")
        not_negative(self, "weight_decay", "max_grad_norm", "gradient_penalty")
        if self.hidden:
            has_layers(self, "hidden")
