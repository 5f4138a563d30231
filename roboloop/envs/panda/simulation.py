"""The simulated rig, without a clock of its own: both drivers advance it by ticks of one millisecond."""

from __future__ import annotations

import math
from collections.abc import Callable

import mujoco
import numpy as np

from roboloop.core.rng import stream
from roboloop.core.types import Array, State
from roboloop.envs.headless import renderer
from roboloop.envs.panda.config import FaultPlan
from roboloop.envs.panda.kinematics import Kinematics, site_pose
from roboloop.envs.panda.model import ARM_JOINTS, EE, FINGER_JOINTS, FINGER_M, GOAL, TARGET, build
from roboloop.envs.panda.robot import Command, Reading, StopKind
from roboloop.envs.panda.tasks import CAMERA_HZ, CAMERA_LATENCY_S, FINGER_SPEED_M_S, HOME_RAD, RATE_HZ, PandaTask, draw

STATE = mujoco.mjtState.mjSTATE_INTEGRATION
NO_ACTUATION = mujoco.mjtDisableBit.mjDSBL_ACTUATION.value
ARM = slice(0, len(ARM_JOINTS))
FINGERS = slice(len(ARM_JOINTS), len(ARM_JOINTS) + len(FINGER_JOINTS))
JOINT_CONTROL, FINGER_CONTROL = slice(6, 13), slice(13, 15)
LATENCY_TICKS = round(CAMERA_LATENCY_S * RATE_HZ)
RAMP_TICKS, RAMP_RAD_S = 20, 1.0
"""How a joint target is approached."""
CAUSES = {"controller": "the controller was told to stop (injected)", "limit": "joint 4 at its limit (injected)"}
RENDER_SIZE = 240


