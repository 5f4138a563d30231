"""Odd input of three kinds, and what roboloop makes of it: configs, command lines, checkpoints with right digests.

Configs are those of ``--config`` and those of runs, there with the seal made right again or left wrong. A case runs one
verb in a forked process with limits of time and memory. It fails by a traceback, an exit code that is not documented, a
hang, and a change of any file that is not its own. Training that is still at work at the limit and stops cleanly when
it is asked to is no hang.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import yaml
from _mutation import mutate_checkpoint, mutate_words, mutate_yaml
from corruption import CODES, ENV, FILE_BYTES, LOADED, MEMORY_BYTES, OF, TINY, Field, Outcome, main

LIMIT_S, SHARE_TO_ASK = 20.0, 0.75
"""After this share of the limit a command is asked to stop."""
KINDS = ("config", "command line", "checkpoint")
STEPS = 60
ASKED = "Traceback (most recent call last)"
CHECKPOINT_VERBS = ("resume", "resume", "eval", "export", "record", "fork", "start", "frozen")
CONFIG_VERBS = ("resume", "resume", "eval", "export", "record", "fork", "runs", "plot", "report", "stop", "start")
OWN = {
    "train": "config resume fork at algo env sampler trust",
    "eval": "checkpoint episodes seed name video target task schedule pick expert env trust",
    "record": "episodes out expert random task schedule checkpoint seed max-attempts success-only target env",
    "export": "onnx frozen checkpoint std",
    "plot": "out metric x smooth",
    "report": "out save",
    "runs": "watch every",
    "stop": "hard",
    "tail": "lines",
    "dataset": "out top-percent",
    "sweep": "seeds max-parallel",
    "recipes": "",
    "envs": "",
    "requeue": "",
    "predict": "data env",
    "sysid": "data env",
    "simgan": "target",
}
"""Flags of each verb, or what may look like one; to train those of the config come on top."""


def limited(root: Path, work: Callable[[], int], limit_s: float = LIMIT_S) -> Outcome:
    """Do something in a forked process with limits; one that is still at work is asked to stop, then killed."""
    log, pid = root / "said.txt", os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for fd in (1, 2):
                os.dup2(said, fd)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(root / "case")
            taken = int(re.search(r"VmSize:\s*(\d+)", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]
            resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_BYTES,) * 2)
            resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES,) * 2)
            code = work()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    code = _wait(pid, SHARE_TO_ASK * limit_s)
    if code is None:
        os.kill(pid, signal.SIGTERM)
        code = _wait(pid, (1 - SHARE_TO_ASK) * limit_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if code is None:
        os.waitpid(pid, 0)
    return Outcome(code, log.read_text(errors="replace"))


def _wait(pid: int, limit_s: float) -> int | None:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def judge(outcome: Outcome) -> str:
    """Return what is wrong with an outcome; nothing where it is right."""
    if outcome.code is None or outcome.code == -signal.SIGTERM:
        return "hang"
    if ASKED in outcome.said:
        return "traceback"
    if outcome.code not in CODES:
        return f"exit code {outcome.code}"
    complaint = [line for line in outcome.said.splitlines() if line.startswith("roboloop: ")]
    if outcome.code not in (0, 4) and len(complaint) != 1:
        return "not one line"
    return ""


class Fuzz:
    """Makes cases one after another; each is told apart by its seed alone."""

    def __init__(self, field: Field) -> None:
        from roboloop.core.flags import flag_names
        from roboloop.run.config import Experiment

        self.field = field
        self.keys = flag_names(Experiment())

    def prepare(self, kind: str, seed: int) -> tuple[str, list[str]]:
        """Set the case up; return what it is and the words of its command."""
        rng = random.Random(f"{kind} {seed}")
        run = rng.choice(("sac", "sac", "ppo", "bc"))
        with self.field.copy(run) as copy:
            pass
        if kind == "command line":
            words = mutate_words(self.a_command(rng, run, copy), self.names, rng)
            return " ".join(map(repr, words))[:300], words
        if kind == "checkpoint":
            said = mutate_checkpoint(max((copy / "checkpoints").glob("step-*")), rng)
            verb = rng.choice(CHECKPOINT_VERBS)
            return f"{run} {said} -> {verb}", self.on_run(verb, copy, run)
        return self.a_config(rng, run, copy)

    def a_config(self, rng: random.Random, run: str, copy: Path) -> tuple[str, list[str]]:
        """Return a command on a mutated config: one to train with, or that of a run."""
        from roboloop.core.sealed import seal_text

        path = copy / "config.yaml"
        if rng.random() < 0.5:
            text = mutate_yaml(yaml.safe_dump(yaml.safe_load(path.read_text()), sort_keys=False).encode(), rng)
            file = self.field.case / "config.yaml"
            file.write_bytes(text)
            words = f"train --config {file} --runs-dir {self.field.case / 'out'} --experiment x --steps {STEPS}"
            return f"{run} --config {self.changed(path, text)}", words.split()
        head, text = path.read_bytes().split(b"\n", 1)
        text = mutate_yaml(text, rng)
        is_sealed = rng.random() < 0.8
        with contextlib.suppress(UnicodeDecodeError):
            path.write_bytes(seal_text(text.decode()) if is_sealed else head + b"\n" + text)
        verb = rng.choice(CONFIG_VERBS)
        return f"{run} config.yaml {self.changed(self.field.path(run) / 'config.yaml', text)} -> {verb}", self.on_run(
            verb, copy, run
        )

    def changed(self, sound: Path, text: bytes) -> str:
        """Return the first lines that a mutation changed, for the eye."""
        before = set(sound.read_text().splitlines())
        lines = [line.strip() for line in text.decode(errors="replace").splitlines() if line not in before]
        return " | ".join(lines[:3])[:120]

    def on_run(self, verb: str, run: Path, name: str) -> list[str]:
        """Return the command of a verb on a run."""
        out, top = self.field.case / "out", run.parents[2]
        return {
            "resume": f"train --resume {run} --steps 100",
            "fork": f"train --fork {run} --at 80 --steps 100 --experiment forked --runs-dir {out}",
            "eval": f"eval {run} --episodes 2",
            "record": f"record {run} --episodes 3 --out {out / 'data'}",
            "export": f"export {run} --onnx {out / 'policy.onnx'}",
            "frozen": f"export {run} --frozen {out / 'policy.safetensors'}",
            "runs": f"runs {top}",
            "plot": f"plot {top} --out {out / 'curve.png'}",
            "report": f"report {top} --out {out / 'report.html'}",
            "stop": f"stop {run}",
            "start": f"train --algo {name} {OF[name]} {self.source(name)} {TINY} --start {run} --steps 60 "
            f"--experiment started --runs-dir {out}",
        }[verb].split()

    def source(self, name: str) -> str:
        """Return what a run learns from."""
        return f"--dataset {self.field.path('sac') / 'dataset'}" if name == "bc" else ENV

    def a_command(self, rng: random.Random, name: str, run: Path) -> list[str]:
        """Return a command that works, to be changed."""
        case = self.field.case
        dataset = case / "runs" / "sac" / "Pendulum-v1" / "0" / "dataset"
        lines = [
            f"train {OF[name]} {self.source(name)} {TINY} --steps {STEPS} --experiment x --runs-dir out",
            f"train {OF[name]} {self.source(name)} {TINY} --steps {STEPS} --experiment x --runs-dir out",
            *(" ".join(self.on_run(verb, run, name)) for verb in dict.fromkeys((*CONFIG_VERBS, *CHECKPOINT_VERBS))),
            f"tail {run}", "recipes", "recipes reach", "envs", "requeue runs",
            f"dataset info {dataset}", f"dataset verify {dataset}", f"dataset repair {dataset}",
            f"dataset filter {dataset} out/d --top-percent 50", f"dataset merge out/d {dataset} {dataset}",
            f"dataset export {dataset} out/d --format npz", f"dataset import {dataset} out/d --format npz",
            "record gym/Pendulum-v1 --random --episodes 2 --out out/d --env.max-episode-steps 20",
            "eval --expert metaworld/reach-v3 --episodes 1",
            f"predict {dataset} --env gym/Pendulum-v1", f"sysid {dataset} --env gym/Pendulum-v1",
        ]  # fmt: skip
        words = rng.choice(lines).split()
        own = OWN.get(words[0], "").split()
        self.names = own + (self.keys if words[0] in ("train", "eval", "record") else [])
        self.names = self.names or ["out", "x"]
        return words

    def untouched(self) -> str:
        """Return a digest of what no case may change, and the names of all else."""
        names = sorted(str(path) for path in self.field.root.iterdir())
        return self.field.untouched() + " ".join(names)


def show(done: Counter[tuple[str, str]]) -> str:
    """Return a table of how many cases of each kind ended how."""
    ways = sorted({way for _, way in done})
    rows = [("kind", "cases", *ways)]
    for kind in KINDS:
        of_kind = [done[kind, way] for way in ways]
        if sum(of_kind):
            rows.append((kind, str(sum(of_kind)), *map(str, of_kind)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def warm(field: Field) -> None:
    """Load all that verbs need, and make the sound runs."""
    import importlib

    import torch

    torch.set_num_threads(1)
    for module in LOADED:
        importlib.import_module(module)
    field.grow()


def bench(argv: list[str] | None = None) -> int:
    """Run the campaign."""
    options = argparse.ArgumentParser(prog="roboloop bench input-fuzz", description=__doc__)
    options.add_argument("--cases", type=int, default=1000, help="of each kind")
    options.add_argument("--first", type=int, default=0, help="seed of the first case")
    options.add_argument("--kind", choices=KINDS, action="append", help="only this kind")
    options.add_argument("--limit-s", type=float, default=LIMIT_S, help="of a case; more beside other work")
    options.add_argument("--failures", type=Path, help="write what failing cases said to this file")
    known = options.parse_args(argv)
    failures = known.failures.resolve() if known.failures else None
    done: Counter[tuple[str, str]] = Counter()
    failed, start_s, shm = 0, time.monotonic(), Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=shm if os.access(shm, os.W_OK) else None) as folder:
        field = Field(Path(folder))
        os.chdir(folder)
        warm(field)
        fuzz = Fuzz(field)
        for kind in known.kind or KINDS:
            for seed in range(known.first, known.first + known.cases):
                what, words = fuzz.prepare(kind, seed)
                before = fuzz.untouched()
                began_s = time.monotonic()
                outcome = limited(field.root, lambda words=words: main(words), known.limit_s)  # type: ignore[misc]
                wrong = judge(outcome)
                wrong = wrong or ("others touched" if fuzz.untouched() != before else "")
                done[kind, wrong or f"exit {outcome.code}"] += 1
                if wrong:
                    failed += 1
                    last = " ".join(outcome.said.split())[-200:]
                    print(f"{wrong}: {kind} {seed}: {what}: {last}", flush=True)
                    if failures:
                        with failures.open("a") as file:
                            file.write(f"### {wrong}: {kind} {seed}: {what}\n{' '.join(words)!a}\n{outcome.said}\n")
                elif time.monotonic() - began_s > SHARE_TO_ASK * known.limit_s:
                    print(f"slow: {kind} {seed}: {what}", flush=True)
            print(f"... {kind}: {time.monotonic() - start_s:.0f} s", flush=True)
    print(show(done))
    print(f"{sum(done.values())} cases, {failed} failed, {time.monotonic() - start_s:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(bench())
