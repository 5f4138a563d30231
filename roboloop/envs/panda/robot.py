"""What a robot is to the rest of the system: declared before it is connected, read without waiting, faults by name."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Literal, NamedTuple, Protocol, Self

import numpy as np

from roboloop.core.errors import RobotFault
from roboloop.core.types import Array

StopKind = Literal["", "controller", "limit"]
"""Why a controller does not run; empty while it does."""


class DriverDied(RobotFault):
    """The process or machine that drives the robot is gone, or says nothing any more."""


class ConnectionCut(RobotFault):
    """The driver may live, but the line to it is cut."""


class CameraStale(RobotFault):
    """The newest picture is too old to act on."""


class ControllerStopped(RobotFault):
    """The arm's controller has stopped: commands move nothing."""


class LimitHit(RobotFault):
    """The arm has left its limits, or its own limits have stopped it."""


class BadReading(RobotFault):
    """A reading holds something that is no number."""


class BadAction(RobotFault, ValueError):
    """The policy asked for something that is no number: the robot is well, but nobody leads it."""


class Overrun(RobotFault):
    """Several deadlines in a row were missed: nobody leads the robot at the rate that was agreed."""


@dataclass(frozen=True)
class Feature:
    """One thing that a robot reads or takes."""

    name: str
    """The field of ``Reading`` or ``Command``."""
    shape: tuple[int, ...]
    unit: str
    low: tuple[float, ...]
    high: tuple[float, ...]


class Features(NamedTuple):
    """All that a robot reads and takes, known before it is connected."""

    reads: tuple[Feature, ...]
    takes: tuple[Feature, ...]


@dataclass(frozen=True)
class Reading:
    """The newest sample; arm and camera have their own times, on the robot's monotonic clock (``Robot.now_s``)."""

    arm_time_s: float
    camera_time_s: float
    """When the picture was taken, not when it arrived."""
    ee_pos_m: Array
    ee_quat: Array
    """w, x, y, z."""
    joint_pos_rad: Array
    joint_vel_rad_s: Array
    gripper_width_m: float
    object_pose: Array
    """x, y, z in metres and yaw in radians of what the camera follows."""
    stopped: StopKind = ""
    cause: str = ""
    """Why it stopped, in words."""
    holds: int = 0
    """How often the driver's watchdog had to hold since it was started, for want of commands."""

    def is_finite(self) -> bool:
        """Say whether every number is one."""
        numbers = (self.ee_pos_m, self.ee_quat, self.joint_pos_rad, self.joint_vel_rad_s, self.object_pose)
        times = self.arm_time_s + self.camera_time_s + self.gripper_width_m
        return bool(np.isfinite(sum(float(n.sum()) for n in numbers) + times))


@dataclass(frozen=True)
class Command:
    """What to do from now on: follow a pose, or go to joint angles; none leaves things as they are."""

    ee_pos_m: Array | None = None
    ee_quat: Array | None = None
    """w, x, y, z."""
    joint_pos_rad: Array | None = None
    gripper_open: bool | None = None


class Robot(Protocol):
    """One arm with gripper and camera; numpy in and out, and whatever goes wrong is a ``RobotFault``.

    Drivers inherit from it: all must connect before they are used and let go at the end.
    """

    features: Features

    def connect(self) -> None:
        """Reach the robot; again after a fault, too."""
        ...

    def now_s(self) -> float:
        """Return the time on the robot's monotonic clock, to which readings' times belong."""
        ...

    def read(self) -> Reading:
        """Return the newest sample, at once."""
        ...

    def send(self, command: Command) -> None:
        """Hand over a command and do not wait for its end."""
        ...

    def hold(self) -> None:
        """Stay where the arm is now."""
        ...

    def prepare(self, seed: int) -> None:
        """Ready the scene for an episode: a simulator places its objects, on a real rig a person has done so."""
        ...

    def start(self) -> None:
        """Start the controller at the present pose, after a stop too."""
        ...

    def advance(self, duration_s: float) -> None:
        """Let time pass: a simulated clock jumps, a real one is waited for."""
        ...

    def close(self) -> None:
        """Hold and let go."""
        ...

    def __enter__(self) -> Self:
        """Connect."""
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
