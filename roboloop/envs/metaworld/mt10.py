"""The ten tasks of MT10 in plain floats, with rewards ``v2``: equal to Meta-World's own code to the last bit.

A gripper command above zero stays a NumPy float32 in here, because Meta-World's reward then is one, too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from roboloop.core.types import Array
from roboloop.envs.metaworld.lean import Lean, Point, both, distance, distance_xz, length, near, near_gaussian


class Reach(Lean):
    """Bring the fingers to a point."""

    apart_m = 0.15

    def prepare(self, env: Any) -> None:
        """Measure how far the goal is."""
        self.margin = distance(env.hand_init_pos.tolist(), self.target)

    def judge(self, action: Array) -> tuple[float, bool]:
        """The nearer, the better."""
        gap = distance(self.tcp, self.target)
        return 10 * near(gap, 0, 0.05, self.margin), gap <= 0.05


class Grasping(Lean):
    """A task that rewards fingers around the object."""

    apart_m = 0.15

    def prepare(self, env: Any) -> None:
        """Measure how far the object is, and the goal from it."""
        self.init: Point = env.obj_init_pos.tolist()
        self.caging_margin = distance_xz(self.init, self.init_tcp) - 0.005
        self.margin = distance(self.init, self.target)

    def caging(self, radius: float, reach: float) -> float:
        """Return how well the fingers surround the object: sideways by their pads, and from front and above."""
        y, init_y = self.object[1], self.init[1]
        left = near(abs(self.left_y - y), radius, reach, abs(abs(self.left_y - init_y) - reach))
        right = near(abs(self.right_y - y), radius, reach, abs(abs(self.right_y - init_y) - reach))
        return both(both(left, right), near(distance_xz(self.tcp, self.object), 0, 0.005, self.caging_margin))

    @staticmethod
    def grasp(caging: float, action: Array) -> float:
        """Add the gripper's effort where the fingers surround the object."""
        effort = max(0.0, action[3]) if caging > 0.97 else 0.0
        return (both(caging, effort) + caging) / 2

    def lifted(self, by: float) -> bool:
        """Tell whether the fingers are open and the object is above its first place."""
        return self.opened > 0 and self.object[2] - by > self.init[2]


class Push(Grasping):
    """Push a puck to a point."""

    def judge(self, action: Array) -> tuple[float, bool]:
        """Grasp first, then bring it near."""
        gap = distance(self.object, self.target)
        reward = 2 * self.grasp(self.caging(0.015, 0.05), action)
        if distance(self.object, self.tcp) < 0.02 and self.opened > 0:
            reward += 1.0 + reward + 5.0 * near(gap, 0, 0.05, self.margin)
        return 10.0 if gap < 0.05 else reward, gap <= 0.05


class PickPlace(Grasping):
    """Lift a puck to a point."""

    def caging(self, radius: float, reach: float) -> float:
        """As for other tasks, but with signs; Meta-World's "initial" pads are live views, that is, the present ones."""
        y = self.object[1]
        left = near(self.left_y - y, radius, reach, abs(abs(y - self.left_y) - reach))
        right = near(y - self.right_y, radius, reach, abs(abs(y - self.right_y) - reach))
        return both(both(left, right), near(distance_xz(self.tcp, self.object), 0, 0.005, self.caging_margin))

    def judge(self, action: Array) -> tuple[float, bool]:
        """Grasp, lift and bring it near."""
        gap = distance(self.object, self.target)
        in_place = near(gap, 0, 0.05, self.margin)
        reward = both(self.grasp(self.caging(0.015, 0.05), action), in_place)
        if distance(self.object, self.tcp) < 0.02 and self.lifted(0.01):
            reward += 1.0 + 5.0 * in_place
        return 10.0 if gap < 0.05 else reward, gap <= 0.07


