"""Summaries of runs as one file; what is read is checked, since such files travel."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from roboloop.core.errors import DataError
from roboloop.core.files import parse_json, read_bytes, replace_atomic, writing
from roboloop.track.curves import Curve
from roboloop.track.metrics import finite
from roboloop.track.stats import Floats
from roboloop.track.summary import ORIGIN, Evaluation, Facts, Prediction, Result, RunSummary

FORMAT = "roboloop-summary"
VERSION = 1
_MOST_BYTES = 256 << 20
T = TypeVar("T")


def save(runs: Sequence[RunSummary], out: Path) -> Path:
    """Write summaries as one file; what all configs have in common is written once."""
    common = {
        key: value
        for key, value in (runs[0].config if runs else {}).items()
        if all(key in run.config and run.config[key] == value for run in runs)
    }
    rows = []
    for run in runs:
        row = asdict(replace(run, curves={}, videos=tuple(Path(video).name for video in run.videos)))
        row["config"] = {key: value for key, value in run.config.items() if key not in common}
        row["curves"] = {
            key: {name: _short(numbers) for name, numbers in curve._asdict().items()}
            for key, curve in run.curves.items()
        }
        rows.append(finite({key: value for key, value in row.items() if value not in ({}, (), [])}))
    lines = ",\n".join(json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in rows)
    head = json.dumps({"format": FORMAT, "version": VERSION, "config": finite(common)}, ensure_ascii=False)
    with writing(out):
        # one line per run, so that a change of one is a change of one line; what is no text becomes a JSON escape
        replace_atomic(out, f'{head[:-1]}, "runs": [\n{lines}\n]}}\n'.encode(errors="backslashreplace"))
    return out


def load(path: Path) -> list[RunSummary]:
    """Read what ``save`` wrote; anything else is a DataError."""
    data = parse_json(read_bytes(path, _MOST_BYTES, follow=True), str(path))
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise DataError(f"{path} is not a summary of runs")
    if data.get("version") != VERSION:
        raise DataError(f"{path} has version {data.get('version')!r}: this roboloop reads version {VERSION}")
    try:
        common = _mapping(data["config"])
        return [_run(_mapping(row), common) for row in _list(data["runs"])]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{path} is damaged: {type(error).__name__} {error}") from None


def _run(row: Facts, common: Facts) -> RunSummary:
    origin = _mapping(row.get("origin", {}))
    return RunSummary(
        experiment=_text(row["experiment"]),
        task=_text(row["task"]),
        seed=_maybe(_whole, row["seed"]),
        state=_text(row["state"]),
        step=_whole(row["step"]),
        steps=_whole(row["steps"]),
        config=dict(sorted({**common, **_mapping(row.get("config", {}))}.items())),
        curves={key: _curve(_mapping(curve)) for key, curve in _mapping(row.get("curves", {})).items()},
        evaluations=tuple(_evaluation(_mapping(each)) for each in _list(row.get("evaluations", []))),
        seconds={key: _number(value) for key, value in _mapping(row.get("seconds", {})).items()},
        origin={key: origin[key] for key, kind in ORIGIN.items() if isinstance(origin.get(key), kind)},
        datasets={key: _dataset(_mapping(facts)) for key, facts in _mapping(row.get("datasets", {})).items()},
        predictions=tuple(_prediction(_mapping(each)) for each in _list(row.get("predictions", []))),
        # names alone, as they were saved: a path would let a stranger's file put our films into a report
        videos=tuple(Path(_text(video)).name for video in _list(row.get("videos", []))),
        notes=tuple(map(_text, _list(row.get("notes", [])))),
    )


def _curve(data: Facts) -> Curve:
    step, wall_s, value = (np.array([_number(x) for x in _list(data[name])]) for name in Curve._fields)
    if not len(step) or len(value) != len(step) or len(wall_s) not in (0, len(step)) or np.any(np.diff(step) < 0):
        raise ValueError("a curve whose steps, seconds and values do not belong together")
    return Curve(step, wall_s, value)


def _evaluation(data: Facts) -> Evaluation:
    special = _mapping(data["special"])
    return Evaluation(
        name=_text(data["name"]),
        step=_whole(data["step"]),
        planned=_whole(data["planned"]),
        split=_text(data["split"]),
        seed=_whole(data["seed"]),
        protocol=_mapping(data["protocol"]),
        special=special | ({"env": _mapping(special["env"])} if "env" in special else {}),
        whole=_result(_mapping(data["whole"])),
        tasks={task: _result(_mapping(result)) for task, result in _mapping(data.get("tasks", {})).items()},
    )


def _result(data: Facts) -> Result:
    episodes, successes = _whole(data["episodes"]), _maybe(_whole, data["successes"])
    if episodes < 1 or not 0 <= (successes or 0) <= episodes:
        raise ValueError(f"{successes} successes of {episodes} episodes")
    mean, low, high = (math.nan if data[key] is None else _number(data[key]) for key in _RETURNS)
    return Result(episodes, successes, mean, low, high, _maybe(_number, data.get("mean_length")))


_RETURNS = ("mean_return", "return_low", "return_high")


def _dataset(facts: Facts) -> Facts:
    for key in facts.keys() & {"episodes", "steps", "bytes"}:
        _number(facts[key])
    _maybe(_number, facts.get("success"))
    for value in _list(facts.get("return_quantiles", [])):
        _number(value)
    return facts


def _prediction(data: Facts) -> Prediction:
    errors = {k: _maybe(_number, error) for k, error in _mapping(data["errors"]).items()}
    parameters = {name: _number(mean) for name, mean in _mapping(data.get("parameters", {})).items()}
    return Prediction(_text(data["simulator"]), _text(data["target"]), errors, parameters)


def _maybe(read: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else read(value)


def _text(value: Any) -> str:
    return _of(str, value)


def _list(value: Any) -> list[Any]:
    return _of(list, value)


def _mapping(value: Any) -> Facts:
    return _of(dict, value)


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{value!r} is no number")
    return _of(int, value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no number")
    return value


def _of(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{str(value)[:40]!r} where a {kind.__name__} belongs")
    return value


def _short(numbers: Floats) -> list[float]:
    return [int(number) if number == int(number) else number for number in numbers.tolist()]
