"""What this machine can do: versions, cores, rendering; each line says what to do where something is missing."""

from __future__ import annotations

import os
import platform
import shutil
import time

from roboloop.core.errors import UserError
from roboloop.core.options import Options
from roboloop.core.packages import bringing, installed
from roboloop.core.types import Env
from roboloop.envs import registry
from roboloop.envs.config import EnvConfig
from roboloop.envs.headless import BACKENDS, CHOICE, check_backend, probe
from roboloop.run import device
from roboloop.run.config import Experiment

STEPS = 100


def doctor(args: list[str]) -> int:
    """Check the machine; exit code 2 if the default task cannot run."""
    Options(prog="roboloop doctor", allow_abbrev=False).parse_args(args)
    free_gb = shutil.disk_usage(".").free / 1e9
    print(f"python {platform.python_version()}, {len(os.sched_getaffinity(0))} cores, {free_gb:.0f} GB free here")
    modules = dict.fromkeys(module for _, suite in registry.records() for module in suite.packages)
    brought_by = bringing(modules)
    packages = dict.fromkeys(("torch", "numpy", *(brought_by.get(each, each) for each in modules), "wandb", "trackio"))
    found = installed(packages)
    for package in packages:
        print(f"{package} {found[package]}" if package in found else f"{package} is not installed")
    accelerators = device.devices()
    print("devices: " + (", ".join(map(device.describe, accelerators)) or "the CPU alone; torch sees no GPU"))
    draws = _pixels()  # before any suite: what they import changes the environment of other backends
    examples = {name: suite.example for name, suite in registry.records()}
    sound = {name: _probe(name, f"{name}/{task}", draws) for name, task in examples.items() if task}
    return 0 if sound[Experiment().env.id.partition("/")[0]] else 2


def _probe(suite: str, env_id: str, draws: bool) -> bool:
    """Step one environment of a suite, and render it where anything can be drawn."""
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
    print(f"{suite}: {steps_per_s:.0f} steps/s, {_rendering(env) if draws else 'no pictures'}")
    env.close()
    return True


def _rendering(env: Env) -> str:
    """Say how long a picture takes."""
    try:
        env.render()
        start_s = time.perf_counter()
        for _ in range(5):
            env.render()
    except Exception as error:  # a GL failure can be almost any exception
        return f"cannot render ({type(error).__name__}: {error})"
    return f"renders in {(time.perf_counter() - start_s) * 200:.1f} ms"


def _pixels() -> bool:
    """Say how fast each backend draws the small pictures that policies see, or why not, and which one is used."""
    asked = os.environ.get(CHOICE, "")
    for backend in BACKENDS:
        found = probe(backend)
        print(f"{backend}: {found.trouble or f'draws {found.frames_per_s:.0f} frames of 64x64 a second'}")
    try:
        check_backend()
    except UserError as error:
        print(f"pictures: none, {error}")
        return False
    used = os.environ.get(CHOICE) or "MuJoCo's own backend"
    print(f"pictures: {used} is used, {f'as {CHOICE} says' if asked else f'{CHOICE} is not set'}")
    return True
