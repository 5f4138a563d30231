"""kill -9 at random moments: every algorithm and sampler, the training process, its group and each kind of child.

    roboloop bench random-kills --kills 1000

Each configuration trains once undisturbed. Then it is killed again and again: after each kill of the training process
the same command goes on with ``--resume``, after that of a child the same process must go on. A run that comes to its
end is compared with the undisturbed one where equality is promised: in the loop and in lock step, whatever is killed
but workers, whose running episodes are lost. Elsewhere it must resume, finish and be sound. No child may outlive its
parent, and nothing may end in a traceback.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from _contender import print_table
from _kill_rows import EXACT, KINDS, MOST_IN_A_LIFE, ROWS, Row, possible
from _lives import Failure, Life

from roboloop.core.child import die_with
from roboloop.core.state import equal
from roboloop.envs.headless import prefer_egl
from roboloop.run import checkpoint

FINISHED = 3
"""Exit code of a resume that finds the run finished."""
LIMIT_S = 300.0
SLOW = 0.4
"""Share of a configuration whose lives begin slowly: a cluster is joined, a robot moves at its own rate."""
LOADED = (
    "roboloop.run.build", "roboloop.run.commands", "roboloop.run.runner", "roboloop.run.record",
    "roboloop.run.datasets", "roboloop.run.offline", "roboloop.run.simgan", "roboloop.track.plots",
    "matplotlib.backends.backend_agg", "matplotlib.figure", "gymnasium.envs.classic_control.pendulum",
)  # fmt: skip


@dataclass
class Tally:
    """What became of one configuration."""

    row: str
    kills: int = 0
    by_whom: dict[str, int] = field(default_factory=dict)
    resumed: int = 0
    went_on: int = 0
    named: int = 0
    runs: int = 0
    compared: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


class Campaign:
    """One configuration and its kills."""

    def __init__(self, row: Row, root: Path, places: dict[str, str], kills: int, draw: random.Random) -> None:
        self.row, self.root, self.places, self.wanted, self.draw = row, root, places, kills, draw
        self.tally, self._number = Tally(str(row)), 0
        self._span_s = 0.0
        root.mkdir()

    def run(self) -> Tally:
        """Kill as often as wanted, or until something is wrong."""
        start_s = time.monotonic()
        try:
            whole = self._undisturbed() if self.row.sampler in EXACT else None
            self._span_s = max(0.3, (time.monotonic() - start_s) / 10)
            while self.tally.kills < self.wanted:
                self._one_run(whole)
        except Failure as failure:
            self.tally.wrong.append(str(failure))
        self.tally.seconds = time.monotonic() - start_s
        return self.tally

    def _begin(self, runs: Path) -> Life:
        return Life(self.row.words(self.places, runs), runs.with_suffix(".log"), runs)

    def _undisturbed(self) -> Any:
        runs = self.root / "whole"
        life = self._begin(runs)
        if life.sleep(LIMIT_S) or life.code:
            life.clean_up()
            raise Failure(f"the undisturbed run: exit code {life.code}: {life.messages()[-600:]}")
        found = remains(runs, self.row)
        shutil.rmtree(runs)
        return found

    def _one_run(self, whole: Any) -> None:
        """Kill one run until it is done; every second one with workers has them killed, and is not compared."""
        self._number += 1
        runs = self.root / f"run{self._number}"
        loses_workers = "worker" in self.row.children and (self._number % 2 == 1 or whole is None)
        kinds = [kind for kind in self.row.children if kind != "worker" or loses_workers]
        said = ""
        lived_s = self._span_s
        while True:
            life = self._begin(runs)
            try:
                killed = self._one_life(life, kinds, lived_s)
                said = life.messages()
                if "Traceback (most recent call last)" in said:
                    raise Failure(f"traceback: {said[-1500:]}")
                if not killed:
                    break
                lived_s *= 1.1  # so that each run ends at some time
            finally:
                life.clean_up()
        if life.code not in (0, FINISHED):
            self.tally.resumed -= 1
            raise Failure(f"after {self.tally.kills} kills: exit code {life.code}: {said[-600:]}")
        life.check_orphans()
        self.tally.runs += 1
        found = remains(runs, self.row)
        if whole is not None and not loses_workers:
            self.tally.compared += 1
            if not equal(found, whole):
                raise Failure(
                    f"differs from the undisturbed run after {self.tally.kills} kills: {difference(found, whole)}"
                )
        if "recorder" in self.row.children:
            self._verify(runs)
        shutil.rmtree(runs)
        runs.with_suffix(".log").unlink()

    def _one_life(self, life: Life, kinds: list[str], lived_s: float) -> bool:
        """Kill children and then the process itself; False when it ended before that."""
        draw, lost = self.draw, list[int]()
        if self.tally.kills >= self.wanted:
            self._let_finish(life, lost)
            return False
        counts: dict[str, int] = {}
        if draw.random() < 0.2:  # while it loads
            alive = life.sleep(draw.uniform(0.0, 1.5))
        else:
            alive = life.wait_until_training(LIMIT_S) and life.sleep(draw.uniform(0.0, 2.0 * lived_s))
        while alive:
            left = [kind for kind in kinds if counts.get(kind, 0) < MOST_IN_A_LIFE.get(kind, 4)]
            who = draw.choice(["process", "group", *left, *left])
            if who in ("process", "group"):
                life.kill(who == "group")
                self._count(who)
                self.tally.resumed += 1  # taken back where the next life ends in an error
                return True
            pid = life.kill_child(who, draw)
            if pid is not None:
                lost.append(pid)
                counts[who] = counts.get(who, 0) + 1
                self._count(who)
                if self.tally.kills >= self.wanted:
                    break
            alive = life.sleep(draw.uniform(0.0, 2.0 * lived_s + 1.0))
        self._let_finish(life, lost)
        return False

    def _let_finish(self, life: Life, lost: list[int]) -> None:
        if life.sleep(LIMIT_S):
            raise Failure(f"hangs: {life.messages()[-600:]}")
        if life.code in (0, FINISHED):
            self.tally.went_on += len(lost)
            said = life.messages()
            self.tally.named += sum(bool(re.search(rf"\bpid {pid}\b", said)) for pid in lost)

    def _count(self, who: str) -> None:
        self.tally.kills += 1
        self.tally.by_whom[who] = self.tally.by_whom.get(who, 0) + 1

    def _verify(self, runs: Path) -> None:
        for dataset in runs.rglob("dataset"):
            life = Life(["dataset", "verify", str(dataset)], self.root / "verify.log", runs)
            if life.sleep(LIMIT_S) or life.code:
                raise Failure(f"dataset verify: exit code {life.code}: {life.messages()[-400:]}")


def remains(runs: Path, row: Row) -> dict[str, Any]:
    """Return all that must not depend on interruptions; raise where it is not sound."""
    if row.kind == "simgan":
        rows = {str(p.relative_to(runs)): _episodes(p) for p in sorted(runs.rglob("eval/*.jsonl"))}
        return {"rows": rows}
    complaints: list[str] = []
    run = next(runs.glob("*/*/0"))
    point = next(checkpoint.newest_first(run / "checkpoints", complaints.append))
    metrics = (run / "metrics.jsonl").read_text()
    steps = [json.loads(line)["step"] for line in metrics.splitlines() if '"updates"' in line]
    if complaints or steps != sorted(set(steps)):
        raise Failure(f"not sound: {complaints} {steps if steps != sorted(set(steps)) else ''}")
    return {"state": point.state, "metrics": metrics}


def _episodes(path: Path) -> list[dict[str, Any]]:
    """Return the rows of an evaluation without the paths in its header, and without checksums, which cover them."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in ("crc", "env")} for row in rows]


