"""Damage of every kind to every file of a run, and what each verb that reads it makes of that.

Small runs are made once. Each case copies one, damages one file or folder of it and runs one verb in a forked process
with limits of time and memory. A case fails by a traceback, an exit code that is not documented, a hang, a change of
any file that is not the run's, and by silence: a resume or a fork whose last checkpoint or metrics are others than
without the damage, an evaluation with another score, a report with other numbers, a ``dataset verify`` that is content.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _ask_page import page
from _damage import BY_CHANCE, KINDS, damage, fits

CODES = {0, 2, 3, 4, 5, 6, 7, 8, 9, 10}
STEPS, MORE = 80, 100
SEVERAL = ("sac", "other", "ppo", "bc")
QUICK_S, LONG_S = 30.0, 120.0
MEMORY_BYTES, FILE_BYTES = 3 << 30, 1 << 30
DATA = re.compile(r"(dataset|recorded)/(index\.log|shards/)")
ENV = "--env.id gym/Pendulum-v1 --env.max-episode-steps 20 --env.eval-max-episode-steps 20"
TINY = (
    "--algo.hidden 8 8 --trackers --log-every-steps 20 --checkpoint.every-steps 40 --checkpoint.every-s 0 "
    "--eval.every-steps 40 --eval.episodes 2"
)
OF = {
    "sac": "--algo sac --warmup-steps 40 --algo.batch-size 8 --algo.processes 1 --replay.capacity 1000 "
    "--record.keep all --record.min-free-mb 0",
    "other": "--algo sac --warmup-steps 40 --algo.batch-size 8 --algo.processes 1 --replay.capacity 1000 --seed 1 "
    "--record.keep all --record.min-free-mb 0",
    "ppo": "--algo ppo --algo.rollout-steps 20 --algo.epochs 1 --algo.minibatches 1",
    "bc": "--algo bc --algo.batch-size 8",
}
LOADED = (
    "roboloop.dash.server", "roboloop.launch.commands", "roboloop.launch.watch", "roboloop.run.build",
    "roboloop.run.datasets", "roboloop.run.export", "roboloop.run.posthoc", "roboloop.run.record",
    "roboloop.run.report", "roboloop.run.runner", "roboloop.track.plots", "matplotlib.backends.backend_agg",
    "matplotlib.figure", "gymnasium.envs.classic_control.pendulum",
)  # fmt: skip
READ_BY = (
    (r"config\.yaml", "resume fork eval record export runs plot report dash stop"),
    (r"status\.json", "resume fork eval runs plot report dash stop"),
    (r"meta\.json", "resume report dash"),
    (r"record\.json", "resume report dash"),
    (r"lock", "resume eval runs report dash stop"),
    (r"metrics\.jsonl", "resume fork plot report dash tail"),
    (r"timing\.jsonl", "resume fork plot report dash"),
    (r"eval(/.*)?", "eval plot report dash resume"),
    (r"checkpoints(/.*)?", "resume fork eval record export"),
    (r"journal(/.*)?", "resume fork"),
    (r"dataset(/.*)?", "resume verify info report dash"),
    (r"recorded(/.*)?", "record verify info report dash"),
    (r"videos(/.*)?|plots(/.*)?", "resume eval report dash"),
    (r"launch(/.*)?", "runs stop tail dash"),
)


@dataclass(frozen=True)
class Case:
    """One file or folder, one kind of damage, one verb."""

    run: str
    inner: str
    kind: str
    verb: str
    seed: int

    def __str__(self) -> str:
        return f"{self.run}/{self.inner} {self.kind} -> {self.verb} (seed {self.seed})"


@dataclass(frozen=True)
class Outcome:
    """How a verb ended."""

    code: int | None
    """None: it was killed after its time."""
    said: str
    wrong: str = ""


class Field:
    """The folder of all cases: sound runs, what must not be touched, and a place for one damaged copy."""

    def __init__(self, root: Path) -> None:
        self.root, self.sound, self.victim, self.case = root, root / "sound", root / "victim", root / "case"

    def path(self, run: str) -> Path:
        """Return a sound run."""
        return self.sound / run / "Pendulum-v1" / ("1" if run == "other" else "0")

    def grow(self) -> None:
        """Make the sound runs, with all that a run directory may hold."""
        for name in SEVERAL:
            source = f"--dataset {self.path('sac') / 'dataset'}" if name == "bc" else ENV
            words = f"{OF[name]} {source} {TINY}"
            self.must(f"train {words} --experiment {name} --steps {STEPS} --runs-dir {self.sound}")
            if name != "bc":
                self.must(f"eval {self.path(name)} --episodes 2 --video")
            if name in ("sac", "other"):
                self.must(f"record {self.path(name)} --episodes 2")
            launch = self.path(name) / "launch"
            launch.mkdir()
            (launch / "facts.json").write_text(json.dumps({"slot": 0, "pid": None, "exit_code": 0, "ended": "done"}))
            (launch / "output.log").write_text("$ roboloop train\nit said something\n")
            (launch / "lock").touch()

    def must(self, words: str) -> None:
        """Run a verb that has to work."""
        done = forked(self.root, lambda: main(words.split()), LONG_S)
        if done.code:
            sys.exit(f"roboloop {words}: exit code {done.code}\n{done.said}")

    @contextlib.contextmanager
    def copy(self, run: str) -> Iterator[Path]:
        """Yield a copy of a run; a sound one is beside it, under another experiment."""
        shutil.rmtree(self.case, ignore_errors=True)
        shutil.rmtree(self.victim, ignore_errors=True)
        (self.case / "out").mkdir(parents=True)
        self.victim.mkdir()
        copy = self.case / "runs" / self.path(run).relative_to(self.sound)
        shutil.copytree(self.path(run), copy)
        beside = self.case / "runs" / "beside" / "Pendulum-v1" / "0"
        beside.mkdir(parents=True)
        for name in ("config.yaml", "status.json", "meta.json", "metrics.jsonl", "timing.jsonl"):
            shutil.copy(self.path("other") / name, beside / name)
        yield copy

    def untouched(self) -> str:
        """Return a digest of all that no verb may change."""
        digest = hashlib.sha256()
        beside = self.case / "runs" / "beside"
        for path in sorted(path for folder in (self.sound, self.victim, beside) for path in folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                digest.update(f"{path}{path.stat().st_mtime_ns}".encode() + path.read_bytes())
        return digest.hexdigest()


def main(words: list[str]) -> int:
    """Run roboloop as a command would, in this process."""
    from roboloop import cli

    return cli.main(words)


def forked(root: Path, work: Callable[[], int], limit_s: float) -> Outcome:
    """Do something in a forked process with limits; what it said is returned with its exit code."""
    log = root / "said.txt"
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for fd in (1, 2):
                os.dup2(said, fd)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            taken = int(re.search(r"VmSize:\s*(\d+)", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]
            resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_BYTES,) * 2)
            resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES,) * 2)
            code = work()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    deadline_s, code = time.monotonic() + limit_s, None
    while time.monotonic() < deadline_s:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            break
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if code is None:
        os.waitpid(pid, 0)
    return Outcome(code, log.read_text(errors="replace"))


def words_of(verb: str, run: Path, case: Path) -> list[str]:
    """Return what a user would type."""
    out, top = case / "out", run.parents[2]
    inner = "recorded" if (run / "recorded").exists() and verb.startswith("recorded") else "dataset"
    lines = {
        "resume": f"train --resume {run} --steps {MORE}",
        "fork": f"train --fork {run} --at {STEPS} --steps {MORE} --experiment forked --runs-dir {out}",
        "eval": f"eval {run} --episodes 2",
        "record": f"record {run} --episodes 3",
        "export": f"export {run} --onnx {out / 'policy.onnx'}",
        "runs": f"runs {top}",
        "plot": f"plot {top} --out {out / 'curve.png'}",
        "report": f"report {top} --out {out / 'report.html'} --save {out / 'report.json'}",
        "stop": f"stop {run}",
        "tail": f"tail {run}",
        "verify": f"dataset verify {run / inner}",
        "info": f"dataset info {run / inner}",
    }
    return lines[verb].split()


def act(case: Case, run: Path, field: Field) -> Outcome:
    """Run the verb of a case on its copy."""
    limit_s = LONG_S if case.verb in ("resume", "fork", "eval", "record", "export") else QUICK_S
    if case.verb == "dash":
        return forked(field.root, lambda: asyncio.run(page(run.parents[2])), limit_s)
    words = words_of(case.verb, run, field.case)
    if case.verb in ("verify", "info") and case.inner.startswith("recorded"):
        words[-1] = str(run / "recorded")
    return forked(field.root, lambda: main(words), limit_s)


def facts(case: Case, run: Path, field: Field) -> Any:
    """Return what must be the same with and without damage, if the verb says that all went well."""
    if case.verb in ("resume", "fork"):
        made = run if case.verb == "resume" else next((field.case / "out" / "forked").glob("*/*"), run)
        last = made / "checkpoints" / f"step-{MORE:012}" / "state.safetensors"
        tensors = hashlib.sha256(last.read_bytes()).hexdigest() if last.is_file() else "none"
        return tensors, (made / "metrics.jsonl").read_text(errors="replace")
    if case.verb == "eval":
        files = sorted((run / "eval").glob(f"*step-{STEPS:012}*.jsonl"))
        rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return sorted((row["episode"], row["return"], row["length"]) for row in rows if "return" in row)
    if case.verb == "report":
        runs = json.loads((field.case / "out" / "report.json").read_text())["runs"]
        return {r["experiment"]: (r.get("curves"), r.get("evaluations")) for r in runs if r["experiment"] == case.run}
    return None


def judge(case: Case, outcome: Outcome, expected: Any, run: Path, field: Field) -> str:
    """Return what is wrong with an outcome; nothing where it is right."""
    if outcome.code is None:
        return "hang"
    if "Traceback (most recent call last)" in outcome.said:
        return "traceback"
    if outcome.code not in CODES:
        return f"exit code {outcome.code}"
    if case.verb in ("runs", "report", "dash") and outcome.code != 0:
        return "hides others"
    if case.verb == "runs" and "beside" not in outcome.said:
        return "hides others"
    if outcome.code != 0:
        return "" if outcome.said.strip() else "no word"
    if case.verb == "verify":
        # what was appended and never committed is told, and no episode is other for it
        return "silent" if DATA.match(case.inner) and "never committed" not in outcome.said else ""
    try:
        found = facts(case, run, field)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"silent ({type(error).__name__})"
    if found == expected or _is_said(case, outcome, found):
        return ""
    return "silent"


def _is_said(case: Case, outcome: Outcome, found: Any) -> bool:
    """Say whether a result is another one, and the verb says why."""
    if case.verb == "eval":  # an older checkpoint, which is named, and which the damaged one made necessary
        return "checkpoints" in case.inner and (not found or "is gone: taking the last" in outcome.said)
    if case.verb == "report":
        _, evaluations = found.get(case.run, (None, None))
        unfinished = any(each["whole"]["episodes"] < each["planned"] for each in evaluations or [])
        # nobody can know of a folder of evaluations that there was one; one that is not whole is shown so
        return "left out" in outcome.said or unfinished or not found or (case.inner, case.kind) == ("eval", "missing")
    return False


def cases(field: Field, number: int, seed: int) -> list[Case]:
    """Return that many cases: each file, kind and verb before any again; then other bytes of the same."""
    rng = random.Random(seed)
    every = []
    for run in ("sac", "ppo", "bc"):
        path = field.path(run)
        for inner in sorted(str(each.relative_to(path)) for each in path.rglob("*")):
            verbs = next((verbs for pattern, verbs in READ_BY if re.fullmatch(pattern, inner)), "")
            for kind in KINDS:
                if fits(kind, path / inner):
                    times = 3 if kind in BY_CHANCE else 1
                    every += [(run, inner, kind, verb) for verb in verbs.split() for _ in range(times)]
    rng.shuffle(every)
    chosen: list[Case] = []
    while len(chosen) < number:
        chosen += [Case(*each, rng.randrange(1 << 30)) for each in every[: number - len(chosen)]]
    return chosen


def warm(field: Field) -> dict[tuple[str, str], Any]:
    """Load all that verbs need, and find what they say of sound runs."""
    import torch

    torch.set_num_threads(1)
    for module in LOADED:
        importlib.import_module(module)
    field.grow()
    expected = {}
    for run in ("sac", "ppo", "bc"):
        for verb in dict.fromkeys(" ".join(verbs for _, verbs in READ_BY).split()):
            case = Case(run, "", "none", verb, 0)
            if verb in ("verify", "info") and run != "sac":
                continue
            with field.copy(run) as copy:
                outcome = act(case, copy, field)
                if outcome.code:
                    print(f"left out: {case}: a sound run gives exit code {outcome.code}: {outcome.said.strip()}")
                else:
                    expected[run, verb] = facts(case, copy, field)
    return expected


def show(done: Counter[tuple[str, str]]) -> str:
    """Return how many cases of each kind went how."""
    ways = sorted({way for _, way in done} - {""})
    rows = [("kind", "cases", *ways)]
    for kind in [*KINDS, "all"]:
        of_kind = {way: sum(n for (k, w), n in done.items() if w == way and kind in (k, "all")) for way in ["", *ways]}
        rows.append((kind, str(sum(of_kind.values())), *(str(of_kind[way]) for way in ways)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def bench(argv: list[str] | None = None) -> int:
    """Run the campaign."""
    options = argparse.ArgumentParser(prog="roboloop bench corruption", description=__doc__)
    options.add_argument("--cases", type=int, default=5000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", default="", help="cases whose line matches this regular expression")
    options.add_argument("--failures", type=Path, help="write what failing cases said to this file")
    known = options.parse_args(argv)
    done: Counter[tuple[str, str]] = Counter()
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="corruption-", dir=shm if os.access(shm, os.W_OK) else None) as folder:
        field, start_s = Field(Path(folder)), time.monotonic()
        os.chdir(folder)
        expected = warm(field)
        planned = cases(field, known.cases, known.seed)
        planned = [c for c in planned if re.search(known.only, str(c)) and (c.run, c.verb) in expected]
        for number, case in enumerate(planned, start=1):
            with field.copy(case.run) as copy:
                other = field.path("other") / case.inner
                damage(copy / case.inner, case.kind, random.Random(case.seed), other, field.victim)
                before = field.untouched()
                outcome = act(case, copy, field)
                wrong = judge(case, outcome, expected.get((case.run, case.verb)), copy, field)
                wrong = "others touched" if field.untouched() != before else wrong
            done[case.kind, wrong] += 1
            if wrong:
                print(f"{wrong}: {case}: {' '.join(outcome.said.split())[-160:]}", flush=True)
                if known.failures:
                    with known.failures.open("a") as file:
                        file.write(f"### {wrong}: {case}\n{outcome.said}\n")
            elif number % 250 == 0:
                print(f"... {number} of {len(planned)} cases, {time.monotonic() - start_s:.0f} s", flush=True)
    print(show(done))
    failed = sum(n for (_, wrong), n in done.items() if wrong)
    print(f"{sum(done.values())} cases, {failed} failed, {time.monotonic() - start_s:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(bench())
