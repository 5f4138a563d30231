"""What is worth keeping of a run: config, thinned curves, evaluations, times, origin; small enough for git."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any

import numpy as np

from roboloop.core.config import flatten, read_file
from roboloop.core.errors import ConfigError, DataError
from roboloop.core.files import is_directory, is_inside, is_regular, read_json
from roboloop.track.curves import Curve, Traced, read_curves, shown_as
from roboloop.track.inside import names_in
from roboloop.track.metrics import finite
from roboloop.track.read import read_jsonl, read_run
from roboloop.track.stats import bootstrap_interval
from roboloop.track.whole import check_weights, lost_rows

_VIDEOS = (".mp4", ".gif")
_LINKED = "is a link out of the run: not shown"
_SUMMARY = ".summary.json"
_DATASETS = ("dataset", "recorded")
ORIGIN: dict[str, type | UnionType] = {
    "command": list, "versions": dict, "python": str, "platform": str, "cpus": int, "git": str, "git_dirty": bool,
    "created_unix_s": int | float,
}  # fmt: skip
"""What is kept of a run's origin, and of which kind it must be."""
_SPECIAL = ("target", "schedule", "pick")

Facts = dict[str, Any]
DatasetReader = Callable[[Path], Facts]


@dataclass(frozen=True)
class Result:
    """What a number of episodes came to."""

    episodes: int
    successes: int | None
    """None where the environment does not say what success is."""
    mean_return: float
    return_low: float
    return_high: float
    mean_length: float | None = None
    """In steps; None where it was not written down."""


@dataclass(frozen=True)
class Evaluation:
    """One file of ``eval/``."""

    name: str
    step: int
    """Of the checkpoint."""
    planned: int
    """Episodes, of each task where there are several; an evaluation that was stopped has fewer."""
    split: str
    seed: int
    protocol: Facts
    special: Facts
    """What it was asked for beside the plan: a target, a schedule, a way to pick, another environment."""
    whole: Result
    tasks: dict[str, Result] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether all planned episodes were run."""
        return self.whole.episodes >= self.planned * max(1, len(self.tasks))


@dataclass(frozen=True)
class Prediction:
    """How well a simulator predicts what was recorded in a world that it stands for."""

    simulator: str
    target: str
    """That world, by the name of its environment."""
    errors: dict[str, float | None]
    """By the number of control steps, in deviations of the record; none where no episode is as long."""
    parameters: dict[str, float] = field(default_factory=dict)
    """Mean of what generators set in it; empty where nobody sets any."""


@dataclass(frozen=True)
class RunSummary:
    """One run, without anything that only its directory can hold."""

    experiment: str
    task: str
    seed: int | None
    state: str
    step: int
    steps: int
    config: Facts
    """Flat, by the names that flags have; without the seed."""
    curves: dict[str, Curve] = field(default_factory=dict)
    """By metric, at most 100 points each."""
    evaluations: tuple[Evaluation, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    """Where wall time went, by section."""
    origin: Facts = field(default_factory=dict)
    """Versions, commit, platform, command."""
    datasets: dict[str, Facts] = field(default_factory=dict)
    """By folder."""
    predictions: tuple[Prediction, ...] = ()
    """Of the simulators that were made beside the run for the same target."""
    videos: tuple[str, ...] = ()
    """File names, or paths where the run directory was read."""
    notes: tuple[str, ...] = ()
    """What could not be read, one line each."""

    @property
    def traced(self) -> Traced:
        """What is drawn of it."""
        return Traced(self.experiment, self.task, self.seed, self.curves)

    @property
    def group(self) -> str:
        """The line that the run belongs to."""
        return f"{self.experiment}/{self.task}"

    @property
    def name(self) -> str:
        """The end of the run's path."""
        return f"{self.group}/{'-' if self.seed is None else self.seed}"