class PegInsertSide(Grasping):
    """Lift a peg and push it into a hole."""

    place = ("site", "pegGrasp")
    turned = ("site", "pegGrasp")
    scenery = "box"
    apart_m = 0.1

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._head = self.data.site("pegHead").xpos
        corners = [(f"top_left_corner_collision_box_{k}", f"bottom_right_corner_collision_box_{k}") for k in (2, 1)]
        self._boxes = [(self.data.site(a).xpos, self.data.site(b).xpos) for a, b in corners]

    @staticmethod
    def _scaled(a: Point, b: Point) -> float:
        return length(a[0] - b[0], (a[1] - b[1]) * 2.0, (a[2] - b[2]) * 2.0)

    def prepare(self, env: Any) -> None:
        """Measure how far the peg's head is from the hole."""
        super().prepare(env)
        self.margin = self._scaled(env.peg_head_pos_init.tolist(), self.target)

    @staticmethod
    def _outside(head: Point, one: Point, zero: Point) -> float:
        """Return 1 outside the box, and inside it the share of the way from corner ``zero`` to corner ``one``."""
        share = 1.0
        for x, a, b in zip(head, zero, one, strict=True):
            if not (a <= x <= b if b >= a else b <= x <= a):
                return 1.0
            share *= (x - a) / (b - a)
        return share

    def judge(self, action: Array) -> tuple[float, bool]:
        """Grasp, lift and insert without running into the box beside the hole."""
        head = self._head.tolist()
        gap = self._scaled(head, self.target)
        outside = [self._outside(head, one.tolist(), zero.tolist()) for one, zero in self._boxes]
        in_place = both(near(gap, 0, 0.07, self.margin), both(*outside))
        held = distance(self.object, self.tcp) < 0.08 and self.lifted(0.01)
        reward = both(1.0 if held else self.grasp(self.caging(0.0075, 0.03), action), in_place)
        if held:
            reward += 1.0 + 5 * in_place
        return 10.0 if gap <= 0.07 else reward, gap <= 0.07


class DoorOpen(Lean):
    """Pull a door open by its handle."""

    place = ("geom", "handle")
    turned = ("geom", "handle")
    scenery = "door"

    def prepare(self, env: Any) -> None:
        """Find the hinge."""
        self._angles, self._hinge = self.data.qpos, env.door_qpos_adr

    def judge(self, action: Array) -> tuple[float, bool]:
        """Come to the handle from above, then turn the hinge."""
        (hx, hy, hz), (x, y, z) = self.hand, self.object
        x -= 0.05
        radius = length(hx - x, hy - y)
        floor = 0.0 if radius <= 0.12 else 0.04 * float(np.log(radius - 0.12)) + 0.4
        above = 1.0 if hz >= floor else near(floor - hz, 0.0, 0.01, floor / 2.0)
        ready = both(above, near(length(hx - x - 0.05, hy - y - 0.03, hz - z + 0.01), 0, 0.06, 0.5))
        theta = self._angles.item(self._hinge)
        wide = near(math.pi / 2.0 + math.pi / 6 + theta, 0, 0.5, math.pi / 3.0)
        opened = 0.2 * float(theta < -math.pi / 90.0) + 0.8 * wide
        solved = abs(self.object[0] - self.target[0]) <= 0.08
        reward = 2.0 * both(ready, float((action[3] + 1.0) / 2.0)) + 8.0 * opened
        return 10.0 if solved else reward, solved


class DrawerOpen(Lean):
    """Pull a drawer open."""

    place = ("body", "drawer_link")
    offset = (0.0, -0.16, 0.0)
    turned = ("body", "drawer_link")
    scenery = "drawer"

    @staticmethod
    def _scaled(a: Point, b: Point) -> float:
        return length((a[0] - b[0]) * 3.0, (a[1] - b[1]) * 3.0, a[2] - b[2])

    def prepare(self, env: Any) -> None:
        """Measure how far the closed handle is."""
        self.width: float = env.maxDist
        closed = [self.target[0], self.target[1] + self.width, self.target[2]]
        self.margin = self._scaled(closed, self.init_tcp)

    def judge(self, action: Array) -> tuple[float, bool]:
        """Come to the handle, and open."""
        gap = distance(self.object, self.target)
        caging = near(self._scaled(self.object, self.hand), 0, 0.01, self.margin)
        return (caging + near(gap, 0, 0.02, self.width)) * 5.0, gap <= 0.03


