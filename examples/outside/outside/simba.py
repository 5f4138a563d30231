"""A residual network for actor and critics, after SimBa (arXiv:2410.09754): ``--algo.net outside.simba:residual``."""

from typing import Any

from torch import Tensor, nn


class Block(nn.Module):
    """The input, and a network on its normalised rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        y: Tensor = self.net(x)
        return x + y


def residual(inputs: int, outputs: int, config: Any) -> nn.Module:
    """Return a block for each hidden layer of the config."""
    width = config.hidden[0]
    blocks = [Block(width) for _ in config.hidden]
    return nn.Sequential(nn.Linear(inputs, width), *blocks, nn.LayerNorm(width), nn.Linear(width, outputs))