def read_summary(path: Path, read_dataset: DatasetReader | None = None, with_logs: bool = True) -> RunSummary:
    """Return what is worth keeping of a run; a damaged one is a DataError, a damaged part of it a note.

    Without logs there are no curves and no seconds: logs may be long.
    """
    info, config = read_run(path), read_settings(path)
    notes = lost_rows(path) if with_logs else []
    origin = _part(partial(_origin, path), notes) or {}
    datasets: dict[str, Facts] = {}
    for folder in _DATASETS if read_dataset else ():
        if read_dataset and os.path.lexists(path / folder):
            facts = _part(partial(_dataset, path, folder, read_dataset), notes)
            datasets |= {folder: finite(facts)} if facts else {}
    config.pop("seed", None)
    return RunSummary(
        info.experiment,
        info.task,
        info.seed,
        info.state,
        info.step,
        info.steps,
        {key: _plain(value) for key, value in sorted(config.items())},
        {key: _rounded(curve) for key, curve in read_curves(path).items()} if with_logs else {},
        _evaluations(path, config, notes),
        (_part(partial(_seconds, path), notes) or {}) if with_logs else {},
        origin,
        datasets,
        videos=tuple(str(file) for file in _own(path, "videos", notes) if file.suffix in _VIDEOS),
        notes=tuple(notes),
    )


def read_settings(run: Path) -> Facts:
    """Return the config of a run by the names that flags have; a damaged one is a DataError."""
    path = _inside(run, "config.yaml")
    try:
        data = read_file(path)
    except ConfigError as error:
        raise DataError(str(error)) from None
    return flatten(json.loads(json.dumps(data, default=str)))  # YAML knows dates and sets


def _inside(run: Path, name: str) -> Path:
    """Return a file of a run, or refuse a link to what is elsewhere: a report may be given away."""
    path = run / name
    if path.is_symlink():
        raise DataError(f"{path} {_why_not(path, run)}")
    return path


def without_success(run: RunSummary) -> RunSummary:
    """Return a run as if nobody had said what a success is, so that it is judged by its return."""

    def unjudged(result: Result) -> Result:
        return replace(result, successes=None)

    evaluations = tuple(
        replace(each, whole=unjudged(each.whole), tasks={task: unjudged(of) for task, of in each.tasks.items()})
        for each in run.evaluations
    )
    curves = {key: curve for key, curve in run.curves.items() if "success" not in key.split("/")}
    return replace(run, curves=curves, evaluations=evaluations)


def renamed(runs: Sequence[RunSummary], names: Mapping[str, str]) -> list[RunSummary]:
    """Return runs whose experiments have other names."""
    shown = shown_as([run.experiment for run in runs], names)
    return [replace(run, experiment=name) for run, name in zip(runs, shown, strict=True)]


def _own(run: Path, folder: str, notes: list[str]) -> list[Path]:
    """Return the files in a folder of a run, and note those that are links to what is elsewhere."""
    if os.path.lexists(run / folder) and not is_directory(run / folder):
        notes.append(f"{run / folder} {_LINKED if (run / folder).is_symlink() else 'is not a directory'}")
    files = names_in(run / folder, depth=1)
    notes += [f"{file} {_why_not(file, run)}" for file in files if not is_regular(file)]
    return [file for file in files if is_regular(file)]


def _why_not(path: Path, run: Path) -> str:
    if not path.is_symlink():
        return "is not a regular file"
    return "is a link: it is not followed" if is_inside(path, run) else _LINKED


def _part(read: Callable[[], Any], notes: list[str]) -> Any:
    """Return a part of a run, or None and a note where it is damaged."""
    try:
        return read()
    except DataError as error:
        notes.append(str(error))
    except OSError as error:
        notes.append(f"{error.filename or 'a file'} cannot be read: {error.strerror or error}")
    return None


def _dataset(run: Path, folder: str, read: DatasetReader) -> Facts:
    return read(_inside(run, folder))


