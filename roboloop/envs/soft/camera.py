"""Pictures of the table from straight above; one renderer that is made once and used for all of them."""

from __future__ import annotations

import weakref

import mujoco
import numpy as np

from roboloop.core.types import Array
from roboloop.envs.headless import quick_pictures


class Camera:
    """Pictures of one size."""

    def __init__(self, model: mujoco.MjModel, size: int) -> None:
        quick_pictures(model)
        self._model, self._size = model, size
        self._renderer = mujoco.Renderer(model, size, size)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._renderer.scene.flags[flag] = 0
        # also at the interpreter's end, while the drawing library still lives
        self.close = weakref.finalize(self, self._renderer.close)
        """Release the picture's context."""
        self._frame = np.zeros((size, size, 3), np.uint8)

    def picture(self, data: mujoco.MjData) -> Array:
        """Return the present picture ``[size, size, 3]``; it is overwritten by the next."""
        mujoco.mj_kinematics(self._model, data)
        mujoco.mj_comPos(self._model, data)
        mujoco.mj_camlight(self._model, data)
        mujoco.mj_flex(self._model, data)
        self._renderer.update_scene(data, camera=0)
        self._renderer.render(out=self._frame)
        return self._frame
