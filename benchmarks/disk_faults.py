"""A disk that is full, fails or is read-only at any call of any verb; needs gcc, for a library in front of libc.

Each verb is run once to count its calls that write below its folder, and those that read. Then it is run anew for each
call, which fails once, or with all later ones, with ENOSPC, EIO or EROFS, or writes only half of what it was given; one
that reads fails with EIO. The verb must end with exit code 5 and one line on stderr, or with 0, its whole result and a
line that says what was left out. After that, with the fault gone, it is given again and must end as the undisturbed one
did; what was there before is never changed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _ask_page import page
from _fault_shim import VARIABLE, Fault, Shim, run_again_with_shim
from corruption import ENV, LOADED, OF, TINY, Field, main

LIMIT_S = 120.0
FAULTS = {
    "ENOSPC": Fault(errno.ENOSPC), "EIO": Fault(errno.EIO), "EROFS": Fault(errno.EROFS),
    "short": Fault(is_brief=True), "EIO, reading": Fault(errno.EIO, reads=True),
}  # fmt: skip
SAID = re.compile(
    r"disk (full|failed|quota|is read-only)|No space left|Input/output error|Read-only file system|recording stopped",
    re.I,
)
MIRRORED = TINY.replace("--trackers", "--trackers tensorboard")
RUN = "runs/{name}/Pendulum-v1/0"


@dataclass(frozen=True)
class Verb:
    """A command, what is there before it, how to go on after a fault, and what is left in the end."""

    words: str
    again: tuple[str, ...] = ()
    """Commands after a fault; the same one where there are none."""
    run: str = ""
    """A sound run that is there before, under ``runs/``; nothing may change it, unless the command writes into it."""
    result: str = ""
    """What is compared with the undisturbed result: a kind of ``facts``, and a path."""
    accepted: tuple[int, ...] = (5,)
    """Exit codes of a fault."""
    done: tuple[int, ...] = (0,)
    """Exit codes of going on; 2 or 3 where all may be there already."""
    shows: bool = False
    """It shows many runs, and says of a part that it cannot read that it is left out."""


def _train(name: str, source: str) -> Verb:
    words = f"train {OF[name]} {source} {MIRRORED} --experiment x --steps 80 --runs-dir runs"
    return Verb(words, (f"{words} --resume",), result="run runs/x/Pendulum-v1/0 80")


def verbs(sound: Path) -> dict[str, Verb]:
    """Return all verbs that write, and those that should not."""
    run, data = RUN.format(name="sac"), f"{RUN.format(name='sac')}/dataset"
    fork = f"train --fork {run} --at 80 --steps 100 --experiment x --runs-dir out"
    sweep = f"sweep --config {sound}/config.yaml --seeds 0 --name x --runs-dir out --slots 1 --steps 60 --retries 0"
    return {
        "train sac": _train("sac", ENV),
        "train ppo": _train("ppo", ENV),
        "train bc": _train("bc", f"--dataset {sound}/sac/Pendulum-v1/0/dataset"),
        "resume": Verb(f"train --resume {run} --steps 100", run="sac", result=f"run {run} 100", done=(0, 3)),
        "fork": Verb(fork, (fork, "train --resume out/x/Pendulum-v1/0"), "sac", "run out/x/Pendulum-v1/0 100",
                     done=(0, 3)),
        "eval": Verb(f"eval {run} --episodes 3", run="sac", result=f"eval {run}/eval"),
        "eval video": Verb(f"eval {run} --episodes 1 --video", run="sac",
                           result=f"there {run}/videos/evaluation.mp4"),
        "record": Verb(f"record {run} --episodes 3 --out out/data", run="sac", result="count out/data", done=(0, 2)),
        "export onnx": Verb(f"export {run} --onnx out/policy.onnx", run="sac", result="file out/policy.onnx",
                            done=(0, 2)),
        "export frozen": Verb("export runs/ppo --frozen out/p.safetensors", run="ppo", result="file out/p.safetensors",
                              done=(0, 2)),
        "report": Verb("report runs --out out/r.html --save out/r.json", run="sac", result="report out/r.json",
                       shows=True),
        "plot": Verb("plot runs --out out/curve.png", run="sac", result="file out/curve.png"),
        "verify": Verb(f"dataset verify {data}", run="sac", result=f"dataset {data}"),
        "repair": Verb(f"dataset repair {data}", run="torn", result=f"dataset {data}"),
        "merge": Verb(f"dataset merge out/d {data} {data}", run="sac", result="dataset out/d", done=(0, 2)),
        "filter": Verb(f"dataset filter {data} out/d --every 2", run="sac", result="dataset out/d", done=(0, 2)),
        "export data": Verb(f"dataset export {data} out/d.npz --format npz", run="sac", result="there out/d.npz",
                            done=(0, 2)),
        "import data": Verb(f"dataset import {sound}/d.npz out/d --format npz", result="dataset out/d", done=(0, 2)),
        "sweep": Verb(sweep, result="run out/x/base/Pendulum-v1/0 60", accepted=(5, 10)),
        "runs": Verb("runs runs", run="sac"),
        "stop": Verb(f"stop {run}", run="sac"),
        "dash": Verb("dash", run="sac"),
    }  # fmt: skip


def facts(wanted: str, case: Path) -> Any:
    """Return what a verb left."""
    kind, _, rest = wanted.partition(" ")
    path, *more = rest.split()
    at = case / path
    if kind == "run":
        last = at / "checkpoints" / f"step-{int(more[0]):012}" / "state.safetensors"
        status = json.loads((at / "status.json").read_text())
        rows = (at / "metrics.jsonl").read_text()
        return hashlib.sha256(last.read_bytes()).hexdigest(), rows, status["state"], status["step"]
    if kind == "eval":
        files = sorted(at.glob("test-*.jsonl"))
        rows_of = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return sorted((row["episode"], row["return"]) for row in rows_of if "return" in row), len(files)
    if kind in ("dataset", "count"):
        from roboloop.data.dataset import Dataset

        data = Dataset.open(at)
        if kind == "count":  # a recording that goes on draws other episodes for those that are missing
            return len(data)
        return [(data.entry(row).facts.length, data.entry(row).facts.episode_return) for row in range(len(data))]
    if kind == "report":
        return [(run["experiment"], run.get("curves")) for run in json.loads(at.read_text())["runs"]]
    return at.stat().st_size if kind == "there" else hashlib.sha256(at.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int | None
    out: str
    err: str


class Ground:
    """The folder of all cases."""

    def __init__(self, root: Path, shim: Shim) -> None:
        self.root, self.shim, self.field = root, shim, Field(root)
        self.case = root / "case"

    def grow(self) -> None:
        """Make the sound runs, a config of a sweep, and data of another format."""
        self.field.grow()
        sound = self.field.sound
        shutil.copy(self.field.path("sac") / "config.yaml", sound / "config.yaml")
        self.field.must(f"dataset export {self.field.path('sac') / 'dataset'} {sound / 'd.npz'} --format npz")

    def clear(self, verb: Verb) -> str:
        """Lay the field out for a verb; return a digest of what must stay as it is."""
        shutil.rmtree(self.case, ignore_errors=True)
        (self.case / "out").mkdir(parents=True)
        if verb.run:
            name = "ppo" if verb.run == "ppo" else "sac"
            run = self.case / RUN.format(name=name)
            shutil.copytree(self.field.path(name), run)
            if verb.run == "torn":
                with (run / "dataset" / "index.log").open("r+b") as file:
                    file.truncate(file.seek(0, os.SEEK_END) - 5)
        return self.held(verb)

    def held(self, verb: Verb) -> str:
        """Return a digest of what was there before and nothing may change: committed checkpoints, data, configs."""
        digest, run = hashlib.sha256(), self.case / RUN.format(name="ppo" if verb.run == "ppo" else "sac")
        saved, name = run / "checkpoints", "step-000000000080"
        inner = sorted(saved.glob(f"unused-*-{name}"))[:1] or [
            saved / name
        ]  # one that a resume could not read is there
        if not verb.words.startswith("train --resume"):
            inner += [run / "metrics.jsonl", run / "config.yaml", run / "recorded"]
            inner += [] if verb.run == "torn" else [run / "dataset"]
        for top, path in sorted((each, file) for each in inner for file in (each, *each.rglob("*"))):
            if path.is_file() and path.name != "lock":
                digest.update(str(path.relative_to(top)).encode() + path.read_bytes())
        return digest.hexdigest()

    def run(self, words: str) -> Outcome:
        """Run one command in a forked process, inside the folder of the case."""
        out, err = self.root / "out.txt", self.root / "err.txt"
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setsid()
                os.chdir(self.case)
                for fd, path in ((1, out), (2, err)):
                    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
                code = asyncio.run(page(self.case / "runs")) and 0 if words == "dash" else main(words.split())
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 1
            except BaseException:
                traceback.print_exc()
            finally:
                with contextlib.suppress(Exception):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)
        code = self._wait(pid)
        return Outcome(code, out.read_text(errors="replace"), err.read_text(errors="replace"))

    def _wait(self, pid: int) -> int | None:
        deadline_s, code = time.monotonic() + LIMIT_S, None
        while code is None and time.monotonic() < deadline_s:
            done, status = os.waitpid(pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if done else None
            time.sleep(0 if done else 0.002)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        if code is None:
            os.waitpid(pid, 0)
        return code

    def undisturbed(self, name: str, verb: Verb, reads: bool) -> tuple[int, Any]:
        """Run a verb without a fault; return how many calls it makes, and what it leaves."""
        self.clear(verb)
        self.shim.arm(self.case, fault=Fault(reads=reads))
        outcome = self.run(verb.words)
        calls, *_ = self.shim.disarm()
        if outcome.code != 0:
            sys.exit(f"{name}: exit {outcome.code} without a fault: {outcome.out}{outcome.err}")
        return calls, self.found(verb)

    def attempt(self, verb: Verb, clean: Any, call: int, fault: Fault, lasting: bool) -> tuple[str, str, str]:
        """Run a verb with a fault and go on after it; return how it ended, what is wrong, and what was said."""
        before = self.clear(verb)
        self.shim.arm(self.case, call, fault, lasting)
        outcome = self.run(verb.words)
        _, fired, what = self.shim.disarm()
        said = f"{what}: exit {outcome.code}: {' '.join((outcome.err or outcome.out[-300:]).split())[-900:]}"
        said_by_jobs = "".join(log.read_text(errors="replace") for log in self.case.glob("out/**/output.log"))
        # what only cleans up, or only says something, can be done without and has no word
        is_quiet = not fired or what in ("rmdir", "unlink", "unlinkat", "short") or verb.words.startswith("sweep")
        outcome = dataclasses.replace(outcome, out=outcome.out + said_by_jobs)
        is_whole = self.found(verb) == clean
        if fault.reads:  # a run goes on without what it does not need; a report leaves out what it cannot read
            is_quiet, is_whole = True, is_whole or (verb.shows and bool(SAID.search(outcome.out + outcome.err)))
        wrong = judge(outcome, verb, is_quiet, is_whole)
        if verb.shows and outcome.code in (2, 5) and fault.reads and SAID.search(outcome.err):
            wrong = ""  # a line for each part that is left out; of one run nothing may be left
        if not wrong and self.held(verb) != before:
            wrong = "what was there is changed"
        if not wrong and outcome.code != 0:
            said, wrong = self.go_on(verb, clean, said)
        way = "not reached" if not fired else f"exit {outcome.code}"
        return way, wrong, said

    def go_on(self, verb: Verb, clean: Any, said: str) -> tuple[str, str]:
        """Give the command again with the fault gone."""
        for words in verb.again or (verb.words,):
            outcome = self.run(words)
            said += f" || {' '.join((outcome.err or outcome.out[-300:]).split())[-600:]}"
            if outcome.code not in verb.done:
                return said, f"does not go on: exit {outcome.code}"
            if outcome.code == 0:
                break
        if self.found(verb) != clean:
            return said, "another result after it went on"
        return said, ""

    def found(self, verb: Verb) -> Any:
        """Return what a verb left; the name of an error where it left nothing that can be read."""
        try:
            return facts(verb.result, self.case) if verb.result else None
        except Exception as error:
            return f"{type(error).__name__} {error}"


def judge(outcome: Outcome, verb: Verb, is_quiet: bool, is_whole: bool) -> str:
    """Return what is wrong with how a verb ended under a fault; nothing where it is right."""
    both = outcome.out + outcome.err
    if outcome.code is None:
        return "hang"
    if "Traceback (most recent call last)" in both:
        return "traceback"
    if outcome.code == 0:
        if not is_whole:
            return "exit 0 with another result"
        return "" if is_quiet or SAID.search(both) else "exit 0 without a word"
    if outcome.code not in verb.accepted:
        return f"exit {outcome.code}"
    lines = outcome.err.splitlines()
    return "" if len(lines) == 1 or (outcome.code == 10 and not lines) else f"{len(lines)} lines on stderr"


def warm(ground: Ground) -> None:
    """Load all that verbs need, and make the sound runs."""
    import importlib

    import torch

    torch.set_num_threads(1)
    os.environ.setdefault("XDG_RUNTIME_DIR", str(ground.root))  # or the driver of pictures says a line of its own
    for module in (*LOADED, "tensorboard.summary.writer.event_file_writer"):
        importlib.import_module(module)
    ground.grow()


def table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def campaign(ground: Ground, known: argparse.Namespace) -> int:
    """Run all cases; return how many failed."""
    rows = [("verb", "fault", "calls", "cases", "exit 5", "exit 0", "not reached", "failed")]
    failed = 0
    for name, verb in verbs(ground.field.sound).items():
        if not re.search(known.only, name):
            continue
        for fault, kind in FAULTS.items():
            if known.fault and fault not in known.fault:
                continue
            calls, clean = ground.undisturbed(name, verb, kind.reads)
            done: Counter[str] = Counter()
            for lasting in (False, True) if not kind.is_brief else (False,):
                for call in range(1 + known.first % known.every, calls + 1, known.every):
                    way, wrong, said = ground.attempt(verb, clean, call, kind, lasting)
                    done["cases"] += 1
                    done[way] += 1
                    if wrong:
                        done["failed"] += 1
                        place = f"{fault} {'from' if lasting else 'at'} call {call}"
                        print(f"{wrong}: {name}, {place} of {calls}: {said}", flush=True)
            others = sum(n for way, n in done.items() if way in ("exit 5", "exit 10"))
            counts = (calls, done["cases"], others, done["exit 0"], done["not reached"], done["failed"])
            rows.append((name, fault, *map(str, counts)))
            print("...", " ".join(rows[-1]), flush=True)
            failed += done["failed"]
    print(table(rows))
    return failed


def bench(argv: list[str] | None = None) -> int:
    """Run the campaign."""
    options = argparse.ArgumentParser(prog="roboloop bench disk-faults", description=__doc__)
    options.add_argument("--every", type=int, default=1, metavar="K", help="only each K-th call")
    options.add_argument("--first", type=int, default=0, metavar="N", help="with --every: where to begin")
    options.add_argument("--only", default="", help="verbs that match this regular expression")
    options.add_argument("--fault", choices=FAULTS, action="append", help="only this fault")
    known = options.parse_args(argv)
    shm, start_s = Path("/dev/shm"), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="disk-", dir=shm if os.access(shm, os.W_OK) else None) as folder:
        if VARIABLE not in os.environ:
            run_again_with_shim(Path(folder))
        os.chdir(folder)
        ground = Ground(Path(folder), Shim())
        warm(ground)
        failed = campaign(ground, known)
    print(f"{failed} cases failed, {time.monotonic() - start_s:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(bench())