class DrawerClose(Lean):
    """Push a drawer shut."""

    place = ("body", "drawer_link")
    offset = (0.0, -0.16, 0.05)
    turned = None
    scenery = "drawer"

    def prepare(self, env: Any) -> None:
        """Measure how far the open handle is, and the goal from it."""
        init: Point = env.obj_init_pos.tolist()
        self.margin = abs(distance(init, self.target) - 0.05)
        self.reach_margin = abs(distance(init, self.init_tcp) - 0.005)

    def judge(self, action: Array) -> tuple[float, bool]:
        """Come to the handle with a closed gripper, and push."""
        gap = distance(self.object, self.target)
        solved = gap <= 0.05 + 0.015
        if solved:
            return 10.0, True
        reach = near_gaussian(distance(self.object, self.tcp), 0.005, self.reach_margin)
        return both(both(reach, max(0.0, action[3])), near(gap, 0, 0.05, self.margin)) * 10, False


class ButtonPressTopdown(Lean):
    """Press a button from above."""

    place = ("body", "button")
    offset = (0.0, 0.0, 0.193)
    turned = ("body", "button")
    scenery = "box"

    def prepare(self, env: Any) -> None:
        """Measure how deep the button goes."""
        self.depth = float(env._obj_to_target_init)

    def judge(self, action: Array) -> tuple[float, bool]:
        """Come to the button with a closed gripper, and press."""
        gap, left = distance(self.object, self.tcp), abs(self.target[2] - self.object[2])
        touching = near(gap, 0, 0.01, distance(self.object, self.init_tcp))
        reward = 5 * both(1 - self.opened, touching)
        if gap <= 0.03:
            reward += 5 * near(left, 0, 0.005, self.depth)
        return reward, left <= 0.024


class WindowOpen(Lean):
    """Slide a window open."""

    place = ("site", "handleOpenStart")
    turned = None
    scenery = "window"

    def prepare(self, env: Any) -> None:
        """Measure how far the handle is, and how far it has to go."""
        self.margin = abs(abs(env.obj_init_pos.tolist()[0] - self.target[0]) - 0.05)
        self.reach_margin = abs(distance(env.window_handle_pos_init.tolist(), self.init_tcp) - 0.02)

    def reach(self, gap: float) -> float:
        """Return how near the fingers are to the handle."""
        return near(gap, 0, 0.02, self.reach_margin)

    def judge(self, action: Array) -> tuple[float, bool]:
        """Come to the handle, and slide."""
        left = abs(self.object[0] - self.target[0])
        reach = self.reach(distance(self.object, self.tcp))
        return 10 * both(reach, near(left, 0, 0.05, self.margin)), left <= 0.05


class WindowClose(WindowOpen):
    """Slide a window shut."""

    place = ("site", "handleCloseStart")

    def prepare(self, env: Any) -> None:
        """As for opening, but from where the handle was."""
        super().prepare(env)
        self.margin = abs(abs(env.window_handle_pos_init.tolist()[0] - self.target[0]) - 0.05)

    def reach(self, gap: float) -> float:
        """Return how near the fingers are to the handle, by a steeper measure."""
        return near_gaussian(gap, 0.02, self.reach_margin)


LEAN: dict[str, type[Lean]] = {
    "reach-v3": Reach,
    "push-v3": Push,
    "pick-place-v3": PickPlace,
    "door-open-v3": DoorOpen,
    "drawer-open-v3": DrawerOpen,
    "drawer-close-v3": DrawerClose,
    "button-press-topdown-v3": ButtonPressTopdown,
    "peg-insert-side-v3": PegInsertSide,
    "window-open-v3": WindowOpen,
    "window-close-v3": WindowClose,
}
