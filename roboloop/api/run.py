"""Runs in Python: train one, look at it, act with its policy, evaluate it, go on with it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from roboloop.api.envs import Known, env_section
from roboloop.api.keys import flags_of, nested, words_of
from roboloop.api.policy import LoadedPolicy
from roboloop.api.request import PathLike, TrainRequest
from roboloop.core.errors import ConfigError
from roboloop.core.types import Array
from roboloop.run import checkpoint as checkpoints
from roboloop.run import trust as trusted
from roboloop.run.config import Experiment
from roboloop.run.evaluate import Summary
from roboloop.run.rundir import RunDir, find_run
from roboloop.run.training import Trained, Training, check_asked
from roboloop.track.read import RunInfo, find_runs, read_jsonl, read_run


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM ended a training; its checkpoint is saved, and ``run`` goes on with ``run.resume()``."""

    def __init__(self, run: Run, step: int) -> None:
        super().__init__(f"stopped at step {step}; go on with rl.train(resume={str(run.path)!r})")
        self.run = run


class Run:
    """A run on disk: a path, or an experiment that has only one run. Functions that take a run take its path too.

    ``trust=True`` uses code that the run's own files name; ``env`` makes the environment of a run that was trained on
    a class of a script or notebook.
    """

    def __init__(self, path: PathLike, *, trust: bool = False, env: Callable[..., Any] | None = None) -> None:
        self.path = find_run(Path(path))
        self._known = Known(trust=trust)
        if env is not None:
            self._known = self._known.plus(makers=env_section(env, self.config.env.id)[1])

    @classmethod
    def _made(cls, path: Path, known: Known) -> Run:
        run = cls(path)
        run._known = known
        return run

    @property
    def config(self) -> Experiment:
        """The resolved experiment."""
        with self._known.used():
            return RunDir.open(self.path, check_names=False).config

    @property
    def info(self) -> RunInfo:
        """State, step and last results, as ``roboloop runs`` shows them."""
        return read_run(self.path)

    @property
    def status(self) -> str:
        """running, done, stopped, failed, or lost where its process is gone."""
        return self.info.state

    @property
    def step(self) -> int:
        """Environment steps so far."""
        return self.info.step

    @property
    def checkpoints(self) -> list[int]:
        """Steps of the checkpoints that are kept."""
        return checkpoints.steps(self.path / "checkpoints")

    def metrics(self) -> dict[str, Array]:
        """Return ``metrics.jsonl`` as columns of equal length; what a row does not have is NaN."""
        return _columns(self.path / "metrics.jsonl")

    def timing(self) -> dict[str, Array]:
        """Return ``timing.jsonl`` as columns: wall time, speeds, where the time went."""
        return _columns(self.path / "timing.jsonl")

    def policy(self, checkpoint: str | int = "best", *, target: float | None = None, seed: int = 0) -> LoadedPolicy:
        """Load the policy of a checkpoint: 'best', 'last' or a step; ``target`` is the return that ``dt`` aims at."""
        from roboloop.run import build, posthoc

        with self._known.used():
            run = RunDir.open(self.path)
            spec = build.spec_of(run.config)
            policy = build.policy_of(run.config, spec, run.pick(str(checkpoint)))
            if target is not None:
                policy = posthoc.with_target_return(policy, target, run)
            return LoadedPolicy(policy, spec, run.config.env.frame_stack, seed)

    def evaluate(self, **options: Any) -> Summary:
        """Evaluate a checkpoint: see ``rl.evaluate``."""
        return evaluate(self, **options)

    def resume(self, **options: Any) -> Run:
        """Go on with the run, for example with more ``steps``: see ``rl.train``."""
        return train(resume=self, **options)

    def fork(self, at: int, **options: Any) -> Run:
        """Make a new run that begins as this one was at a step: see ``rl.train``."""
        return train(fork=self, at=at, **options)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        info = self.info
        return f"Run({str(self.path)!r}): {info.state}, step {info.step} of {info.steps}"


def _run_of(run: Run | PathLike, trust: bool = False) -> Run:
    run = run if isinstance(run, Run) else Run(run)
    return Run._made(run.path, run._known.plus(trust=True)) if trust else run


def _columns(path: Path) -> dict[str, Array]:
    rows = read_jsonl(path)
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [np.nan if row.get(name) is None else row[name] for row in rows] for name in names}
    return {name: np.asarray(column) for name, column in columns.items()}


def runs(folder: PathLike = "runs") -> list[Run]:
    """Return all runs below a folder, sorted by experiment, task and seed."""
    return [Run._made(info.path, Known()) for info in find_runs(Path(folder)) if info.state != "damaged"]