def difference(found: Any, whole: Any, path: str = "") -> str:
    """Return the first place in which two results differ."""
    if isinstance(found, dict) and isinstance(whole, dict):
        if found.keys() != whole.keys():
            return f"{path}: keys"
        return next((difference(v, whole[k], f"{path}.{k}") for k, v in found.items() if not equal(v, whole[k])), "")
    if isinstance(found, str):
        pairs = zip(found.splitlines(), whole.splitlines(), strict=False)
        return path + next((f": {a[:300]} != {b[:300]}" for a, b in pairs if a != b), ": length")
    return f"{path}: {str(found)[:100]} != {str(whole)[:100]}"


SOURCES = {
    "demos": [
        "record play/place --expert --task place --episodes 6 --noise 0.1 --out {out}/place",
        "record play/reach --expert --task reach --episodes 6 --noise 0.1 --out {out}/reach",
        "record play/place --expert --task grasp --episodes 6 --noise 0.1 --out {out}/grasp",
    ],
    "data": ["record gym/Pendulum-v1 --random --episodes 6 --env.max-episode-steps 40 --out {out}"],
    "target": ["record tiny/weak-cart --random --episodes 8 --out {out}"],
    "start": [
        "train --algo ppo --env tiny/cart --env.num-envs 2 --env.max-episode-steps 20 --env.eval-max-episode-steps 20"
        " --algo.hidden 16 --algo.rollout-steps 16 --algo.minibatches 2 --algo.processes 1 --steps 64 --eval.episodes 1"
        " --trackers --experiment start --runs-dir {out}"
    ],
}


