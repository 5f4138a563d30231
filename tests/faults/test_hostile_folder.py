"""A stranger's folder of runs runs no code from the page or in a sweep, whatever lies in the working directory."""

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

pytest.importorskip("starlette", reason="the extra dash is not installed")

from roboloop.core.sealed import seal_text
from roboloop.dash.catalog import id_of
from tests.run.helpers import train

ROOT = Path(__file__).parents[2]
ROBOLOOP = (sys.executable, "-P", "-m", "roboloop.cli")
MODULES = (
    "roboloop", "torch", "yaml", "numpy", "sitecustomize", "usercustomize", "stranger", "uvicorn", "starlette", "h11",
    "anyio", "msgspec", "gymnasium", "optuna", "wandb", "tensorboard", "matplotlib", "safetensors", "rich", "json",
    "psutil", "train", "ctypes", "multiprocessing", "mujoco", "OpenGL",
)  # fmt: skip


SMALL = ("--algo.rollout-steps", "16", "--algo.hidden", "8", "8", "--eval.episodes", "0", "--trackers")


class Folder:
    """A folder with code in every place where somebody might look for it, and marks of what ran."""

    def __init__(self, path: Path) -> None:
        self.path, self.marks = path / "stranger", path / "marks"
        self.marks.mkdir()
        self.path.mkdir()
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def code(self, name: str) -> str:
        return f"open({str(self.marks / name)!r}, 'w').close()\nraise SystemExit(99)\n"

    def plant(self, folder: Path) -> None:
        """Put modules and settings into a folder."""
        for name in MODULES:
            (folder / f"{name}.py").write_text(self.code(f"{name}.py"))
        (folder / "train").write_text(self.code("train"))
        (folder / "evil.pth").write_text(f"import os; open({str(self.marks / 'pth')!r}, 'w').close()\n")
        (folder / "matplotlibrc").write_text("backend: module://stranger\ntext.usetex: True\n")
        (folder / "bin").mkdir(exist_ok=True)
        for name in ("python", "roboloop", "ffmpeg", "git", "nvidia-smi"):
            (folder / "bin" / name).write_text(f"#!/bin/sh\ntouch {self.marks / name}\n")
            (folder / "bin" / name).chmod(0o755)
            shutil.copy2(folder / "bin" / name, folder / name)

    def pickled(self) -> bytes:
        mark = str(self.marks / "pickle")

        class Bomb:
            def __reduce__(self):
                return open, (mark, "w")

        return pickle.dumps(Bomb())

    def ran(self) -> list[str]:
        return sorted(path.name for path in self.marks.iterdir())

    def do(self, *words: object) -> subprocess.CompletedProcess[str]:
        command = [*ROBOLOOP, *map(str, words)]
        return subprocess.run(
            command, cwd=self.path, env=self.env, capture_output=True, text=True, timeout=120, check=False
        )


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def change(run: Path, **changes) -> Path:
    """Change a run's config, with a digest that fits: a stranger can compute it too."""
    data = yaml.safe_load((run / "config.yaml").read_text())
    for key, value in changes.items():
        *sections, name = key.split("__")
        section = data
        for part in sections:
            section = section[part]
        section[name] = value
    (run / "config.yaml").write_bytes(seal_text(yaml.safe_dump(data, sort_keys=False)))
    return run


def hostile_runs(folder: Folder, sound: Path) -> dict[str, Path]:
    """Return runs that name or hold code, each in another way."""
    runs = {}
    for seed, name in enumerate(("observer", "environment", "tag", "pickle")):
        runs[name] = folder.path / "odd" / "Pendulum-v1" / str(seed)
        shutil.copytree(sound, runs[name])
        folder.plant(runs[name])
    change(runs["observer"], observers=["stranger:Watch"])
    change(runs["environment"], env__id="gym/stranger:Pendulum-v1")
    tag = f"!!python/object/apply:os.system ['touch {folder.marks / 'tag'}']"
    (runs["tag"] / "config.yaml").write_bytes(seal_text(f"experiment: {tag}\n"))
    for each in (runs["pickle"] / "checkpoints").glob("step-*"):
        (each / "state.safetensors").write_bytes(folder.pickled())
        (each / "state.pt").write_bytes(folder.pickled())
    return runs


def ask(url: str, path: str, cookie: str, post: bool = False) -> str:
    base = url.partition("/#")[0]
    headers = {"cookie": cookie, "origin": base} if cookie else {"x-roboloop-token": url.rpartition("=")[2]}
    request = urllib.request.Request(base + path, headers=headers, data=b"" if post else None)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.headers.get("set-cookie", "").partition(";")[0] or answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.read().decode(errors="replace")


def wait_until(is_so, seconds=90.0):
    end_s = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.05)


