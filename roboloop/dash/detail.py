"""Everything about one run: settings, evaluations, films, data, time; and the end of what it said."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from roboloop.core.errors import DataError
from roboloop.core.fields import pictures_in
from roboloop.core.files import is_directory, is_regular, open_regular
from roboloop.core.types import Array
from roboloop.dash.catalog import MEDIA, contained, is_media
from roboloop.dash.curves import LOGS
from roboloop.dash.series import Logs, is_number, stamp_of, thin
from roboloop.data.index import INDEX, SCHEMA
from roboloop.launch.job import Job
from roboloop.track.curves import MEASURES, SOURCES
from roboloop.track.inside import names_in
from roboloop.track.metrics import DELAY_EDGES_MS, finite
from roboloop.track.read import AFTERWARDS, names_of
from roboloop.track.summary import read_settings, read_summary, seconds_at

TAIL_BYTES = 64 << 10
"""Most that one answer holds of a log."""
_MEDIA_FOLDERS = ("videos", "plots", "pictures", "frames")
_MOST_MEDIA = 200
_DATASETS = ("dataset", "recorded")
_PROGRESS_COLUMNS = 300
_SHEET_EPISODES, _SHEET_COLUMNS = 6, 8
TICKS = "_ticks"
"""How logs name the ticks of a robot, counted by a delay."""
CHOICE = "choice/"
"""Metrics of guided play: the share of steps in which a task acted."""


def version(run: Path, logs: Logs) -> str:
    """Return what changes when anything does that the page shows of a run beside its state and its log."""
    files = [run / name for name in (*LOGS, "config.yaml", "meta.json")]
    files += [run / name / inner for name in _DATASETS for inner in (SCHEMA, INDEX)]
    files += [path for folder in ("eval", *_MEDIA_FOLDERS) for path in names_in(run / folder)]
    stamps = [(str(path), stamp_of(path)) for path in files]
    return hashlib.sha256(repr((stamps, logs.num_read)).encode()).hexdigest()[:16]


def detail(run: Path, logs: Logs) -> dict[str, Any]:
    """Return all that the page shows of a run beside curves and log."""
    summary = read_summary(run, with_logs=False)
    return {
        "path": str(run),
        "config": dict(sorted(summary.config.items())),
        "origin": finite(summary.origin),
        "evaluations": [finite(asdict(each)) for each in summary.evaluations],
        "seconds": seconds_at([{}, *logs.sketch(run / "timing.jsonl")][-1]),
        "progress": progress(run, logs),
        "media": media(run),
        "datasets": datasets(run),
        "notes": list(summary.notes),
        "resources": resources(run, logs),
        "latency": latency(run, logs),
        "timeline": timeline(run, logs),
    }


def progress(run: Path, logs: Logs) -> dict[str, dict[str, Any]]:
    """Return success and return over steps, of evaluations and of training's own episodes."""
    found: dict[str, dict[str, Any]] = {}
    for measure in MEASURES:
        for source in SOURCES:
            columns = (logs.column(run / name, f"{source}/{measure}") for name in (LOGS[0], AFTERWARDS))
            column = next((column for column in columns if len(column.step)), None)
            if column is not None:
                order = np.argsort(column.step, kind="stable")
                step, value = column.step[order], column.value[order]
                step, value = thin(step, value, _PROGRESS_COLUMNS, float(step[0]), float(step[-1]))
                found.setdefault(measure, {})[source] = {"step": step.tolist(), "value": value.tolist()}
    return found


def media(run: Path) -> list[dict[str, Any]]:
    """Return the films and pictures of a run, newest first."""
    found: list[dict[str, Any]] = []
    for folder in _MEDIA_FOLDERS:
        for path in names_in(run / folder):
            if path.name.startswith(".") or not is_media(path, run):
                continue
            with contextlib.suppress(OSError):  # it has just gone
                stat = path.stat()
                found.append({
                    "name": str(path.relative_to(run)), "kind": MEDIA[path.suffix.lower()].split("/")[0],
                    "bytes": stat.st_size, "unix_s": stat.st_mtime,
                })  # fmt: skip
    return sorted(found, key=lambda each: -each["unix_s"])[:_MOST_MEDIA]


def datasets(run: Path) -> list[dict[str, Any]]:
    """Return what a run recorded, and when that last grew."""
    found = {name: stamp_of(run / name / INDEX) for name in _DATASETS if is_regular(run / name / SCHEMA)}
    return [{"name": name, "unix_s": stamp.mtime_ns / 1e9 if stamp else None} for name, stamp in found.items()]


