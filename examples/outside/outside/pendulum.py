"""A reward, auxiliary tasks and an expert for an environment that somebody else wrote: Gymnasium's ``Pendulum-v1``.

roboloop train --env gym/Pendulum-v1 --env.reward outside.pendulum:upright
roboloop record gym/Pendulum-v1 --expert --env.expert outside.pendulum:expert --episodes 20 --out demos
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from roboloop.core.types import Array

GRAVITY, TORQUE = 10.0, 2.0


def upright(obs: Array, action: Array, next_obs: Array) -> tuple[Array, Array]:
    """Pay for standing upright and slowly; observations are cosine, sine and speed of N pendulums."""
    cosine, speed = next_obs[:, 0], next_obs[:, 2]
    return cosine - 0.01 * speed**2, (cosine > 0.95) & (np.abs(speed) < 1)


def fast(obs: Array, action: Array, next_obs: Array) -> Array:
    """Pay for swinging."""
    return np.abs(next_obs[:, 2]) / 8


def tasks(task: str, config: object) -> dict[str, Callable[[Array, Array, Array], object]]:
    """Return the main task and one that helps to explore."""
    return {"upright": upright, "fast": fast}


def expert(task: str, name: str = "") -> Callable[[Array], Array]:
    """Return an expert: bring energy in while the pendulum hangs, balance it at the top."""

    def act(obs: Array) -> Array:
        cosine, sine, speed = obs.T
        energy = speed**2 / 6 + GRAVITY / 2 * (cosine - 1)  # of a rod of mass and length 1; 0 when it stands
        pump = TORQUE * np.sign(np.where(np.abs(speed) < 1e-3, 1.0, speed)) * np.where(energy < 0, 1.0, -1.0)
        balance = -12 * np.arctan2(sine, cosine) - 3 * speed
        torque = pump if name == "fast" else np.where(cosine > 0.9, balance, pump)
        return np.clip(torque, -TORQUE, TORQUE)[:, None].astype(np.float32)

    return act