class PandaSimulation:
    """Arm, controller, gripper, camera and scene of one task."""

    def __init__(self, task: PandaTask, faults: tuple[FaultPlan, ...] = ()) -> None:
        self.task = task
        self._plans = faults
        self._model = build(task)
        self._data = mujoco.MjData(self._model)
        self._kinematics = Kinematics(self._model)
        self._site = self._model.site(EE).id
        self._target = int(self._model.body(TARGET).mocapid[0])
        self._renderer: mujoco.Renderer | None = None
        self.tick = 0
        """Milliseconds since the scene was placed."""
        self._seed = 0
        self._joint_goal: Array | None = None
        self._stopped: StopKind = ""
        self._cause = ""
        self._due: list[tuple[int, str]] = []
        self._camera_on = True
        self._nan = False
        self._taken: list[tuple[int, Array]] = []
        self._seen: tuple[int, Array] = (0, np.zeros(4))
        self.place(0)

    def place(self, seed: int) -> None:
        """Put everything where this seed's episode finds it: arm at home, gripper open, drawer or door closed."""
        data = self._data
        mujoco.mj_resetData(self._model, data)
        self.tick = 0
        data.qpos[ARM] = HOME_RAD
        data.qpos[FINGERS] = data.act[:] = FINGER_M
        data.ctrl[FINGER_CONTROL] = FINGER_SPEED_M_S
        self.rearrange(seed)

    def rearrange(self, seed: int) -> None:
        """Move goal and puck as a person would, mend what is broken, and leave all else to the scripted reset."""
        layout, data = draw(self.task, seed), self._data
        self._seed = seed
        if self.task.goal is not None:
            data.mocap_pos[int(self._model.body(GOAL).mocapid[0])] = layout.goal
        if self.task.puck is not None:
            data.qpos[9:11] = layout.puck[:2]
            data.qvel[9:12] = 0.0
        self._run()
        self.hold()
        self._due, self._camera_on, self._nan = [], True, False
        self._taken, self._seen = [], (self.tick, self.object_pose())

    def open(self, opening: float) -> None:
        """Leave drawer or door open (metres, radians), as an episode may."""
        self._data.qpos[9] = opening
        self._seen = (self.tick, self.object_pose())

    @property
    def opening(self) -> float:
        """How far drawer or door is open (metres, radians)."""
        return float(self._data.qpos[9])

    def start(self) -> None:
        """Start the controller where the arm is; the faults of this episode are due from now on."""
        rng = stream(self._seed, "panda-faults")
        at = [(plan, rng.random() < plan.chance) for plan in self._plans]
        self._due = [(self.tick + round(plan.at_s * RATE_HZ), str(plan.kind)) for plan, comes in at if comes]
        self._run()
        self.hold()

    def _run(self) -> None:
        self._stopped, self._cause = "", ""
        self._model.opt.disableflags &= ~NO_ACTUATION

    def stop(self, kind: StopKind, cause: str) -> None:
        """Stop the controller: brakes close, commands move nothing."""
        self._stopped, self._cause = kind, cause
        self._data.qvel[ARM] = 0.0
        self._model.opt.disableflags |= NO_ACTUATION

    def send(self, command: Command) -> None:
        """Take a command; a stopped controller takes none."""
        if self._stopped:
            return
        if command.gripper_open is not None:
            self._data.ctrl[FINGER_CONTROL] = FINGER_SPEED_M_S if command.gripper_open else -FINGER_SPEED_M_S
        if command.joint_pos_rad is not None:
            self._joint_goal = np.array(command.joint_pos_rad)
        elif command.ee_pos_m is not None:
            quat = self._data.mocap_quat[self._target] if command.ee_quat is None else command.ee_quat
            joints = self._kinematics.joints(command.ee_pos_m, quat, self._data.ctrl[JOINT_CONTROL])
            self._follow(command.ee_pos_m, quat, joints)

    def hold(self) -> None:
        """Make the present pose the target."""
        joints = self._data.qpos[ARM].copy()
        self._follow(*self._kinematics.pose(joints), joints)

    def _follow(self, pos_m: Array, quat: Array, joints: Array) -> None:
        self._joint_goal = None
        self._data.mocap_pos[self._target], self._data.mocap_quat[self._target] = pos_m, quat
        self._data.ctrl[JOINT_CONTROL] = joints

    def advance(self, ticks: int) -> None:
        """Simulate; pictures are taken and faults happen at their own ticks."""
        end = self.tick + ticks
        while self.tick < end:
            until = min([end, self._next_picture(), *(at for at, _ in self._due if at > self.tick)])
            if self._joint_goal is not None:
                until = min(until, self.tick + RAMP_TICKS)
                self._ramp()
            mujoco.mj_step(self._model, self._data, nstep=until - self.tick)
            self.tick = until
            self._photograph()
            for at, kind in [due for due in self._due if due[0] <= self.tick]:
                self._due.remove((at, kind))
                self._fail(kind)

    def _photograph(self) -> None:
        """Take a picture where one is due; what was seen in one is known a little later."""
        if self._camera_on and self.tick == self._last_picture():
            self._taken.append((self.tick, self.object_pose()))
        while self._taken and self._taken[0][0] + LATENCY_TICKS <= self.tick:
            self._seen = self._taken.pop(0)

    def _next_picture(self) -> int:
        return math.ceil((self.tick * CAMERA_HZ // RATE_HZ + 1) * RATE_HZ / CAMERA_HZ)

    def _last_picture(self) -> int:
        return math.ceil((self.tick * CAMERA_HZ // RATE_HZ) * RATE_HZ / CAMERA_HZ)

    def _ramp(self) -> None:
        """Move joint and pose targets together towards the joint goal."""
        goal, most = self._joint_goal, RAMP_RAD_S * RAMP_TICKS / RATE_HZ
        assert goal is not None
        joints = self._data.ctrl[JOINT_CONTROL] + np.clip(goal - self._data.ctrl[JOINT_CONTROL], -most, most)
        self._follow(*self._kinematics.pose(joints), joints)
        self._joint_goal = None if np.array_equal(joints, goal) else goal

    def _fail(self, kind: str) -> None:
        if kind == "controller" or kind == "limit":
            self.stop(kind, CAUSES[kind])  # type: ignore[arg-type]
        elif kind == "camera":
            self._camera_on = False
            self._taken = []
        else:
            self._nan = True

    def object_pose(self) -> Array:
        """Return where the thing is that the camera follows: x, y, z, yaw."""
        task, qpos = self.task, self._data.qpos
        if task.puck is not None:
            return np.array([qpos[9], qpos[10], task.puck.z[0], qpos[11]])
        if not task.closes:
            return np.append(self._data.mocap_pos[int(self._model.body(GOAL).mocapid[0])], 0.0)
        x, y, z = task.handle
        if task.hinge is None:
            return np.array([x - qpos[9], y, z, 0.0])
        radius = y - task.hinge[1]
        return np.array(
            [task.hinge[0] - radius * math.sin(qpos[9]), task.hinge[1] + radius * math.cos(qpos[9]), z, qpos[9]]
        )

    def read(self, to_s: Callable[[int], float]) -> Reading:
        """Return the present state of the arm and the newest pose from the camera, on a clock made of ticks."""
        data = self._data
        mujoco.mj_kinematics(self._model, data)  # after a step, positions are those of one tick before
        pos, quat = site_pose(data, self._site)
        return Reading(
            arm_time_s=to_s(self.tick),
            camera_time_s=to_s(self._seen[0]),
            ee_pos_m=pos * np.nan if self._nan else pos,
            ee_quat=quat,
            joint_pos_rad=data.qpos[ARM].copy(),
            joint_vel_rad_s=data.qvel[ARM].copy(),
            gripper_width_m=float(data.qpos[FINGERS].sum()),
            object_pose=self._seen[1].copy(),
            stopped=self._stopped,
            cause=self._cause,
        )

    def get_state(self) -> State:
        """Return physics and all else that the future depends on."""
        physics = np.empty(mujoco.mj_stateSize(self._model, STATE))
        mujoco.mj_getState(self._model, self._data, physics, STATE)
        return {
            "physics": physics,
            "seed": self._seed,
            "tick": self.tick,
            "joint_goal": None if self._joint_goal is None else self._joint_goal.copy(),
            "stopped": self._stopped,
            "cause": self._cause,
            "due": [[at, kind] for at, kind in self._due],
            "camera_on": self._camera_on,
            "nan": self._nan,
            "taken": [{"tick": tick, "pose": pose.copy()} for tick, pose in self._taken],
            "seen": {"tick": self._seen[0], "pose": self._seen[1].copy()},
        }

    def set_state(self, state: State) -> None:
        """Restore what ``get_state`` returned."""
        self._run()
        if state["stopped"]:
            self.stop(state["stopped"], state["cause"])
        mujoco.mj_setState(self._model, self._data, np.asarray(state["physics"], np.float64), STATE)
        self._seed, self.tick = int(state["seed"]), int(state["tick"])
        goal = state["joint_goal"]
        self._joint_goal = None if goal is None else np.array(goal, np.float64)
        self._due = [(int(at), str(kind)) for at, kind in state["due"]]
        self._camera_on, self._nan = bool(state["camera_on"]), bool(state["nan"])
        self._taken = [(int(shot["tick"]), np.array(shot["pose"])) for shot in state["taken"]]
        self._seen = (int(state["seen"]["tick"]), np.array(state["seen"]["pose"]))

    def render(self) -> Array:
        """Return a picture of the scene."""
        if self._renderer is None:
            self._renderer = renderer(self._model, RENDER_SIZE, RENDER_SIZE)
        camera = mujoco.MjvCamera()
        camera.type = mujoco.mjtCamera.mjCAMERA_FREE
        camera.lookat[:] = (0.4, 0.0, 0.25)
        camera.azimuth, camera.elevation, camera.distance = 125.0, -25.0, 1.6
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)
        self._renderer.update_scene(self._data, camera=camera)
        return np.array(self._renderer.render())

    def close(self) -> None:
        """Release the picture's context."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
