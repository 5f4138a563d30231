"""A cart with a motor, one with a weak motor, and one whose motor is to be found out: a gap between two worlds."""

from __future__ import annotations

import math

import numpy as np

from roboloop.core.rng import get_rng_state, set_rng_state, stream
from roboloop.core.types import Array, State
from roboloop.envs.config import EnvConfig
from roboloop.envs.env import EpisodeEnv, Outcome, Task, World, repeated

PERIOD_S = 0.1
MOTOR_M_PER_S2 = 5.0
DAMPING_PER_S = 1.0
TRACK_M = 0.7
"""Half the length of the track; who leaves it has ended the world."""
WEAK = 0.5
"""Motor of the weak cart, beside the nominal 1."""
MAX_FACTOR = 4.0
"""A hybrid's action of 1 makes the motor so many times as strong, -1 so many times as weak, 0 leaves it."""
HORIZON = 50


class Cart:
    """A mass on a track: place and speed are seen, the action is the motor's force."""

    def __init__(self, motor: float) -> None:
        self.motor = motor
        self._x_m = self._v_m_per_s = 0.0

    def reset(self, seed: int) -> Array:
        """Draw place and speed."""
        self._x_m, self._v_m_per_s = np.random.default_rng(seed).uniform((-0.4, -0.2), (0.4, 0.2)).tolist()
        return self.obs()

    def step(self, action: Array, repeat: int) -> Outcome:
        """Move; staying near the middle is paid."""
        return repeated(self.tick, action, repeat)

    def tick(self, action: Array) -> Outcome:
        """Move for one period."""
        push = self.motor * MOTOR_M_PER_S2 * float(action[0]) - DAMPING_PER_S * self._v_m_per_s
        self._v_m_per_s += PERIOD_S * push
        self._x_m += PERIOD_S * self._v_m_per_s
        return Outcome(self.obs(), 1.0 - self._x_m**2, abs(self._x_m) > TRACK_M, False, None)

    def obs(self) -> Array:
        """Return place and speed."""
        return np.array([self._x_m, self._v_m_per_s], np.float32)

    def render(self) -> Array:
        """Return the track with the cart (white)."""
        picture = np.zeros((32, 128, 3), np.uint8)
        column = int(np.clip((self._x_m / TRACK_M + 1.5) / 3 * 127, 2, 125))
        picture[12:20, column - 2 : column + 3] = 255
        return picture

    def get_state(self) -> State:
        """Return place and speed."""
        return {"x_m": self._x_m, "v_m_per_s": self._v_m_per_s}

    def set_state(self, state: State) -> None:
        """Restore place and speed."""
        self._x_m, self._v_m_per_s = float(state["x_m"]), float(state["v_m_per_s"])

    def close(self) -> None:
        """Hold nothing."""


class HybridCart:
    """The nominal cart, driven at random from within; the action is how strong its motor is in this step."""

    def __init__(self) -> None:
        self._cart = Cart(1.0)
        self._rng = stream(0, "driver")
        self._drive = np.zeros(1, np.float32)

    def reset(self, seed: int) -> Array:
        """Begin an episode of the cart, and of whoever drives it."""
        self._cart.reset(seed)
        self._rng = stream(seed, "driver")
        return self._decided()

    def _decided(self) -> Array:
        """Let the driver decide; return place, speed, and what the motor will be asked for."""
        self._drive = self._rng.uniform(-1.0, 1.0, 1).astype(np.float32)
        return np.concatenate((self._cart.obs(), self._drive))

    def step(self, action: Array, repeat: int) -> Outcome:
        """Move with such a motor."""
        return repeated(self._tick, action, repeat)

    def _tick(self, action: Array) -> Outcome:
        self._cart.motor = math.exp(math.log(MAX_FACTOR) * float(action[0]))
        out = self._cart.tick(self._drive)
        return out._replace(obs=self._decided(), reward=0.0)

    def render(self) -> Array:
        """Return the cart's picture."""
        return self._cart.render()

    def get_state(self) -> State:
        """Return the cart's state and the driver's."""
        return {"cart": self._cart.get_state(), "drive": self._drive.copy(), "rng": get_rng_state(self._rng)}

    def set_state(self, state: State) -> None:
        """Restore the cart's state and the driver's."""
        self._cart.set_state(state["cart"])
        self._drive = np.array(state["drive"], np.float32)
        set_rng_state(self._rng, state["rng"])

    def close(self) -> None:
        """Hold nothing."""


def make(task: str, cfg: EnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``tiny/cart``, ``tiny/weak-cart`` or ``tiny/hybrid-cart``."""
    is_hybrid = task == "hybrid-cart"
    world: World = HybridCart() if is_hybrid else Cart(WEAK if task == "weak-cart" else 1.0)
    dims: dict[str, str | int] = {"state_dim": 2, "robot_action_dim": 1}
    return EpisodeEnv(
        world,
        Task(
            obs_shape=(3 if is_hybrid else 2,),
            obs_dtype=np.dtype(np.float32),
            action_low=np.array([-1.0]),
            action_high=np.array([1.0]),
            horizon=cfg.horizon(HORIZON, evaluation),
            action_repeat=cfg.action_repeat,
            protocol={"suite": "tiny", "task": task, **(dims if is_hybrid else {})},
        ),
    )