def load(run: Run | PathLike, checkpoint: str | int = "best", **options: Any) -> LoadedPolicy:
    """Load the policy of a run: see ``Run.policy``."""
    return _run_of(run).policy(checkpoint, **options)


def evaluate(
    run: Run | PathLike,
    *,
    episodes: int = 50,
    seed: int = 0,
    checkpoint: str | int = "best",
    env: Any = None,
    target: float | None = None,
    task: str = "",
    schedule: str = "",
    pick: str = "",
    name: str | None = None,
    video: bool = False,
    quiet: bool = True,
) -> Summary:
    """Evaluate a policy on held-out episodes, with the numbers and the files of ``roboloop eval``.

    ``env`` is another environment to act in: an id, or keys such as ``{"goal_mode": "fixed"}``.
    """
    from roboloop.run.posthoc import ALL, EvalRequest, evaluate_run, show

    run = _run_of(run)
    if checkpoint == ALL:
        raise ConfigError("rl.evaluate takes one checkpoint: go through run.checkpoints for all of them")
    if task and schedule:
        raise ConfigError("task is a schedule of one task: choose one of them")
    keys, makers = env_section(env, run.config.env.id) if env is not None else ({}, {})
    env_id = keys.pop("id", None)
    known = run._known.plus([*words_of(keys), *([env_id] if env_id else [])], makers)
    flags = tuple(flags_of(nested(keys), "env."))
    with known.used():
        wish = EvalRequest(
            episodes, seed, name, video, target, task or schedule, env_id if env_id != run.config.env.id else None,
            flags, pick,
        )  # fmt: skip
        (found,) = evaluate_run(run.path, str(checkpoint), wish, silent if quiet else show).values()
    return found


def silent(line: str) -> None:
    """Say nothing."""


def experiment(
    recipe: PathLike | Experiment | None = None, *, env: Any = None, algo: Any = None, **keys: Any
) -> Experiment:
    """Return the config that ``rl.train`` would train with the same arguments."""
    request = TrainRequest(recipe, env, algo, keys)
    with request.known(Known(), False).used():
        return request.config()


def train(
    recipe: PathLike | Experiment | None = None,
    *,
    env: Any = None,
    algo: Any = None,
    resume: bool | Run | PathLike = False,
    fork: Run | PathLike | None = None,
    at: int | None = None,
    overwrite: bool = False,
    trust: bool = False,
    quiet: bool = False,
    stop: threading.Event | None = None,
    **keys: Any,
) -> Run:
    """Train, and return the run when it is done.

    ``recipe`` is a recipe's name, a config file or an ``Experiment``. ``env`` is an id, a class or function that makes
    a ``gymnasium.Env``, or a mapping of keys; ``algo`` is a name or a mapping of keys. All other keys are those of the
    command line, sections as mappings or with dots: ``eval={"episodes": 5}``, ``**{"algo.lr": 1e-3}``.

    ``resume`` continues a run; ``resume=True`` that of this config, if there is one. ``fork`` branches off a run ``at``
    a step. Ctrl-C and SIGTERM save a checkpoint and raise ``Interrupted``; setting ``stop`` saves one and returns.
    """
    other = resume if isinstance(resume, bool) else _run_of(resume, trust)
    source = _run_of(fork, trust) if fork is not None else None
    base = source or (other if isinstance(other, Run) else None)
    check_asked(recipe, isinstance(other, Run), bool(resume), source, at, overwrite)
    request = TrainRequest(recipe, env, algo, keys, base.config.env.id if base else "")
    known = request.known(base._known if base else Known(), trust)
    with known.used():
        words = ["--fork", str(source.path), "--at", str(at)] if source else []
        training = Training(["train", *words, *request.command()], quiet, stop)
        done = _trained(training, request, other, source, at, overwrite)
        config = RunDir.open(done.path, check_names=False).config
    gc.collect()  # buffers, journal and shared memory of a finished run are in cycles, and may be large
    # what the caller has named once need not be named again to use the run that came of it
    run = Run._made(done.path, known.plus(name for _, name in trusted.named(config)))
    if done.state == "stopped" and not (stop is not None and stop.is_set()):
        raise Interrupted(run, done.step)
    return run


def _trained(
    training: Training,
    request: TrainRequest,
    resume: bool | Run,
    fork: Run | None,
    at: int | None,
    overwrite: bool,
) -> Trained:
    if fork is not None and at is not None:
        return training.fork(fork.path, at, request.change)
    if isinstance(resume, Run):
        return training.resume(resume.path, request.change)
    return training.go_on(request.config()) if resume else training.start(request.config(), overwrite)