def _origin(path: Path) -> Facts:
    meta = read_json(_inside(path, "meta.json"))
    if not isinstance(meta, dict):
        raise DataError(f"{path / 'meta.json'} is not a run's origin")
    return {key: _plain(meta[key]) for key, kind in ORIGIN.items() if isinstance(meta.get(key), kind)}


def _seconds(path: Path) -> dict[str, float]:
    return seconds_at([{}, *read_jsonl(path / "timing.jsonl")][-1])


_MOST_SECONDS = 1e12


def seconds_at(last: Mapping[str, Any]) -> dict[str, float]:
    """Return how long each section took until a row of the timing log."""
    sections = [key for key in last if key.endswith("_s") and not key.endswith("_per_s") and "/" not in key]
    numbers = {key.removesuffix("_s"): last[key] for key in sections if isinstance(last[key], int | float)}
    return {key: round(float(seconds), 1) for key, seconds in numbers.items() if abs(seconds) < _MOST_SECONDS}


def _evaluations(path: Path, config: Facts, notes: list[str]) -> tuple[Evaluation, ...]:
    found = []
    files = _own(path, "eval", notes)
    summed = (file.with_name(file.name.removesuffix(_SUMMARY) + ".jsonl") for file in files if _SUMMARY in file.name)
    notes += [f"{file} is missing, its summary is there" for file in summed if file not in files]
    for file in files:
        if file.suffix != ".jsonl":
            continue
        try:
            header, *rows = read_jsonl(file) or [{}]
            check_weights(path, header)
            if not rows:
                raise DataError("no episode yet")
            found.append(_evaluation(file.stem, header, rows, config))
        except DataError as error:
            notes.append(str(error) if str(file) in str(error) else f"{file}: {error}")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            notes.append(f"{file}: not an evaluation ({type(error).__name__} {error})")
    return tuple(sorted(found, key=lambda each: (each.step, each.name)))


def _evaluation(name: str, header: Facts, rows: Sequence[Facts], config: Facts) -> Evaluation:
    plan = header["plan"]
    # of another environment, what is other about it; keys that the run does not know are of a later version
    elsewhere = flatten(header.get("env", {}), "env.")
    other = {key: value for key, value in elsewhere.items() if key in config and config[key] != value}
    special = {key: header[key] for key in _SPECIAL if key in header} | ({"env": other} if other else {})
    tasks = dict.fromkeys(str(row["task"]) for row in rows if "task" in row)
    return Evaluation(
        name,
        int(header.get("checkpoint_step", 0)),
        int(plan["episodes"]),
        str(plan["split"]),
        int(plan["seed"]),
        {str(key): _plain(value) for key, value in header.get("protocol", {}).items()},
        {key: _plain(value) for key, value in special.items()},
        _summed(rows),
        {task: _summed([row for row in rows if str(row.get("task")) == task]) for task in tasks},
    )


def _summed(rows: Sequence[Facts]) -> Result:
    returns = np.array([float(row["return"]) for row in rows])
    success = [row["success"] for row in rows]
    known = all(isinstance(each, int | float) for each in success)
    lengths = [float(row["length"]) for row in rows if "length" in row]
    numbers = [float(returns.mean()), *bootstrap_interval(returns)]
    numbers += [float(np.mean(lengths))] if len(lengths) == len(rows) else []
    return Result(
        len(rows), sum(each > 0 for each in success) if known else None, *(float(f"{x:.6g}") for x in numbers)
    )


def _rounded(curve: Curve) -> Curve:
    """Return a curve in as many digits as its file has, so that a report is the same from either."""
    value = np.array([float(f"{x:.6g}") for x in curve.value])
    return Curve(np.round(curve.step, 1), np.round(curve.wall_s, 1), value)


def _plain(value: Any) -> Any:
    """Return a JSON value in which no folder of this machine is named: of absolute paths the last part is kept."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        flag, _, path = value.rpartition("=")
        return f"{flag}{'=' if flag else ''}…/{Path(path).name}" if path.startswith("/") else value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity, and a setting of it is not the same as none
    return value
