"""What a Panda rig reads and takes, known without one."""

from __future__ import annotations

from roboloop.envs.panda.robot import Feature, Features
from roboloop.envs.panda.tasks import OPEN_WIDTH_M, PandaTask

JOINT_LOW_RAD = (-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973)
JOINT_HIGH_RAD = (2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973)
JOINT_SPEED_RAD_S = (2.175, 2.175, 2.175, 2.175, 2.61, 2.61, 2.61)
_TURN = ((-1.0,) * 4, (1.0,) * 4)


def features(task: PandaTask) -> Features:
    """Return the features of a rig that is set up for a task; its limits are the widest ones."""
    box = task.limits["large"]
    where = Feature("ee_pos_m", (3,), "m", box.low(), box.high())
    turn = Feature("ee_quat", (4,), "w, x, y, z", *_TURN)
    joints = Feature("joint_pos_rad", (7,), "rad", JOINT_LOW_RAD, JOINT_HIGH_RAD)
    speeds = Feature("joint_vel_rad_s", (7,), "rad/s", tuple(-v for v in JOINT_SPEED_RAD_S), JOINT_SPEED_RAD_S)
    width = Feature("gripper_width_m", (), "m", (0.0,), (OPEN_WIDTH_M,))
    seen = Feature("object_pose", (4,), "m, m, m, rad", (-1.0, -1.0, 0.0, -3.1416), (1.0, 1.0, 1.0, 3.1416))
    grip = Feature("gripper_open", (), "yes or no", (0.0,), (1.0,))
    return Features(reads=(where, turn, joints, speeds, width, seen), takes=(where, turn, joints, grip))
