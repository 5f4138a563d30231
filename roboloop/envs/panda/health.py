"""Whether a reading can be trusted; what is wrong is raised by its name."""

from __future__ import annotations

from roboloop.envs.panda.robot import BadReading, CameraStale, ControllerStopped, DriverDied, LimitHit, Reading
from roboloop.envs.panda.tasks import SOFT_MARGIN_M, Box

ARM_STALE_S = 0.5
"""A driver that has said nothing for so long is taken for dead."""


def check(reading: Reading, now_s: float, camera_stale_s: float, limits: Box | None = None) -> None:
    """Raise the fault that a reading shows."""
    if now_s - reading.arm_time_s > ARM_STALE_S:
        raise DriverDied(f"the driver has said nothing for {now_s - reading.arm_time_s:.2f} s")
    if reading.stopped == "limit":
        raise LimitHit(f"the arm stopped itself: {reading.cause}")
    if reading.stopped:
        raise ControllerStopped(f"the controller stopped: {reading.cause}")
    if not reading.is_finite():
        raise BadReading("a reading is not finite")
    if now_s - reading.camera_time_s > camera_stale_s:
        raise CameraStale(f"the newest picture is {now_s - reading.camera_time_s:.2f} s old")
    if limits is not None:
        margin, pos_m = SOFT_MARGIN_M, reading.ee_pos_m.tolist()
        if not all(
            lo - margin <= p <= hi + margin for p, lo, hi in zip(pos_m, limits.low(), limits.high(), strict=True)
        ):
            raise LimitHit(f"the hand is at {[round(p, 3) for p in pos_m]}, more than {margin} m outside its limits")
