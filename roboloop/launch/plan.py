"""What a sweep consists of, on disk: ``<sweep>/.sweep/``, for whoever looks at it or starts it again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shlex
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from roboloop.core.errors import DataError
from roboloop.core.files import (
    is_directory,
    make_directory,
    open_regular,
    own_directory,
    read_json,
    replace_atomic,
    take_lock,
)
from roboloop.core.processes import has_open
from roboloop.core.vouched import FLAG
from roboloop.launch.job import Job
from roboloop.launch.sweep import Planned
from roboloop.track.read import SWEEP, boot_id

_LOCK_BYTES = 1000


class LauncherAt(NamedTuple):
    """The process that runs a sweep, and where: on shared storage that may be another machine."""

    pid: int
    host: str
    """Empty in a lock that was written before locks said it, or is being written now."""
    boot: str = ""

    @property
    def is_here(self) -> bool:
        """Say whether its process id means that process to us; a container has the boot of its machine."""
        return (self.host, self.boot) == (socket.gethostname(), boot_id())


@contextlib.contextmanager
def launching(sweep: Path) -> Iterator[None]:
    """Be the only launcher of a sweep."""
    make_directory(sweep)
    own_directory(sweep / SWEEP)
    with take_lock(sweep / SWEEP, "swept by", socket.gethostname(), boot_id()):
        yield


def launcher_of(sweep: Path) -> LauncherAt | None:
    """Return who runs a sweep, if anybody does; a copy by hard links has the original's lock, and no launcher."""
    file = sweep / SWEEP / "lock"
    try:
        with open_regular(file) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pid, *where = lock.read(_LOCK_BYTES).decode().split()
                found = LauncherAt(int(pid), *[*where, ""][:2])
                return None if found.is_here and has_open(found.pid, file) is False else found
    except (OSError, ValueError, DataError):
        pass
    return None


def write(sweep: Path, runs: Sequence[Planned], command: Sequence[str]) -> None:
    """Write down the runs of a sweep, and the command that goes on with it."""
    rows = [
        {
            "path": str(run.path.relative_to(sweep)),
            "variant": run.variant,
            "seed": run.seed,
            "steps": run.config.steps,
            "settings": run.settings,
        }
        for run in runs
    ]
    content = {"command": list(command), "runs": rows}
    replace_atomic(sweep / SWEEP / "plan.json", json.dumps(content, indent=1).encode())


def read(sweep: Path) -> dict[str, Any]:
    """Return what ``write`` wrote."""
    plan = read_json(sweep / SWEEP / "plan.json")
    if not isinstance(plan, dict) or not isinstance(plan.get("runs"), list):
        raise DataError(f"{sweep / SWEEP / 'plan.json'} is no plan of a sweep")
    return plan


def command_of(sweep: Path) -> str:
    """Return what a user types to go on with a sweep; whether its plan is trusted is for the user to add."""
    command = read(sweep).get("command")
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise DataError(f"{sweep / SWEEP / 'plan.json'} does not say how its sweep was started")
    return shlex.join(["roboloop", *(word for word in command if word != FLAG)])


def planned_runs(root: Path) -> dict[Path, int]:
    """Return the runs of all sweeps at or under a root, or around it, and the steps each is to make."""
    found: dict[Path, int] = {}
    around = sweep_of(root / "x")
    for sweep in dict.fromkeys([*([around] if around else []), *sweeps_at(root)]):
        with contextlib.suppress(
            DataError, KeyError, TypeError, ValueError, OverflowError
        ):  # of a damaged plan nothing is known
            rows = [(Path(str(row["path"])), int(row["steps"])) for row in read(sweep)["runs"]]
            # a plan that came from elsewhere names no runs but those of its own folder
            found |= {sweep / path: steps for path, steps in rows if not path.is_absolute() and ".." not in path.parts}
    return {path: steps for path, steps in found.items() if path == root or root in path.parents}


def sweeps_at(root: Path) -> list[Path]:
    """Return the sweeps at a root or right under it."""
    return [path.parent for path in [root / SWEEP, *sorted(root.glob(f"*/{SWEEP}"))] if is_directory(path)]


def sweep_of(path: Path) -> Path | None:
    """Return the sweep that a run belongs to."""
    return next((parent for parent in path.parents if is_directory(parent / SWEEP)), None)


def jobs_at(path: Path) -> list[Job]:
    """Return the runs of sweeps that a path stands for: a run, or all under it."""
    return [Job(run) for run in planned_runs(path)]
