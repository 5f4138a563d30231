"""One task on a ``Robot``: send first and look later, as a real-time loop must; or both in one step, as samplers do."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from roboloop.core.errors import ConfigError, RobotFault
from roboloop.core.types import Array, State
from roboloop.envs.env import EpisodeEnv, Outcome
from roboloop.envs.panda.config import PandaConfig
from roboloop.envs.panda.control import HoldTimer, LeadTarget
from roboloop.envs.panda.health import check
from roboloop.envs.panda.reset import Reset, opened_m
from roboloop.envs.panda.robot import (
    BadAction,
    Command,
    ConnectionCut,
    ControllerStopped,
    DriverDied,
    Reading,
    Robot,
)
from roboloop.envs.panda.tasks import (
    AXES,
    DOWN,
    GAINS,
    POSE,
    PandaTask,
    SceneLayout,
    draw,
    part_sizes,
    push_distances_m,
)

FRESH_S = 0.15
"""A state or picture older than this is late: what it comes from may have stopped."""
SAME_TICK_S = 0.005
"""A look that is no older serves for the command too."""
START_ATTEMPTS = 5


class Rig:
    """A ``World`` over a robot; the conventions of the rig, whatever drives it."""

    def __init__(self, robot: Robot, task: PandaTask, cfg: PandaConfig) -> None:
        self.robot, self.task, self.cfg = robot, task, cfg
        self.limits = task.limits[cfg.limits]
        self.period_s = 1 / cfg.hz
        axes = tuple(dof for dof in task.dof if dof in AXES)
        self._axes = [AXES.index(axis) for axis in axes]
        self._object = [POSE.index(name) for name in task.object_dof]
        self._shared = [AXES.index(axis) for axis in axes if axis in task.object_dof]
        self.lead_target = LeadTarget(axes, self.limits, cfg.max_speed_m_s / cfg.hz, cfg.max_force_n / GAINS.kx[0])
        self._has_gripper = "gripper" in task.dof
        self._reset = Reset(robot, task, cfg.camera_stale_s)
        self._hold = HoldTimer(cfg.hold_s)
        self._seed: int | None = None
        self._layout = draw(task, 0)
        self._connected = False
        self._gripper_open = task.gripper_open
        self._distance_m = 0.0
        self._taken = np.zeros(len(task.dof))
        self._is_fresh = True
        self._looked: tuple[Reading | None, float] = (None, 0.0)
        self._fault: RobotFault | None = None

    @property
    def action_dim(self) -> int:
        """Valid degrees of freedom."""
        return len(self.task.dof)

    @property
    def obs_size(self) -> int:
        """Numbers in an observation."""
        return sum(part_sizes(self.task).values())

    def begin(self, seed: int) -> Array:
        """Reset the scene by script, start the controller, and return the first observation."""
        self._seed, self._layout, self._fault = int(seed), draw(self.task, seed), None
        try:
            self._reach()
            self.robot.prepare(self._seed)
            self._reset.run(self._layout.start)
            self._start()
            return self.first_look()
        except RobotFault as fault:
            self._fail(fault)
            raise

    def _reach(self) -> None:
        """Connect, also where the line was lost since the last episode."""
        if self._connected:
            try:
                self.robot.read()
            except (DriverDied, ConnectionCut):
                self._connected = False
        if not self._connected:
            self.robot.connect()
            self._connected = True

    def _start(self) -> None:
        for attempt in range(START_ATTEMPTS):
            try:
                return self.robot.start()
            except ControllerStopped:
                if attempt == START_ATTEMPTS - 1:
                    raise

    def first_look(self) -> Array:
        """Return what there is to see before the first action, and lead the arm from there."""
        reading = self._look()
        self.robot.send(Command(ee_pos_m=self.lead_target.begin(reading.ee_pos_m), ee_quat=np.array(DOWN)))
        self._gripper_open = self.task.gripper_open
        self._hold = HoldTimer(self.cfg.hold_s)
        self._taken = np.zeros(self.action_dim)
        self._distance_m = sum(distances_m(self.task, reading, self._layout))
        return self._observation(reading)

    def send(self, action: Array) -> Array:
        """Send what an action asks for, within all limits, and return the action that was really taken."""
        self._alive()
        action = np.asarray(action, np.float64)
        if action.shape != (self.action_dim,) or not np.isfinite(action).all():
            self.hold()
            raise BadAction(f"an action is {self.action_dim} finite numbers, got {action.tolist()}: holding")
        action = np.clip(action, -1, 1)
        try:
            reading = self._newest_look()
            moved = self.lead_target.shift(action[: len(self._axes)], reading.ee_pos_m)
            grip = self._grip(float(action[-1])) if self._has_gripper else None
            self.robot.send(Command(ee_pos_m=self.lead_target.target_m, ee_quat=np.array(DOWN), gripper_open=grip))
        except RobotFault as fault:
            self._fail(fault)
            raise
        self._taken = np.append(moved, action[len(self._axes) :])
        return self._taken.astype(np.float32)

    def _grip(self, wish_closed: float) -> bool | None:
        """Return what to tell the gripper: open for up to 0, closed above, and nothing where it is so already."""
        is_open = wish_closed <= 0
        if is_open == self._gripper_open:
            return None
        self._gripper_open = is_open
        return is_open

    def observe(self) -> Outcome:
        """Return what the last action led to, by the newest reading."""
        self._alive()
        try:
            reading = self._look()
        except RobotFault as fault:
            self._fail(fault)
            raise
        main_m, to_object_m = distances_m(self.task, reading, self._layout)
        is_there = main_m <= self.task.success_m and to_object_m <= self.task.near_m
        success = self._hold.update(is_there, reading.arm_time_s)
        progress = (self._distance_m - main_m - to_object_m) / self.lead_target.step_m
        self._distance_m = main_m + to_object_m
        return Outcome(
            obs=self._observation(reading),
            reward=float(success) if self.cfg.reward == "sparse" else progress,
            terminated=success and self.cfg.done_on_success,
            truncated=False,
            success=float(success),
            sent=self._taken.astype(np.float32),
            reading=reading,
            is_fresh=self._is_fresh,
        )

    def _newest_look(self) -> Reading:
        """Return what was seen in this very tick, or look again: the force cap must not trust an old place."""
        looked_at, looked_s = self._looked
        return looked_at if looked_at and self.robot.now_s() - looked_s < SAME_TICK_S else self._look()

    def _look(self) -> Reading:
        reading, now_s = self.robot.read(), self.robot.now_s()
        check(reading, now_s, self.cfg.camera_stale_s, self.limits)
        self._looked = (reading, now_s)
        self._is_fresh = now_s - min(reading.arm_time_s, reading.camera_time_s) <= FRESH_S
        return reading

    def _alive(self) -> None:
        if self._fault is not None:
            raise self._fault.with_traceback(None)
        if self._seed is None:
            raise RuntimeError("no episode has begun")

    def _fail(self, fault: RobotFault) -> None:
        """End the episode, and hold if the robot still listens."""
        if isinstance(fault, (DriverDied, ConnectionCut)):
            self._connected = False
        self._fault = fault
        with contextlib.suppress(RobotFault):
            self.robot.hold()

    def hold(self) -> None:
        """Stay where the arm is, and lead it from there."""
        self.robot.hold()
        self.lead_target.begin(self.robot.read().ee_pos_m)

    def _observation(self, reading: Reading) -> Array:
        parts: dict[str, Array] = {
            "ee_pos": reading.ee_pos_m[self._axes],
            "ee_quat": reading.ee_quat,
            "object": reading.object_pose[self._object],
            "difference": reading.ee_pos_m[self._shared] - reading.object_pose[self._shared],
            "goal": self._layout.goal[self._axes],
            "gripper": np.array([reading.gripper_width_m]),
        }
        return np.concatenate([parts[part] for part in self.task.observe])

    # what a World is

    def reset(self, seed: int) -> Array:
        """Begin an episode."""
        return self.begin(seed)

    def step(self, action: Array, repeat: int) -> Outcome:
        """Send, let one period pass, observe."""
        self.send(action)
        self.robot.advance(self.period_s)
        return self.observe()

    def render(self) -> Array:
        """Return a picture, where the driver has one."""
        picture: Array = self._simulated("pictures").render()
        return picture

    def _simulated(self, what: str) -> Any:
        if not hasattr(self.robot, "get_state"):
            raise ConfigError(f"a rig on the wall clock has no {what}: env.panda.driver virtual has")
        return self.robot

    def get_state(self) -> State:
        """Return the simulated robot's state and the episode's."""
        return {
            "robot": self._simulated("states to save").get_state(),
            "seed": self._seed,
            "target_m": self.lead_target.target_m.copy(),
            "refused": self.lead_target.refused,
            "gripper_open": self._gripper_open,
            "distance_m": self._distance_m,
            "hold": [self._hold.since_s, self._hold.latched],
            "taken": self._taken.copy(),
        }

    def set_state(self, state: State) -> None:
        """Restore what ``get_state`` returned; an episode that a fault has ended goes on to fail."""
        self._simulated("states to restore").set_state(state["robot"])
        self._connected, self._fault, self._looked = True, None, (None, 0.0)
        self._seed = state["seed"]
        self._layout = draw(self.task, self._seed or 0)
        self.lead_target.target_m, self.lead_target.refused = np.array(state["target_m"]), int(state["refused"])
        self._gripper_open, self._distance_m = bool(state["gripper_open"]), float(state["distance_m"])
        self._hold = HoldTimer(self.cfg.hold_s, *state["hold"])
        self._taken = np.array(state["taken"])

    def close(self) -> None:
        """Let go of the robot."""
        self.robot.close()
        self._connected = False


def distances_m(task: PandaTask, reading: Reading, layout: SceneLayout) -> tuple[float, float]:
    """Return how much of the task is left, and how far the hand is from where it does the rest."""
    pose = reading.object_pose
    if task.closes:
        return max(0.0, task.opening - opened_m(task, pose)), float(np.linalg.norm(reading.ee_pos_m[:2] - pose[:2]))
    if task.puck is not None:
        left_m, hand_m = push_distances_m(task, reading.ee_pos_m[:2], pose[:2], layout.goal[:2])
        return float(left_m), float(hand_m)
    return float(np.linalg.norm(reading.ee_pos_m - pose[:3])), 0.0


class RigEnv(EpisodeEnv):
    """The rig with the episode's clock: an ordinary environment, that can also be sent to and looked at apart."""

    world: Rig

    @property
    def period_s(self) -> float:
        """Time from one action to the next."""
        return self.world.period_s

    @property
    def is_simulated(self) -> bool:
        """Whether time passes only when it is asked to."""
        return hasattr(self.world.robot, "get_state")

    def now_s(self) -> float:
        """Return the time on the robot's clock."""
        return self.world.robot.now_s()

    def wait_until(self, time_s: float) -> None:
        """Sleep until then; a simulated clock jumps."""
        left_s = time_s - self.now_s()
        if left_s > 0:
            self.world.robot.advance(left_s)

    def begin(self, seed: int) -> Array:
        """Begin an episode; the same as ``reset``."""
        return self.reset(seed)

    def first_look(self) -> Array:
        """Return the first observation once more, as it is now."""
        return self.world.first_look().astype(self._dtype, order="C")

    def send(self, action: Array) -> Array:
        """Send an action and return at once the one that was really taken."""
        self._must_run()
        return self.world.send(action)

    def _valid(self, action: Array) -> Array:
        return action  # the rig clips by itself, and holds before it refuses

    def observe(self) -> Outcome:
        """Return what the last action led to; every call is a step of the episode."""
        self._must_run()
        out = self._clocked(self.world.observe())
        return out._replace(obs=out.obs.astype(self._dtype, order="C"))

    def hold(self) -> None:
        """Stay where the arm is."""
        self.world.hold()
