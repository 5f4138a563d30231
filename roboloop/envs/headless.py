"""Pictures without a display, quick enough to record."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

from roboloop.core.errors import ConfigError

COARSE_SLICES, COARSE_STACKS = 12, 6
"""Facets of round shapes in small pictures; MuJoCo's own are 28 and 16, which takes up to five times as long."""


def prefer_egl() -> None:
    """Choose EGL before MuJoCo's GL is imported, when the user chose nothing and there is no display."""
    # Mesa draws small pictures twice as fast without threads to hand them to
    os.environ.setdefault("LP_NUM_THREADS", "0")
    if "MUJOCO_GL" in os.environ or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return  # pictures will fail with MuJoCo's own message; everything else works
    os.environ["MUJOCO_GL"] = "egl"


def quick_pictures(model: Any) -> None:
    """Turn off what makes software rendering ten times slower: shadows, reflections and multisampling.

    Takes a MuJoCo model, before its first picture; physics does not read these fields.
    """
    model.vis.quality.offsamples = 0
    model.vis.quality.shadowsize = 0
    model.light_castshadow[:] = 0
    model.mat_reflectance[:] = 0


class Camera:
    """One camera's small pictures, by a renderer that is made once: making one takes longer than hundreds of pictures.

    Every picture is a new uint8 array ``[3, height, width]``.
    """

    def __init__(self, model: Any, size: tuple[int, int], camera: int) -> None:
        import mujoco

        quick_pictures(model)
        model.vis.quality.numslices, model.vis.quality.numstacks = COARSE_SLICES, COARSE_STACKS
        self._camera = camera
        try:
            self._renderer = mujoco.Renderer(model, *size)
        except Exception as error:
            # EGL, OSMesa and GLFW each fail in their own way, and all of them mean this
            backend = os.environ.get("MUJOCO_GL", "none chosen")
            raise ConfigError(
                f"pictures cannot be drawn here (MUJOCO_GL: {backend}): {error}; install libegl1 and set "
                "MUJOCO_GL=egl, or libosmesa6 and MUJOCO_GL=osmesa"
            ) from error
        # also at the interpreter's end, while the drawing library still lives
        self._release = weakref.finalize(self, self._renderer.close)

    def look(self, data: Any) -> Any:
        """Return what the camera sees of a MuJoCo state."""
        self._renderer.update_scene(data, camera=self._camera)
        return self._renderer.render().transpose(2, 0, 1).copy()

    def close(self) -> None:
        """Release the renderer."""
        self._release()
