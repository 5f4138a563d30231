"""Meta-World's own task code on fast primitives, with the same bits.

Physics is about a quarter of Meta-World's step; the rest is NumPy and SciPy called on three numbers at a time. The
task classes are kept as they are: their functions are bound again to globals in which ``np``, ``reward_utils`` and
``Rotation`` are the quick versions below, and the shared bookkeeping of the base class is overridden.
"""

from __future__ import annotations

import copy
import functools
import math
import sys
import types
from collections.abc import Callable
from typing import Any, cast

import mujoco
import numpy as np
from metaworld.sawyer_xyz_env import SawyerXYZEnv
from metaworld.utils import reward_utils

from roboloop.core.types import Array
from roboloop.envs.metaworld.lean import near, quaternion

SETTLE_SUBSTEPS = 250
"""Physics steps that Meta-World lets the hand settle at each reset."""
SETTLES_BY_PLACEMENT = frozenset(
    {
        "box-close-v3",
        "disassemble-v3",
        "door-lock-v3",
        "door-unlock-v3",
        "handle-press-side-v3",
        "handle-press-v3",
        "handle-pull-side-v3",
        "handle-pull-v3",
        "lever-pull-v3",
        "peg-unplug-side-v3",
    }
)
"""Tasks whose settled state depends on where the object was placed: their hand settles anew at each reset."""


def norm(x: Any, *args: Any, **kwargs: Any) -> Any:
    """Return ``np.linalg.norm``; for float64 vectors by the same dot product and root, without the dispatch."""
    if args or kwargs or type(x) is not np.ndarray or x.ndim != 1 or x.dtype != np.float64:
        return np.linalg.norm(x, *args, **kwargs)
    return np.sqrt(x.dot(x))


def hstack(parts: Any, **kwargs: Any) -> Any:
    """Return ``np.hstack``; a few float64 scalars need no concatenation."""
    if kwargs or any(type(part) is not np.float64 for part in parts):
        return np.hstack(parts, **kwargs)
    return np.array(parts)


def tolerance(
    x: Any, bounds: Any = (0.0, 0.0), margin: Any = 0.0, sigmoid: Any = "gaussian", value_at_margin: float = 0.1
) -> Any:
    """Return ``reward_utils.tolerance``; the long tail of a scalar in plain floats."""
    lower, upper = bounds
    if sigmoid != "long_tail" or value_at_margin != 0.1 or not isinstance(x, float) or lower > upper or margin < 0:
        return reward_utils.tolerance(x, bounds, margin, sigmoid, value_at_margin)
    return near(float(x), lower, upper, float(margin))


class Rotation:
    """The one path of SciPy's ``Rotation`` that tasks use: an orthogonal matrix to a quaternion (x, y, z, w)."""

    __slots__ = ("_quat",)

    def __init__(self, quat: Array) -> None:
        self._quat = quat

    @classmethod
    def from_matrix(cls, matrix: Array) -> Rotation:
        """Trust that the matrix is orthogonal, as MuJoCo's are by construction."""
        return cls(np.array(quaternion(matrix.ravel().tolist())))

    def as_quat(self) -> Array:
        """Return the quaternion."""
        return self._quat


def _with(module: types.ModuleType, **changes: Any) -> types.ModuleType:
    """Return a copy of a module with some names replaced; the original is not touched."""
    clone = types.ModuleType(module.__name__)
    clone.__dict__.update(module.__dict__, **changes)
    return clone


FAST_GLOBALS = {
    "np": _with(np, linalg=_with(np.linalg, norm=norm), hstack=hstack),
    "reward_utils": _with(reward_utils, tolerance=tolerance),
    "Rotation": Rotation,
}


@functools.cache
def compiled(path: str) -> Any:
    """Return a task's model, compiled once per process: meshes take longer to read than to copy."""
    return mujoco.MjModel.from_xml_path(path)


