"""Power cuts: a run on an ext4 of its own whose disk stops at a random moment; every one must resume to the same bits.

    roboloop bench power-cut --cuts 50        (root, Linux: a loop mount in a folder of its own)

A cut is EXT4_IOC_SHUTDOWN without a log flush: what was not fsynced is gone, as when the plug is pulled. The file
system is then unmounted and mounted again, which replays its journal, and the same command goes on with the run. Of a
run that records, the episodes that were committed before a cut are read back after it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from roboloop.core.errors import DataError
from roboloop.core.state import equal
from roboloop.data.aside import AsideMark
from roboloop.data.dataset import Dataset
from roboloop.data.index import read_index
from roboloop.data.verify import faults
from roboloop.run import checkpoint

SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
DISK_MB = 256
FLAGS = {
    "sac": "--algo sac --env gym/Pendulum-v1 --env.num-envs 2 --warmup-steps 60 --replay.capacity 20000"
    " --algo.hidden 32 32 --algo.batch-size 32 --algo.processes 1",
    "sac-record": "--algo sac --env gym/Pendulum-v1 --env.num-envs 2 --warmup-steps 60 --replay.capacity 20000"
    " --algo.hidden 32 32 --algo.batch-size 32 --algo.processes 1 --record.keep all --record.min-free-mb 0"
    " --record.commit-s 0.3 --eval.background",
    "ppo": "--algo ppo --env gym/Pendulum-v1 --env.num-envs 4 --algo.rollout-steps 32 --algo.hidden 32 32"
    " --algo.processes 1",
}
COMMON = (
    "--env.max-episode-steps 40 --env.eval-max-episode-steps 40 --log-every-steps 50"
    " --eval.every-steps 1000 --eval.episodes 2"
)
SAVED = "--checkpoint.every-steps 0 --checkpoint.every-s 0.4"
"""Of runs that are cut: checkpoints by the clock, so that a cut comes anywhere between two of them."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--cuts", type=int, default=50)
    options.add_argument("--steps", type=int, default=6000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--kinds", nargs="+", choices=FLAGS, default=list(FLAGS))
    known = options.parse_args()
    if os.geteuid():
        raise SystemExit("power-cut: needs root, to mount a file system of its own")
    draw, failures = random.Random(known.seed), 0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        print(f"{'kind':<12}{'cuts':>6}{'before the run':>16}{'resumed':>9}{'steps lost, most':>18}  equal  episodes")
        for number, kind in enumerate(known.kinds):
            cuts = known.cuts // len(known.kinds) + (number < known.cuts % len(known.kinds))
            failures += not _series(root / kind, kind, cuts, known.steps, draw)
    sys.exit(1 if failures else 0)


def _series(root: Path, kind: str, cuts: int, steps: int, draw: random.Random) -> bool:
    """Cut a run so many times, as often anew as needed; say whether all was as promised."""
    root.mkdir()
    whole = _train(root, root / "whole", kind, steps, saved=False)
    began = time.monotonic()
    if whole.wait() != 0:
        raise SystemExit("the uninterrupted run failed")
    seconds = time.monotonic() - began
    expected = _remains(root / "whole")
    done = resumed = early = lost = torn = episodes = 0
    is_equal = True
    while done < cuts:
        with _disk(root) as disk:
            while done < cuts:
                process = _train(root, disk.folder / "runs", kind, steps)
                # mostly in mid-training, one in six while the run is made
                time.sleep(draw.uniform(0.3, 2.5) if draw.random() < 1 / 6 else draw.uniform(2.0, 2.0 + seconds / 3))
                if process.poll() is not None:
                    break
                reached, committed = _newest_step(disk.folder / "runs"), _mark(disk.folder / "runs")
                disk.cut(process)
                done += 1
                early += reached < 0
                found = _newest_step(disk.folder / "runs")
                resumed += found >= reached
                torn += not _holds(disk.folder / "runs", committed)
                lost = max(lost, reached - found)
            # what is left is trained to its end, from wherever the last cut left it
            if _train(root, disk.folder / "runs", kind, steps).wait() not in (0, 3):
                raise SystemExit(f"{kind}: the same command did not go on after {done} cuts: {disk.said}")
            is_equal &= equal(_remains(disk.folder / "runs"), expected)
            torn += not _holds(disk.folder / "runs", _mark(disk.folder / "runs"))
            episodes += _num_episodes(disk.folder / "runs")
    said = f"{episodes} held, {torn} cuts lost some" if "--record.keep" in FLAGS[kind] else "-"
    print(f"{kind:<12}{done:>6}{early:>16}{resumed:>9}{lost:>18}  {is_equal!s:<5}  {said}", flush=True)
    return is_equal and resumed == done and not torn and bool(episodes) == ("--record.keep" in FLAGS[kind])


class _Disk:
    """A file system in a file, mounted for itself alone."""

    def __init__(self, root: Path) -> None:
        self.image, self.folder, self.said = root / "disk.img", root / "disk", root / "said.log"
        self.folder.mkdir(exist_ok=True)
        with open(self.image, "wb") as file:
            file.truncate(DISK_MB << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", self.image], check=True)
        self.mount()

    def mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", self.image, self.folder], check=True)

    def unmount(self) -> None:
        for _ in range(50):
            if subprocess.run(["umount", self.folder], capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.1)
        raise SystemExit(f"{self.folder} is busy")

    def cut(self, process: subprocess.Popen[bytes]) -> None:
        """Pull the plug: nothing more reaches the disk, the process dies, the machine starts anew."""
        fd = os.open(self.folder, os.O_RDONLY)
        fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        os.close(fd)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(0.2)  # children die with it
        self.unmount()
        self.mount()


@contextlib.contextmanager
def _disk(root: Path) -> Iterator[_Disk]:
    disk = _Disk(root)
    try:
        yield disk
    finally:
        disk.unmount()


def _train(root: Path, runs: Path, kind: str, steps: int, saved: bool = True) -> subprocess.Popen[bytes]:
    words = f"{FLAGS[kind]} {COMMON} {SAVED if saved else '--checkpoint.every-steps 0 --checkpoint.every-s 0'}".split()
    words += ["--steps", str(steps), "--trackers", "--experiment", kind, "--runs-dir", str(runs), "--resume"]
    with open(root / "said.log", "ab") as log:
        command = [sys.executable, "-P", "-m", "roboloop.cli", "train", *words]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def _run(runs: Path) -> Path | None:
    return next(runs.glob("*/*/0"), None)


def _newest_step(runs: Path) -> int:
    """Return the step of the newest checkpoint whose name is there; -1 where there is none yet."""
    run = _run(runs)
    return max(checkpoint.steps(run / "checkpoints"), default=-1) if run else -1


def _mark(runs: Path) -> AsideMark | None:
    """Return what was committed to the dataset of a run; none where nothing was."""
    run = _run(runs)
    return AsideMark.read(run / "dataset") if run else None


def _holds(runs: Path, committed: AsideMark | None) -> bool:
    """Say whether a dataset has all that was committed, and every episode of it is whole."""
    run = _run(runs)
    if committed is None or run is None:
        return committed is None
    try:
        return committed.fits(read_index(run / "dataset")) and not list(faults(Dataset.open(run / "dataset")))
    except DataError:
        return False


def _num_episodes(runs: Path) -> int:
    run = _run(runs)
    return len(Dataset.open(run / "dataset")) if run and (run / "dataset").exists() else 0


def _remains(runs: Path) -> dict[str, object]:
    run = _run(runs)
    assert run is not None
    point = next(checkpoint.newest_first(run / "checkpoints", print))
    state = {name: value for name, value in point.state.items() if name not in ("save_due", "recorder")}
    return {"state": state, "metrics": (run / "metrics.jsonl").read_text()}


if __name__ == "__main__":
    shutil.which("mkfs.ext4") or sys.exit("power-cut: needs mkfs.ext4 (e2fsprogs)")
    main()
