"""Stands for ``roboloop`` where what is tested is the launcher: a run directory as ``train`` leaves it, without torch.

What each run does is said by the seed: BEHAVIOUR in the environment maps seeds to words.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import yaml

from roboloop.core.errors import RunExists
from roboloop.core.files import take_lock
from roboloop.track.read import boot_id

STOP = []


def main() -> int:
    folder = Path(sys.argv[sys.argv.index("--config") + 1]).parent
    config = yaml.safe_load((folder / "config.yaml").read_text())
    path = folder.parent
    behaviour = json.loads(os.environ.get("BEHAVIOUR", "{}")).get(str(config["seed"]), "done")
    starts = (folder / "output.log").read_text().count("$ roboloop train")
    with open(os.environ["ORDER"], "a") as order:
        order.write(
            f"{path.parts[-3]}/{config['seed']} {os.environ['OMP_NUM_THREADS']} {sorted(os.sched_getaffinity(0))}\n"
        )
    if behaviour == "bad input":
        print("roboloop: config key 'x' is wrong", file=sys.stderr)
        return 2
    if behaviour == "fails" or (behaviour == "fails once" and starts == 1):
        print("RuntimeError: the simulator has exploded", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: STOP.append(1))
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        lock = take_lock(path, "running in")
    except RunExists as error:
        Path(os.environ["ORDER"]).with_name("twice.txt").write_text(f"{path}: {error}")
        print(f"roboloop: {error}", file=sys.stderr)
        return 3
    with lock:
        return train(path, config, behaviour, starts)


def train(path: Path, config: dict, behaviour: str, starts: int) -> int:
    def say(state: str) -> None:
        status = {
            "state": state, "pid": os.getpid(), "host": os.uname().nodename, "boot_id": boot_id(),
            "updated_unix_s": time.time(), "step": 1, "steps": config["steps"], "steps_per_s": 10.0,
        }  # fmt: skip
        (path / ".status.tmp").write_text(json.dumps(status))
        os.replace(path / ".status.tmp", path / "status.json")

    say("running")
    bad = behaviour == "later trials are bad" and path.parts[-3] >= "trial-0004"
    reached = -100.0 if bad else -abs(config["algo"]["gamma"] - 0.9)
    rows = [{"step": step, "eval/return": reached * 100 / step, "eval/success": None} for step in (25, 50, 75, 100)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    memory = bytearray(200_000_000) if behaviour == "swells" else b""
    waits = bad or behaviour in ("waits", "deaf", "swells") or (behaviour == "waits once" and starts == 1)
    deadline_s = time.monotonic() + (60 if waits else 0.6 if behaviour == "slow" else 0.05)
    while time.monotonic() < deadline_s and not STOP:
        time.sleep(0.01)
    if behaviour == "vanishes once" and starts == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if STOP:
        say("stopped")
        return 4
    say("running" if behaviour == "lies" else "done")
    return 5 if behaviour == "ends badly once" and starts == 1 else 0 * len(memory)


if __name__ == "__main__":
    sys.exit(main())
