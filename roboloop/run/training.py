"""The one way into training, from the command line and from Python: start, resume or fork a run, then train it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from roboloop.core.config import override, read_file
from roboloop.core.errors import ConfigError, DataError, DiskError, RunExists
from roboloop.core.files import is_there
from roboloop.core.flags import with_kinds
from roboloop.core.raised import where
from roboloop.core.shared_state import borrowed
from roboloop.core.text import printable
from roboloop.core.vouched import FLAG
from roboloop.run import recipes, trust
from roboloop.run.build import Parts, build
from roboloop.run.config import Experiment, identity
from roboloop.run.envs import check_before_training
from roboloop.run.rundir import RunDir, run_path
from roboloop.track.terminal import Progress
from roboloop.track.trackers import registry as trackers
from roboloop.track.trackers.tracker import Tracker

Change = Callable[[Experiment], Experiment]
"""What the user gave, as a function of the config that it changes: flags of a command, or keys in Python."""
KEPT_BY_FORKS = ("env.id", "env.num_envs", "env.frame_stack", "algo.name", "sample.groups")


class Trained(NamedTuple):
    """How a training ended."""

    path: Path
    state: str
    """done or stopped."""
    step: int


def base_config(recipe: str | None, file: Path | None, algo: str | None, flags: Sequence[str] = ()) -> Experiment:
    """Return the config that flags and keys change: the defaults, a recipe over them, and a file over that.

    The file may leave out which algorithm and environment its keys are for where the flags say so.
    """
    kind = {"algo": {"name": algo}} if algo else {}
    config = override(Experiment(), recipes.load(recipe) if recipe else {})
    if file:
        data = read_file(file)
        trust.vouch_for_file(data)
        config = override(with_kinds(override(config, kind), flags), data)
    return override(config, kind)


def changed(base: Experiment, change: Change) -> Experiment:
    """Return a config with what the user gave; with a dataset, keys of the environment change that of the data."""
    config = change(base)
    if not config.dataset:
        return config
    from roboloop.run.offline import env_of_dataset

    config = change(override(base, {"env": env_of_dataset(config.dataset)}))
    trust.check_env(config.env, config.dataset)
    return config


def reopen(path: Path, change: Change) -> RunDir:
    """Open a run to go on with it, with other values of what may change; one that has all its steps stays as it was."""
    run = RunDir.open(path, write=True, check_names=False)
    with _closed_by_errors(run.close):  # who keeps the exception must not keep the lock
        config = change(run.config)
        old, new = identity(run.config), identity(config)
        if fixed := [key for key in new if key not in old or new[key] != old[key]]:
            values = f"from {old.get(fixed[0])!r} to {new[fixed[0]]!r}"
            what = f"config key '{fixed[0]}' cannot change in a resumed run, {values}"
            raise ConfigError(f"{what}: --fork {path} --at STEP makes a new one")
        trust.check(config, path / "config.yaml")
        config.check()
        is_finished = run.is_done and config.steps <= run.status()["step"]
        if config != run.config and not is_finished:
            run.save_config(config)
    return run


def check_asked(base: object, run: object, resume: bool, fork: object, at: int | None, overwrite: bool) -> None:
    """Refuse what contradicts itself: ``run`` is one to resume, ``base`` what a new one would be made from."""
    if (run or fork) and (base or (resume and fork)):
        raise ConfigError("resume and fork take a run and keys to change: no recipe, no config, no algo, and not both")
    if overwrite and (resume or fork):
        raise ConfigError("overwrite starts over, resume and fork go on: choose one of them")
    if (at is None) != (not fork):
        raise ConfigError("fork=RUN and at=STEP belong together: --fork RUN --at STEP")


class Training:
    """One training as somebody asked for it: the command that its run remembers, who is told, and who may stop it."""

    def __init__(
        self,
        command: Sequence[str],
        quiet: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        self._command, self._stop = command, stop
        self._stream: TextIO | None = None if quiet else sys.stdout

    def start(self, config: Experiment, overwrite: bool = False) -> Trained:
        """Make a new run and train it; ``overwrite`` moves one of the same name aside."""
        trust.vouch_for(config)  # in words or in a file, it was the user who named all of it
        config.check()
        if not overwrite:
            RunDir.free_path(config)
        from roboloop.run.start import load_weights_from

        chosen = trackers.make(config.trackers)
        with borrowed(config.seed):
            check_before_training(config)
            parts = build(config)  # before anything is on disk: an env that cannot be made leaves no trace
            with _closed_by_errors(*_closers(parts)):
                load_weights_from(parts.algo, config)
                if overwrite and (old := RunDir.move_aside(config)):
                    self._say(f"the run that was there is now {printable(old)}")
                run = RunDir.create(config, self._command)
            return self._train(run, chosen, parts, resume=False)

    def go_on(self, config: Experiment) -> Trained:
        """Resume the run of a config where there is one, else start it; a finished one is left as it is."""
        config.check()
        path = run_path(config)
        if not is_there(path / "config.yaml"):
            return self.start(config)
        trust.vouch_for(config)
        # the run is the one at this path, also where its folder was moved or is named otherwise
        run = reopen(path, lambda saved: override(config, {"runs_dir": saved.runs_dir}))
        if run.is_done:
            run.close()
            self._say(f"{printable(path)} is finished")
            return Trained(path, "done", int(run.status()["step"]))
        return self._again(run)

    def resume(self, path: Path, change: Change) -> Trained:
        """Go on with a run from its newest checkpoint."""
        run = reopen(path, change)
        if run.is_done:
            run.close()
            raise RunExists(f"{path} is finished at step {run.status()['step']}: --resume {path} --steps MORE goes on")
        return self._again(run)

    def _again(self, run: RunDir) -> Trained:
        with _closed_by_errors(run.close):
            chosen = trackers.make(run.config.trackers)
        with borrowed(run.config.seed):
            return self._train(run, chosen, None, resume=True)

    def fork(self, source: Path, step: int, change: Change) -> Trained:
        """Make a new run that begins as another one was at a step, with other settings."""
        old = RunDir.open(source, check_names=False)
        config = change(override(old.config, {"runs_dir": str(_tree_of(source, old.config))}))
        trust.check(config, source / "config.yaml")
        config.check()
        for name in KEPT_BY_FORKS:
            section, key = name.split(".")
            if getattr(getattr(config, section), key) != getattr(getattr(old.config, section), key):
                hint = f" (--start {source} takes over weights alone)" if name == "env.id" else ""
                raise ConfigError(f"a fork keeps {name}: its buffer and its running episodes depend on it{hint}")
        RunDir.free_path(config)
        chosen = trackers.make(config.trackers)
        with borrowed(config.seed):
            check_before_training(config)
            parts = build(config)
            with _closed_by_errors(*_closers(parts)):  # what does not fit leaves no trace
                point = old.checkpoint_at(step)
                with point.fits():
                    parts.algo.load(point.state["algo"])
                run = old.fork(config, step, self._command)
            return self._train(run, chosen, parts, resume=True)

    def _say(self, text: str) -> None:
        if self._stream is not None:
            print(text, file=self._stream)

    def _train(self, run: RunDir, chosen: Mapping[str, Tracker], parts: Parts | None, resume: bool) -> Trained:
        """Train a run to its end, and leave its curve beside it; all that was opened is closed, also by an error."""
        from roboloop.run.runner import Runner
        from roboloop.run.start import load_weights_from

        with contextlib.ExitStack() as stack:
            stack.callback(run.close)
            cfg, made = run.config, stack.enter_context(contextlib.ExitStack())
            for close in _closers(parts) if parts else ():
                made.callback(close)
            progress = Progress(cfg.steps, enabled=self._stream is not None, stream=self._stream)
            made.callback(progress.close)
            progress.note(f"run {run.path}: {cfg.env.id}, seed {cfg.seed}, {cfg.steps} steps")
            if parts is None:
                parts = build(cfg)
                for close in _closers(parts):
                    made.callback(close)
            runner = Runner(run, parts, chosen, progress, self._stop)
            made.pop_all()  # the runner closes them from here on
            stack.callback(runner.close)
            if resume:
                step = runner.resume(progress.note)
                if not step:
                    load_weights_from(runner.algo, cfg)
                progress.note(f"resumed at step {step}")
            state = runner.train()
            progress.finish()
            trusted = f" {FLAG}" if trust.names_any(cfg) else ""
            hint = f"; go on with: roboloop train --resume {run.path}{trusted}" if state == "stopped" else ""
            progress.note(f"{state} at step {runner.clock.step}{hint}")
            if state == "done" and not cfg.eval.episodes:
                progress.note(f"not evaluated yet: roboloop eval {run.path} --checkpoint all{trusted}")
            _draw_curve(run, progress.note)
            return Trained(run.path, state, runner.clock.step)


def _tree_of(path: Path, config: Experiment) -> Path:
    """Return the folder of runs that a run stands in: what its config says of that, a stranger wrote."""
    below, here = run_path(override(config, {"runs_dir": ""})), os.path.abspath(path)
    above = here.removesuffix(f"/{below}")
    tree = Path(above or "/") if above != here else Path(here).parent
    return Path(config.runs_dir) if os.path.abspath(config.runs_dir) == str(tree) else tree


def _draw_curve(run: RunDir, tell: Callable[[str], None]) -> None:
    from roboloop.track.curves import traced
    from roboloop.track.plots import plot_runs

    out = run.path / "plots" / "curve.png"
    try:
        if not out.parent.is_symlink():
            tell(f"curve: {plot_runs([traced(run.path)], out)}")
    except DataError:
        pass  # too short a run has nothing to draw
    except Exception as error:  # the run is done, whatever its picture needs: roboloop plot draws it again
        tell(f"no curve: {error if isinstance(error, DiskError) else where(error)}")


def _closers(parts: Parts) -> tuple[Callable[[], None], ...]:
    return parts.sampler.close, parts.evaluator.close, parts.algo.close


@contextlib.contextmanager
def _closed_by_errors(*closers: Callable[[], None]) -> Iterator[None]:
    """Close what was made when what follows fails: a program around us goes on, and must hold nothing of it."""
    try:
        yield
    except BaseException:
        for close in closers:
            close()
        raise
