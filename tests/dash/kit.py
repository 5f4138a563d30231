"""Run directories made by hand, and a client that was let in."""

import json
import os
import socket
import time
from pathlib import Path

from starlette.testclient import TestClient

from roboloop.dash.catalog import id_of
from roboloop.dash.server import make_app
from roboloop.track.read import boot_id

PORT = 8123
HOST = f"127.0.0.1:{PORT}"
ORIGIN = f"http://{HOST}"


def make_run(root: Path, name: str = "sac/reach/0", rows=None, state: str = "done", **status) -> Path:
    path = root / name
    path.mkdir(parents=True)
    rows = rows if rows is not None else [{"step": 10 * i, "updates": i, "train/return": float(i)} for i in range(20)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    timing = ({"step": row["step"], "wall_s": row["step"] / 5, "steps_per_s": 5.0} for row in rows)
    (path / "timing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in timing))
    (path / "config.yaml").write_text(f"experiment: {name.split('/')[0]!r}\nseed: 0\nsteps: 1000\nalgo: {{lr: 0.1}}\n")
    facts = {"state": state, "step": 190, "steps": 1000, "pid": os.getpid(), "host": socket.gethostname()}
    facts |= {"boot_id": boot_id(), "updated_unix_s": time.time()} | status
    (path / "status.json").write_text(json.dumps(facts))
    return path


def client(root: Path, enter: bool = True, logs=None, names=frozenset({HOST})) -> TestClient:
    app = make_app([root], "secret", PORT, names, logs)
    found = TestClient(app, base_url=ORIGIN, follow_redirects=False)
    if enter:
        assert found.get("/enter", headers={"x-roboloop-token": "secret"}).status_code == 204
    return found


def run_id(path: Path) -> str:
    return id_of(path.resolve())
