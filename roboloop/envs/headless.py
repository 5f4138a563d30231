"""Pictures without a display, quick enough to record; the one place that knows MuJoCo's drawing backends."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import subprocess
import time
import traceback
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, NamedTuple

from roboloop.core.child import python, same_modules
from roboloop.core.errors import ConfigError

CHOICE = "MUJOCO_GL"
"""The environment variable by which MuJoCo, DM Control and Gymnasium choose a backend."""
BACKENDS = ("egl", "osmesa", "glfw")
"""In the order in which they are advised: on the graphics card or by Mesa, by Mesa alone, in a hidden window."""
INSTALL = f"apt-get install libegl1 libgl1 and {CHOICE}=egl, or {CHOICE}=disable where no pictures are needed"
COARSE_SLICES, COARSE_STACKS = 12, 6
"""Facets of round shapes in small pictures; MuJoCo's own are 28 and 16, which takes up to five times as long."""
MAX_PIXELS = 2048
"""Greatest height and width of a picture that is observed: a network that sees a larger one takes gigabytes."""
PROBE_S = 60.0
"""Time that a backend has to draw its first pictures; half a second is usual, but not where imports come by network."""

_PROVEN = "ROBOLOOP_DRAWS_WITH"
"""Names the backend that drew pictures here already, for this process and for the workers that it starts."""
_PLATFORM, _PLATFORM_AT_START = "PYOPENGL_PLATFORM", os.environ.get("PYOPENGL_PLATFORM", "")
"""MuJoCo's import sets this variable to its own backend, and every other one would then refuse."""
_SAFE = "PYTHONSAFEPATH"
"""Python's own variable for ``-P``."""
_LIBRARIES = {"egl": ("libEGL.so.1",), "osmesa": ("libOSMesa.so", "libOSMesa.so.8", "libOSMesa.so.6")}
_IMPORTING_GL = ("mujoco.gl_context", "dm_control._render")
_SCENE = """<mujoco><worldbody><light pos="0 0 2"/><geom type="plane" size="1 1 .1"/><geom type="capsule" size=".1 .3"/>
</worldbody></mujoco>"""


def prefer_egl() -> None:
    """Choose EGL before MuJoCo's GL is imported, when the user chose nothing; a display may be one that is gone."""
    # Mesa draws small pictures twice as fast without threads to hand them to
    os.environ.setdefault("LP_NUM_THREADS", "0")
    chosen = _chosen()
    if chosen:
        os.environ[CHOICE] = chosen  # DM Control and Gymnasium know small letters only
    elif _is_there("egl"):
        os.environ[CHOICE] = "egl"


def _chosen() -> str:
    return os.environ.get(CHOICE, "").strip().lower()


def _is_there(backend: str) -> bool:
    """Return whether a backend's library can be loaded; GLFW comes with its package."""
    for name in _LIBRARIES.get(backend, ()):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return backend not in _LIBRARIES


class Probe(NamedTuple):
    """What became of drawing with a backend."""

    frames_per_s: float
    """Of 64x64; zero where nothing can be drawn."""
    trouble: str
    """Why not, in a few words."""


@functools.cache
def probe(backend: str) -> Probe:
    """Draw with a backend in a child process: one that does not work may warn, hang or end its process."""
    if find_spec("mujoco") is None:
        return Probe(0.0, "mujoco is not installed")
    env = os.environ | {CHOICE: backend, _PROVEN: backend, _PLATFORM: _PLATFORM_AT_START, _SAFE: "1", **same_modules()}
    command = python("from roboloop.envs.headless import _draw; _draw()")
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=PROBE_S
        )
    except subprocess.TimeoutExpired:
        return Probe(0.0, f"no picture within {PROBE_S:.0f} s")
    said = done.stdout.splitlines()[-1:]
    if not done.returncode:
        return Probe(float(said[0]), "")
    if not _is_there(backend):
        return Probe(0.0, f"{_LIBRARIES[backend][0]} is missing")
    if backend in _LIBRARIES and _PLATFORM_AT_START not in ("", backend):
        return Probe(0.0, f"{_PLATFORM}={_PLATFORM_AT_START} forbids it")
    if backend and backend not in BACKENDS:
        return Probe(0.0, f"it is none of {', '.join(BACKENDS)}")
    return Probe(0.0, said[0] if said else f"its process ended with code {done.returncode}")


def _draw() -> None:
    """As a child: draw for a moment and print how many pictures a second, or why there are none."""
    code = 0
    with warnings.catch_warnings(record=True) as warned:
        try:
            print(_frames_per_s(), flush=True)
        except Exception as error:  # EGL, OSMesa and GLFW each fail in their own way
            # GLFW warns of the cause, and MuJoCo then fails by its effect
            causes = [str(each.message) for each in warned if each.category.__name__ == "GLFWError"]
            cause = re.sub(r"^\(\d+\) b'(.*)'$", r"\1", causes[0]) if causes else error.__cause__ or error
            print(_first_sentence(cause), flush=True)
            code = 1
    os._exit(code)  # what is half made would complain


