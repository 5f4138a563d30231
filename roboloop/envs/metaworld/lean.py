"""What Meta-World's observation and rewards are made of, in plain floats: the same bits in a fraction of the time.

Numbers are read once per step and stay Python floats, and what depends only on the episode is computed at its start.
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from roboloop.core.types import Array

LONG_TAIL = float(np.sqrt(1 / 0.1 - 1))
GAUSSIAN = float(np.sqrt(-2 * np.log(0.1)))
FINGERS = ("hand", "rightclaw", "rightpad", "leftclaw", "leftpad")
"""Bodies that every Meta-World model holds in this order."""
Point = Sequence[float]
WRITE = struct.Struct("11d").pack_into
"""Writes hand, opening, object and rotation; several times quicker than assigning a list to a slice."""


def length(*parts: float) -> float:
    """Return a vector's length by NumPy's own dot product: some processors fuse its sums, and round otherwise then."""
    vector = np.array(parts)
    return math.sqrt(vector.dot(vector))


def distance(a: Point, b: Point) -> float:
    """Return how far apart two points are."""
    return length(a[0] - b[0], a[1] - b[1], a[2] - b[2])


def distance_xz(a: Point, b: Point) -> float:
    """Return how far apart two points are, seen from the side."""
    return length(a[0] - b[0], a[2] - b[2])


def near(x: float, lower: float, upper: float, margin: float) -> float:
    """Return ``tolerance`` with its long tail: 1 inside the bounds, 0.1 at a margin's distance."""
    if lower <= x <= upper:
        return 1.0
    if margin == 0:
        return 0.0
    scaled = (lower - x if x < lower else x - upper) / margin * LONG_TAIL
    return 1.0 / (scaled**2 + 1)  # not scaled * scaled: a power may differ from it in the last bit


def near_gaussian(x: float, upper: float, margin: float) -> float:
    """Return ``tolerance`` with its Gaussian tail for a distance."""
    if x <= upper:
        return 1.0
    if margin == 0:
        return 0.0
    scaled = (x - upper) / margin * GAUSSIAN
    return float(np.exp(-0.5 * scaled**2))  # not math.exp, for the same reason


def both(a: float, b: float) -> float:
    """Return the Hamacher product."""
    product = a * b
    total = a + b - product
    return product / total if total > 0 else 0.0


def quaternion(matrix: list[float]) -> tuple[float, float, float, float]:
    """Return (x, y, z, w) of a rotation matrix, dividing by the largest component as SciPy does."""
    a, b, c, d, e, f, g, h, i = matrix
    trace = a + e + i
    largest = max(a, e, i, trace)
    if largest == a:
        x, y, z, w = 1 - trace + 2 * a, d + b, g + c, h - f
    elif largest == e:
        x, y, z, w = d + b, 1 - trace + 2 * e, h + f, c - g
    elif largest == i:
        x, y, z, w = g + c, h + f, 1 - trace + 2 * i, d - b
    else:
        x, y, z, w = h - f, c - g, d - b, 1 + trace
    size = math.sqrt(x * x + y * y + z * z + w * w)
    return x / size, y / size, z / size, w / size


def _rotation(data: Any, turned: tuple[str, str] | None) -> Callable[[], Sequence[float]]:
    """Return the function that reads an object's rotation."""
    if turned is None:
        return lambda: (0.0, 0.0, 0.0, 0.0)
    kind, name = turned
    view = getattr(data, kind)(name)
    if kind == "body":
        return cast("Callable[[], Sequence[float]]", view.xquat.tolist)
    matrix = view.xmat
    return lambda: quaternion(matrix.tolist())