def resources(run: Path, logs: Logs) -> list[dict[str, float]]:
    """Return rows of the timing log: speeds and seconds by section, from all over training."""
    rows = logs.sketch(run / "timing.jsonl")
    every = max(1, len(rows) // 200)
    return [{key: value for key, value in row.items() if is_number(value)} for row in rows[::every]]


def latency(run: Path, logs: Logs) -> dict[str, Any] | None:
    """Return histograms of a robot's ticks by how late they were and how long they took; none where there was no robot.

    Of a long log they are those of a sketch: ticks of some of its lines.
    """
    counts: dict[str, Any] = {}
    for row in logs.sketch(run / "timing.jsonl"):
        for key, line in row.items():
            if key.endswith(TICKS) and _are_counts(line):
                counts[key] = counts.get(key, 0) + np.array(line, np.int64)
    if not counts:
        return None
    histograms = {key.removeprefix("sample/").removesuffix(TICKS): value.tolist() for key, value in counts.items()}
    return {"edges_ms": DELAY_EDGES_MS, "histograms": histograms}


def _are_counts(line: Any) -> bool:
    is_list = isinstance(line, list) and len(line) == len(DELAY_EDGES_MS) - 1
    return is_list and all(isinstance(n, int) and 0 <= n < 1 << 53 for n in line)


def timeline(run: Path, logs: Logs) -> dict[str, Any] | None:
    """Return which task acted how much over training; none where only one task can."""
    path = run / "metrics.jsonl"
    tasks = [key.removeprefix(CHOICE) for key in logs.keys(path) if key.startswith(CHOICE)]
    if not tasks:
        return None
    placed = [row for row in logs.sketch(path) if is_number(row.get("step"))]
    rows = [row for row in placed if any(f"{CHOICE}{task}" in row for task in tasks)]
    shares = {task: [_share(row.get(f"{CHOICE}{task}")) for row in rows] for task in tasks}
    return {"step": [row["step"] for row in rows], "shares": shares}


def _share(value: Any) -> float:
    return value if is_number(value) else 0.0


def tail(run: Path, start: int | None) -> dict[str, Any]:
    """Return what a run said from an offset on, or its end; never more than a bounded number of bytes."""
    log = Job(run).log
    path = log if is_directory(log.parent) and is_regular(log) else run / "metrics.jsonl"
    if not contained(path, run):
        raise DataError("no log")
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            # a log that became shorter was cut by a resume: its end is shown anew
            begin = (
                max(0, size - TAIL_BYTES) if start is None or not 0 <= start <= size else max(start, size - TAIL_BYTES)
            )
            file.seek(begin)
            data = file.read(TAIL_BYTES)
    except (OSError, DataError):
        return {"file": "", "text": "", "from": 0, "to": 0, "size": 0}
    cut = data.find(b"\n") + 1 if begin and begin != start else 0
    whole = data.rfind(b"\n") + 1 if begin + len(data) < size else len(data)
    text = data[cut:whole].decode(errors="replace")
    return {"file": path.name, "text": text, "from": begin + cut, "to": begin + whole, "size": size}


def differences(runs: Sequence[Path]) -> dict[str, Any]:
    """Return the settings in which runs differ; what a run does not have is None."""
    configs = []
    for run in runs:
        try:
            configs.append(read_settings(run))
        except DataError:
            configs.append({})
    keys = sorted({key for config in configs for key in config})
    rows = {key: [config.get(key) for config in configs] for key in keys}
    differing = {key: values for key, values in rows.items() if any(value != values[0] for value in values)}
    return {"names": ["/".join(map(str, names_of(run))) for run in runs], "rows": finite(differing)}


def sheet(run: Path, name: str) -> bytes:
    """Return a contact sheet of a run's dataset as PNG: a row for each of the newest episodes."""
    if name not in _DATASETS or not contained(run / name, run):
        raise DataError("no such dataset")
    from roboloop.data.dataset import Dataset
    from roboloop.track.sheet import draw_sheet

    data = Dataset.open(run / name)
    try:
        pictures: list[Array] = []
        for row in range(len(data))[-_SHEET_EPISODES:]:
            obs = data.episode(row).obs
            found = pictures_in(obs)
            if not found:
                raise DataError("its observations are no pictures")
            image = next(iter(found.values()))
            pictures += [image[i] for i in np.linspace(0, len(image) - 1, _SHEET_COLUMNS).astype(int)]
    finally:
        data.close()
    out = io.BytesIO()
    draw_sheet(pictures, _SHEET_COLUMNS).save(out, format="PNG")
    return out.getvalue()