def test_the_page_of_a_strangers_folder_and_its_buttons_run_no_code(folder, tiny):
    folder.plant(folder.path)
    runs = hostile_runs(folder, train(tiny(), crash_after=250))
    page = subprocess.Popen([*ROBOLOOP, "dash", "."], cwd=folder.path, env=folder.env, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)  # fmt: skip
    try:
        url = page.stdout.readline().strip()
        assert re.match(r"http://127\.0\.0\.1:\d+/#token=", url), page.stderr.read()
        cookie = ask(url, "/enter", "")
        listed = {run["id"] for run in json.loads(ask(url, "/api/runs", cookie))["runs"]}
        ids = {name: id_of(path.resolve()) for name, path in runs.items()}
        assert listed == set(ids.values())
        for one in listed:
            for what in ("api/run", "api/log", "sheet"):
                ask(url, f"/{what}/{one}{'/dataset' if what == 'sheet' else ''}", cookie)
            ask(url, f"/api/stop/{one}", cookie, post=True)
        ask(url, f"/api/diff?runs={','.join(listed)}", cookie)
        ask(url, f"/api/curves?runs={','.join(listed)}&key=train/return", cookie)
        said = {name: ask(url, f"/api/resume/{one}", cookie, post=True) for name, one in ids.items()}
        assert "goes on as process" in said["observer"]
        logs = {name: runs[name] / "launch" / "output.log" for name in runs}
        wait_until(lambda: all("roboloop: " in log.read_text() for log in logs.values() if log.exists()))
        for name in ("observer", "environment"):
            assert "--trust" in logs[name].read_text()
    finally:
        page.send_signal(signal.SIGINT)
        _, errors = page.communicate(timeout=20)
    assert "Traceback" not in errors
    assert folder.ran() == []


def test_drawing_in_a_strangers_folder_runs_none_of_its_code(folder):
    pytest.importorskip("dm_control")
    folder.plant(folder.path)
    where = ("dmc/cartpole-swingup", "--env.observe", "pixels", "--env.max-episode-steps", "2")
    done = folder.do("record", *where, "--random", "--episodes", "1", "--out", "data")
    assert folder.ran() == []
    assert "Traceback" not in done.stderr
    done = folder.do("envs", "check", "gym/HalfCheetah-v5", "--steps", "2")  # whose import asks GLFW's library
    assert folder.ran() == []
    assert done.returncode == 0, done.stderr


def test_ray_workers_in_a_strangers_folder_run_none_of_its_code_but_find_what_was_typed(folder):
    pytest.importorskip("ray")
    folder.plant(folder.path)
    (folder.path / "mine.py").write_text("from gymnasium.envs.classic_control import PendulumEnv as Mine\n")
    on_ray = ("--sample.on", "ray", "--sample.workers", "1", "--algo", "ppo", "--env.max-episode-steps", "20")
    done = folder.do("train", "--env", "gym/mine:Mine", *on_ray, *SMALL, "--steps", "32")
    assert folder.ran() == []
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_sweep_in_a_strangers_folder_runs_none_of_its_code(folder):
    words = ["sweep", "cartpole", "--name", "s", "--runs-dir", ".", "--axis", "algo.gamma", "0.9", "--retries", "0"]
    made = folder.do(*words, *SMALL, "--steps", "128", "--seeds", "0")
    assert made.returncode == 0, made.stdout + made.stderr
    sweep = folder.path / "s"
    odd = sweep / "gamma=0.9" / "CartPole-v1" / "0"
    change(odd, observers=["stranger:Watch"])
    change(odd / "launch", observers=["stranger:Watch"])
    facts = {"pid": os.getpid(), "slot": 0, "command": ["touch", str(folder.marks / "facts")]}
    (odd / "launch" / "facts.json").write_text(json.dumps(facts))
    plan = json.loads((sweep / ".sweep" / "plan.json").read_text())
    plan["runs"] += [{**plan["runs"][0], "path": path} for path in ("../../outside", "/etc")]
    plan["command"] = ["sweep", f"$(touch {folder.marks / 'shell'})"]
    (sweep / ".sweep" / "plan.json").write_text(json.dumps(plan))
    for place in (folder.path, odd, sweep, sweep / ".sweep"):
        folder.plant(place)
    seen = folder.do("runs", ".")
    assert (seen.returncode, "outside" in seen.stdout) == (0, False), seen.stderr
    done = folder.do("requeue", "s")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    done = folder.do(*words, *SMALL, "--steps", "256", "--seeds", "0", "1")
    assert "Traceback" not in done.stderr + done.stdout
    run = sweep / "gamma=0.9" / "CartPole-v1" / "1"
    fresh = json.loads((run / "status.json").read_text())
    assert (fresh["state"], fresh["step"]) == ("done", 256), done.stdout + done.stderr
    assert (run / "plots" / "curve.png").exists()
    assert folder.ran() == []