def prepare(rows: list[Row], root: Path) -> dict[str, str]:
    """Make what these algorithms learn from."""
    places = {name: str(root / name) for name in SOURCES}
    for name, commands in SOURCES.items():
        if any(f"{{{name}}}" in KINDS.get(row.kind, "") for row in rows):
            for words in commands:
                must(root, words.format(out=places[name]))
    return places | {"start": str(root / "start" / "start" / "cart" / "0")}


def must(root: Path, words: str) -> None:
    """Run a verb that has to work."""
    life = Life(words.split(), root / "prepare.log", root)
    if life.sleep(LIMIT_S) or life.code:
        sys.exit(f"roboloop {words}: exit code {life.code}\n{life.messages()[-2000:]}")


class Beside:
    """What stands by itself for some configurations: rigs, and a Ray cluster; all are ours to end."""

    def __init__(self, rows: list[Row]) -> None:
        self.places: dict[str, str] = {}
        self.rigs: dict[Row, str] = {}
        """Each robot has a configuration for itself."""
        self._processes: list[subprocess.Popen[str]] = []
        for row in rows:
            if row.kind == "panda":
                self._start(["-m", "roboloop.cli", "rig", "panda/reach", "--port", "0"])
                self.rigs[row] = self._first_line(r"127\.0\.0\.1:\d+")
        if any(row.sampler == "ray" for row in rows):
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # of the cluster, and of all lives
            self._start(["-c", CLUSTER])
            self.places["ray"] = self._first_line(r"ray://\S+")

    def _start(self, words: list[str]) -> None:
        pipe, command = subprocess.PIPE, [sys.executable, "-P", *words]
        quiet = {"stdin": pipe, "stdout": pipe, "stderr": subprocess.DEVNULL}
        self._processes.append(subprocess.Popen(command, text=True, **quiet))  # type: ignore[call-overload]

    def _first_line(self, pattern: str) -> str:
        process = self._processes[-1]
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(pattern, line):
                return found[0]
        sys.exit(f"random-kills: {process.args!r} did not start")

    def close(self) -> None:
        """End them."""
        for process in self._processes:
            process.terminate()
            process.wait(timeout=60)


CLUSTER = """
import os, signal, sys, threading
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": "0"}
from roboloop.core.cluster import connect
ray, _ = connect("")
print("ray://" + ray.get_runtime_context().gcs_address, flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
threading.Thread(target=lambda: (sys.stdin.read(), os.kill(os.getpid(), signal.SIGTERM)), daemon=True).start()
signal.pause()
"""


def warm(rows: list[Row]) -> None:
    """Load all that lives need, so that each begins with it."""
    import torch

    torch.set_num_threads(1)
    prefer_egl()  # before DM Control chooses for itself
    more = ["dm_control.suite"] if any(row.kind == "pixel sac" for row in rows) else []
    for module in (*LOADED, *more):
        importlib.import_module(module)


