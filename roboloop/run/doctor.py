"""What this machine can do: versions, cores, rendering; each line says what to do where something is missing."""

from __future__ import annotations

import os
import platform
import shutil
import time
from importlib import metadata

from roboloop.core.errors import UserError
from roboloop.core.options import Options
from roboloop.envs import registry
from roboloop.envs.config import EnvConfig
from roboloop.envs.headless import Camera, prefer_egl

_PROBES = {
    "metaworld": "metaworld/reach-v3",
    "gym": "gym/HalfCheetah-v5",
    "dmc": "dmc/walker-walk",
    "panda": "panda/reach",
}

STEPS = 100
_SCENE = """<mujoco><worldbody><light pos="0 0 2"/><geom type="plane" size="1 1 .1"/><geom type="capsule" size=".1 .3"/>
</worldbody></mujoco>"""


def doctor(args: list[str]) -> int:
    """Check the machine; exit code 2 if the default task cannot run."""
    Options(prog="roboloop doctor", allow_abbrev=False).parse_args(args)
    free_gb = shutil.disk_usage(".").free / 1e9
    print(f"python {platform.python_version()}, {len(os.sched_getaffinity(0))} cores, {free_gb:.0f} GB free here")
    for package in ("torch", "numpy", "gymnasium", "mujoco", "metaworld", "dm_control", "pybullet", "wandb"):
        try:
            print(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            print(f"{package} is not installed")
    sound = {suite: _probe(suite, env_id) for suite, env_id in _PROBES.items()}
    print(f"pixels: {_pixels()}")
    return 0 if sound["metaworld"] else 2


def _probe(suite: str, env_id: str) -> bool:
    """Step and render one environment of a suite."""
    import numpy as np

    try:
        env = registry.make(EnvConfig(id=env_id, max_episode_steps=STEPS))
        env.reset(0)
        start = time.perf_counter()
        for _ in range(STEPS):
            env.step(np.zeros(env.spec.action_dim, np.float32))
        steps_per_s = STEPS / (time.perf_counter() - start)
    except UserError as error:
        print(f"{suite}: {error}")
        return False
    try:
        env.render()
        start = time.perf_counter()
        for _ in range(5):
            env.render()
        backend = os.environ.get("MUJOCO_GL", "default")
        picture = f"renders with {backend} at {(time.perf_counter() - start) * 200:.1f} ms"
    except Exception as error:  # a GL failure can be almost any exception
        picture = f"cannot render ({type(error).__name__}: {error}); on Debian: apt-get install libegl1 libgl1"
    env.close()
    print(f"{suite}: {steps_per_s:.0f} steps/s, {picture}")
    return True


def _pixels() -> str:
    """Say which backend draws the small pictures that policies see, and how fast."""
    prefer_egl()
    try:
        import mujoco

        model = mujoco.MjModel.from_xml_string(_SCENE)
        camera = Camera(model, (64, 64), camera=-1)
    except ModuleNotFoundError:
        return "mujoco is not installed"
    except UserError as error:
        return str(error)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera.look(data)
    start_s = time.perf_counter()
    for _ in range(STEPS):
        camera.look(data)
    frames_per_s = STEPS / (time.perf_counter() - start_s)
    camera.close()
    return f"{os.environ.get('MUJOCO_GL', 'the default backend')} draws {frames_per_s:.0f} frames of 64x64 a second"
