"""Pictures without a display, quick enough to record."""

from __future__ import annotations

import ctypes
import os
from typing import Any


def prefer_egl() -> None:
    """Choose EGL before MuJoCo's GL is imported, when the user chose nothing and there is no display."""
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