def _first_sentence(error: object) -> str:
    return re.split(r"\.?\n|\. |\.$", str(error).strip())[0] or type(error).__name__


def _frames_per_s(duration_s: float = 0.1) -> float:
    import mujoco

    model = mujoco.MjModel.from_xml_string(_SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera = Camera(model, (64, 64), camera=-1)
    camera.look(data)
    start_s, frames = time.perf_counter(), 0
    while time.perf_counter() < start_s + duration_s:
        camera.look(data)
        frames += 1
    frames_per_s = frames / (time.perf_counter() - start_s)
    camera.close()
    return frames_per_s


def check_backend() -> None:
    """Refuse in one line to draw with a backend that does not work; this process has not touched it then."""
    prefer_egl()
    if os.environ.get(_PROVEN) == _chosen() or find_spec("mujoco") is None:
        return  # where MuJoCo is missing, its import says so
    trouble = probe(_chosen()).trouble
    if trouble:
        raise _refusal(trouble)
    os.environ[_PROVEN] = _chosen()


def check_pictures(size: tuple[int, int] | None) -> None:
    """Refuse observations that cannot be drawn: no backend, or too large for any."""
    if size is not None and max(size) > MAX_PIXELS:
        raise ConfigError(f"env.image_size must be at most {MAX_PIXELS} each way, got {list(size)}")
    check_backend()


@contextmanager
def usable_backend() -> Iterator[None]:
    """Choose a backend for what is imported here; one with which MuJoCo cannot even be imported is one line."""
    prefer_egl()
    warnings.filterwarnings("ignore", module="glfw")  # DM Control's import tries a window that nobody asked for
    try:
        with _safe_children():
            yield
    except Exception as error:
        if not _is_from_gl(error):
            raise
        raise _refusal(probe(_chosen()).trouble or _first_sentence(error)) from error


@contextmanager
def _safe_children() -> Iterator[None]:
    """Let no child look for modules in the working directory: GLFW's import asks one for the version of its library."""
    before = os.environ.get(_SAFE)
    os.environ[_SAFE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_SAFE, None)
        else:
            os.environ[_SAFE] = before


def _is_from_gl(error: BaseException | None) -> bool:
    """Return whether an error, or one that it stands for, came up while a backend was imported."""
    while error is not None:
        frames = traceback.walk_tb(error.__traceback__)
        if any(frame.f_globals.get("__name__") in _IMPORTING_GL for frame, _ in frames):
            return True
        error = error.__cause__ or error.__context__
    return False


def _refusal(trouble: str) -> ConfigError:
    chosen = _chosen()
    what = f"{CHOICE}={chosen} cannot be used" if chosen else f"{CHOICE} is not set, there is no EGL, and GLFW fails"
    works = next((name for name in BACKENDS if name != chosen and not probe(name).trouble), "")
    return ConfigError(f"{what}: {trouble}; {f'{CHOICE}={works} works here' if works else INSTALL}")


def quick_pictures(model: Any) -> None:
    """Turn off what makes software rendering ten times slower: shadows, reflections and multisampling.

    Takes a MuJoCo model, before its first picture; physics does not read these fields.
    """
    model.vis.quality.offsamples = 0
    model.vis.quality.shadowsize = 0
    model.light_castshadow[:] = 0
    model.mat_reflectance[:] = 0


def renderer(model: Any, height: int, width: int) -> Any:
    """Return MuJoCo's renderer, quick and with room for pictures of this size; one line says why there is none."""
    check_backend()
    import mujoco

    quick_pictures(model)
    room = model.vis.global_
    room.offheight, room.offwidth = max(room.offheight, height), max(room.offwidth, width)
    try:
        with _safe_children():
            return mujoco.Renderer(model, height, width)
    except Exception as error:  # small pictures were drawn here, so that it is the size or the memory
        raise ConfigError(f"pictures of {height}x{width} cannot be drawn: {_first_sentence(error)}") from error


class Camera:
    """One camera's small pictures, by a renderer that is made once: making one takes longer than hundreds of pictures.

    Every picture is a new uint8 array ``[3, height, width]``.
    """

    def __init__(self, model: Any, size: tuple[int, int], camera: int) -> None:
        model.vis.quality.numslices, model.vis.quality.numstacks = COARSE_SLICES, COARSE_STACKS
        self._camera = camera
        self._renderer = renderer(model, *size)
        # also at the interpreter's end, while the drawing library still lives
        self._release = weakref.finalize(self, self._renderer.close)

    def look(self, data: Any) -> Any:
        """Return what the camera sees of a MuJoCo state."""
        self._renderer.update_scene(data, camera=self._camera)
        return self._renderer.render().transpose(2, 0, 1).copy()

    def close(self) -> None:
        """Release the renderer."""
        self._release()