def show(tallies: list[Tally]) -> None:
    """Print one line for each configuration, and one for all."""
    rows = []
    for t in tallies:
        whom = " ".join(f"{who} {count}" for who, count in sorted(t.by_whom.items()))
        result = "failed" if t.wrong else f"{t.compared} of {t.runs} compared" if t.compared else f"{t.runs} sound"
        mains = sum(t.by_whom.get(who, 0) for who in ("process", "group"))
        named = f"{t.named} of {t.went_on}" if t.went_on else ""
        rows.append([t.row, str(t.kills), f"{t.resumed} of {mains}", whom, named, result, f"{t.seconds:.0f}"])
    kills, seconds = sum(t.kills for t in tallies), sum(t.seconds for t in tallies)
    rows.append(["all", str(kills), str(sum(t.resumed for t in tallies)), "", "", "", f"{seconds:.0f}"])
    print_table(["configuration", "kills", "resumed", "who", "named", "runs equal or sound", "s"], rows)
    print("named: children killed in lives that ended by themselves, and how many of them a line names")


def shares(rows: list[Row], kills: int) -> list[int]:
    """Return how often each configuration is killed: slow ones less."""
    weights = [SLOW if row.sampler in ("ray", "real time", "real time inline") or row.kind == "simgan" else 1.0
               for row in rows]  # fmt: skip
    ends = [round(kills * end / sum(weights)) for end in accumulate(weights, initial=0.0)]
    return [b - a for a, b in pairwise(ends)]


def side_by_side(campaigns: list[Campaign], jobs: int, root: Path) -> list[Tally]:
    """Run all campaigns, some at once; return their tallies in order."""
    pids, parent = [], os.getpid()
    for job in range(jobs):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                die_with(parent)
                for number in range(job, len(campaigns), jobs):
                    tally = campaigns[number].run()
                    (root / f"{number}.json").write_text(json.dumps(asdict(tally)))
                    print(f"{tally.row}: {tally.kills} kills, {tally.runs} runs, {tally.seconds:.0f} s")
                    print(*(f"FAILED {tally.row}: {why}\n" for why in tally.wrong), sep="", end="", flush=True)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        pids.append(pid)
    codes = [os.waitpid(pid, 0)[1] for pid in pids]
    if any(codes):
        raise SystemExit("random-kills: a campaign ended by itself: see above")
    return [Tally(**json.loads((root / f"{number}.json").read_text())) for number in range(len(campaigns))]


def bench(argv: list[str] | None = None) -> int:
    """Run the campaign."""
    options = argparse.ArgumentParser(prog="roboloop bench random-kills", description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    options.add_argument("--kills", type=int, default=1000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--jobs", type=int, default=2, help="configurations that are killed at once")
    options.add_argument("--only", default="", help="configurations whose line matches this regular expression")
    known = options.parse_args(argv)
    rows = [row for row in ROWS if re.search(known.only, str(row)) and possible(row)]
    left_out = [str(row) for row in ROWS if re.search(known.only, str(row)) and not possible(row)]
    if left_out:
        print(f"left out, not installed: {'; '.join(left_out)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what stands beside is ended too
    with tempfile.TemporaryDirectory(prefix="random-kills-") as name:
        root = Path(name)
        warm(rows)
        beside = Beside(rows)
        try:
            places = prepare(rows, root) | beside.places
            campaigns = []
            for number, (row, kills) in enumerate(zip(rows, shares(rows, known.kills), strict=True)):
                seed = int.from_bytes(hashlib.sha256(f"{known.seed} {row}".encode()).digest()[:4], "little")
                own = places | {"rig": beside.rigs.get(row, "")}
                campaigns.append(Campaign(row, root / str(number), own, kills, random.Random(seed)))
            tallies = side_by_side(campaigns, known.jobs, root)
        finally:
            beside.close()
    show(tallies)
    return 1 if any(tally.wrong for tally in tallies) else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(bench())
