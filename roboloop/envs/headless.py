"""Rendering without a display."""

from __future__ import annotations

import ctypes.util
import os


def prefer_egl() -> None:
    """Choose EGL before MuJoCo's GL is imported, when the user chose nothing and there is no display."""
    if "MUJOCO_GL" in os.environ or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return
    if ctypes.util.find_library("EGL"):
        os.environ["MUJOCO_GL"] = "egl"