class Lean(ABC):
    """One task's observation and reward; ``look`` reads the simulator, ``judge`` thinks about what was seen."""

    place: ClassVar[tuple[str, str]] = ("body", "obj")
    """Kind and name of what stands for the object's position."""
    offset: ClassVar[tuple[float, float, float]] = (0.0, 0.0, 0.0)
    turned: ClassVar[tuple[str, str] | None] = ("geom", "objGeom")
    """Kind and name of what stands for its rotation: a body's quaternion, another's matrix, or none for zeros."""
    apart_m: ClassVar[float] = 0.0
    """Distance of object and goal below which Meta-World draws them again."""
    scenery: ClassVar[str | None] = None
    """The body that stands elsewhere in every episode."""

    def __init__(self, env: Any) -> None:
        self.env, self.data = env, env.data
        first = env.model.body(FINGERS[0]).id
        if [env.model.body(first + k).name for k in range(len(FINGERS))] != list(FINGERS):
            raise ValueError(f"the fingers' bodies are not in the order {FINGERS}")
        self._fingers = self.data.xpos[first : first + len(FINGERS)].reshape(-1)
        self._right_tip, self._left_tip = (self.data.site(f"{side}EndEffector").xpos for side in ("right", "left"))
        self._place = getattr(self.data, self.place[0])(self.place[1]).xpos
        self._rotation = _rotation(self.data, self.turned)
        space = env.sawyer_observation_space
        self._low, self._high = space.low, space.high
        self._bounds: list[float] = [*space.low[:3].tolist(), *space.high[:3].tolist()]
        self.obs = np.zeros(39)
        """The latest observation, overwritten by the next."""
        self._present, self._past, self._memory = self.obs[:18], self.obs[18:36], self.obs.data
        self.hand = self.object = self.tcp = (0.0, 0.0, 0.0)
        self.opened = self.left_y = self.right_y = 0.0

    def draw(self) -> None:
        """Draw places as Meta-World's reset does, twice, and put the scenery where the second draw says."""
        for _ in range(2):
            places = self.env._get_state_rand_vec()
            while self.apart_m and distance([*places[:2], 0.0], [*places[3:5], 0.0]) < self.apart_m:
                places = self.env._get_state_rand_vec()
        if self.scenery is not None:
            self.env.model.body(self.scenery).pos = places[-3:]

    def begin(self) -> None:
        """Take over an episode that the task's own code has placed."""
        env = self.env
        self.obs[:18], self.obs[36:] = env._prev_obs, env._target_pos
        np.clip(self.obs, self._low, self._high, out=self.obs)
        self.target: Point = env._target_pos.tolist()
        self.init_tcp: Point = env.init_tcp.tolist()
        self.prepare(env)

    def look(self) -> None:
        """Read the simulator and write the observation."""
        hx, hy, hz, rx, ry, rz, _, self.right_y, _, lx, ly, lz, _, self.left_y, _ = self._fingers.tolist()
        x0, y0, z0, x1, y1, z1 = self._bounds
        hx = x0 if hx < x0 else x1 if hx > x1 else hx
        hy = y0 if hy < y0 else y1 if hy > y1 else hy
        hz = z0 if hz < z0 else z1 if hz > z1 else hz
        opened = length(rx - lx, ry - ly, rz - lz) / 0.1
        self.opened = opened = opened if opened < 1.0 else 1.0
        (rx, ry, rz), (lx, ly, lz) = self._right_tip.tolist(), self._left_tip.tolist()
        x, y, z = self._place.tolist()
        dx, dy, dz = self.offset
        x, y, z = x + dx, y + dy, z + dz
        self.hand, self.tcp, self.object = (hx, hy, hz), ((rx + lx) / 2.0, (ry + ly) / 2.0, (rz + lz) / 2.0), (x, y, z)
        self._past[:] = self._present
        WRITE(self._memory, 0, hx, hy, hz, opened, x, y, z, *self._rotation())

    @abstractmethod
    def prepare(self, env: Any) -> None:
        """Compute what stays for the episode."""

    @abstractmethod
    def judge(self, action: Array) -> tuple[float, bool]:
        """Return the reward of what was seen, and whether the task is solved now."""