class _Bookkeeping:
    """Overrides of ``SawyerXYZEnv``: equal results from cached views and indices."""

    model: Any
    data: Any
    settled: Array | None = None
    """Physics state one step before the hand has settled, where placement does not change it."""

    @functools.cached_property
    def views(self) -> tuple[Array, ...]:
        """Live views of the hand, both claws and both finger tips."""
        data = self.data
        bodies = (data.body(name).xpos for name in ("hand", "rightclaw", "leftclaw"))
        return (*bodies, *(data.site(name).xpos for name in ("rightEndEffector", "leftEndEffector")))

    @functools.cached_property
    def named(self) -> dict[tuple[str, str], Array]:
        """Live position views by kind and name."""
        return {}

    @functools.cached_property
    def pad_geoms(self) -> tuple[int, int]:
        """Geom ids of the two finger pads."""
        return self.data.geom("leftpad_geom").id, self.data.geom("rightpad_geom").id

    def _initialize_simulation(self) -> tuple[Any, Any]:
        model = copy.copy(compiled(cast("Any", self).fullpath))
        return model, mujoco.MjData(model)

    def get_endeff_pos(self) -> Array:
        """Return the live position of the hand."""
        return self.views[0]

    def get_body_com(self, body_name: str) -> Array:
        """Return the live position of a body."""
        view = self.named.get(("body", body_name))
        if view is None:
            view = self.named["body", body_name] = self.data.body(body_name).xpos
        return view

    def _get_site_pos(self, site_name: str) -> Array:
        view = self.named.get(("site", site_name))
        if view is None:
            view = self.named["site", site_name] = self.data.site(site_name).xpos
        return view.copy()

    @property
    def tcp_center(self) -> Array:
        """Return the middle between the finger tips."""
        views = self.views
        return cast("Array", (views[3] + views[4]) / 2.0)

    def touching_object(self, object_geom_id: int) -> bool:
        """Tell whether both pads press on the object."""
        left, right = self.pad_geoms
        forces = {left: 0.0, right: 0.0}
        for index, (first, second) in enumerate(self.data.contact.geom.tolist()):
            if object_geom_id in (first, second):
                pad = second if object_geom_id == first else first
                if pad in forces:
                    forces[pad] += float(self.data.efc_force[self.data.contact.efc_address[index]])
        return forces[left] > 0 and forces[right] > 0

    def _get_curr_obs_combined_no_goal(self) -> Array:
        env = cast("Any", self)
        hand, right, left = self.views[:3]
        gap = right - left
        out = np.zeros(18)
        out[:3] = hand
        out[3] = min(max(math.sqrt(gap.dot(gap)) / 0.1, 0.0), 1.0)
        pos, quat = env._get_pos_objects(), env._get_quat_objects()
        out[4:7], out[7:11] = pos[:3], quat[:4]
        if len(pos) == 6:
            out[11:14], out[14:18] = pos[3:], quat[4:]
        return out

    def _get_obs(self) -> Array:
        env = cast("Any", self)
        now = self._get_curr_obs_combined_no_goal()
        obs = np.empty(39)
        obs[:18], obs[18:36], obs[36:] = now, env._prev_obs, env._target_pos
        env._prev_obs = now
        return obs

    def _reset_hand(self, steps: int = 50) -> None:
        env = cast("Any", self)
        if self.settled is None:
            self.start_settling()
            mujoco.mj_step(self.model, self.data, nstep=SETTLE_SUBSTEPS)
        else:
            mujoco.mj_setState(self.model, self.data, self.settled, mujoco.mjtState.mjSTATE_INTEGRATION)
            mujoco.mj_step(self.model, self.data)
        env.init_tcp = self.tcp_center
        env.reachCompleted = False

    def start_settling(self) -> None:
        """Hold the hand at its first position with the gripper open."""
        self.data.mocap_pos[0] = cast("Any", self).hand_init_pos
        self.data.mocap_quat[0] = (1, 0, 1, 0)
        self.data.ctrl[:] = (-1, 1)


def _plain(function: types.FunctionType) -> types.FunctionType:
    """Return what Meta-World's ``assert_task_is_set`` wraps."""
    if function.__name__ == "inner" and function.__closure__ and "func" in function.__code__.co_freevars:
        return cast("types.FunctionType", function.__closure__[0].cell_contents)
    return function


def _rebind(attribute: Any, scope: dict[str, Any]) -> Any:
    """Return a function, property or static method that looks its globals up in another scope."""
    if isinstance(attribute, types.FunctionType):
        old = _plain(attribute)
        new = types.FunctionType(old.__code__, scope, old.__name__, old.__defaults__, old.__closure__)
        new.__kwdefaults__ = old.__kwdefaults__
        return new
    if isinstance(attribute, staticmethod):
        return staticmethod(_rebind(attribute.__func__, scope))
    if isinstance(attribute, property):
        return property(_rebind(attribute.fget, scope))
    return attribute


KEPT = ("seed", "step", "reset")
"""Functions that are replaced as a whole by the world that drives the task."""


def _shared(name: str) -> bool:
    return name not in KEPT and not name.startswith("__")


def accelerate(task_class: type[SawyerXYZEnv]) -> Callable[..., Any]:
    """Return a subclass of a Meta-World task that gives equal results in less time."""
    body: dict[str, Any] = {}
    scopes = []
    for owner in (SawyerXYZEnv, task_class):
        scope = {**sys.modules[owner.__module__].__dict__, **FAST_GLOBALS}
        body |= {key: _rebind(value, scope) for key, value in vars(owner).items() if _shared(key)}
        scopes.append(scope)
    body |= {key: value for key, value in vars(_Bookkeeping).items() if _shared(key)}
    fast = type(f"Fast{task_class.__name__}", (task_class,), body)
    for scope in scopes:  # tasks call their own static methods by class name
        scope[task_class.__name__] = fast
    return fast
