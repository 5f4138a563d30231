"""The sections about how results came about: settings, protocols, data, time, origin, videos."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from roboloop.core.files import is_regular
from roboloop.track.report.blocks import Block, Note, Section, Table, Video
from roboloop.track.report.scores import NONE, asked, shown_result, shown_value, without_empty
from roboloop.track.summary import Evaluation, RunSummary
from roboloop.track.terminal import count, duration, number

Groups = Mapping[str, Sequence[RunSummary]]
_NO_SETTING = ("experiment", "runs_dir")
"""Keys that name a run and do not change it."""


def settings(groups: Groups) -> Section:
    """Return the settings in which groups differ, and where runs of one group differ by more than their seed."""
    configs = [runs[0].config for runs in groups.values()]
    differing = [key for key in _keys(configs) if not _all_equal(configs, key)]
    # of other algorithms' keys, those that have one value wherever they are tell nothing that algo.name does not
    shown = [key for key in differing if not _all_equal([config for config in configs if key in config], key)]
    blocks: list[Block] = []
    if shown:
        rest = len(differing) - len(shown)
        more = f" {rest} more are of one value but not known to all algorithms." if rest else ""
        caption = f"Settings in which the runs differ.{more} All others are equal."
        rows = tuple((key, *(_shown(config, key) for config in configs)) for key in shown)
        blocks.append(Table(caption, ("setting", *groups), rows))
    for label, runs in groups.items():
        own = [{key: _seedless(value, run.seed) for key, value in run.config.items()} for run in runs]
        for key in _keys(own):
            if not _all_equal(own, key):
                values = ", ".join(f"seed {run.seed}: {_shown(run.config, key)}" for run in runs)
                blocks.append(Note(f"{label} is one line, but its runs differ in {key} too ({values})."))
        seeds = [run.seed for run in runs]
        twice = sorted({str(seed) for seed in seeds if seeds.count(seed) > 1})
        if twice:
            blocks.append(Note(f"{label} has more than one run of seed {', '.join(twice)}: each counts."))
    return Section("settings", "Settings", tuple(blocks))


def _keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({key for config in configs for key in config if key not in _NO_SETTING})


def _all_equal(configs: Sequence[Mapping[str, Any]], key: str) -> bool:
    return all((key in config) == (key in configs[0]) and config.get(key) == configs[0].get(key) for config in configs)


def _seedless(value: Any, seed: int | None) -> str:
    """Return a value in which folders named by the run's own seed are all the same: other seeds have others."""
    return re.sub(rf"/{seed}(?=[/\"]|$)", "/*", json.dumps(value))


def _shown(config: Mapping[str, Any], key: str) -> str:
    return shown_value(config[key]) if key in config else NONE


def protocols(groups: Groups) -> Section:
    """Return every kind of evaluation with its protocol, and each evaluation with its outcome."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    rows = []
    for label, runs in groups.items():
        for run in runs:
            for each in run.evaluations:
                kinds.setdefault((_protocol(each), _plan(each)), []).append(label)
                rows.append((
                    label, NONE if run.seed is None else str(run.seed), count(each.step), _plan(each),
                    NONE if each.whole.successes is None else shown_result(each.whole),
                    shown_result(each.whole, "return"),
                ))  # fmt: skip
    if not rows:
        return Section("protocols", "Evaluations", ())
    listed = tuple((", ".join(dict.fromkeys(labels)), *kind) for kind, labels in kinds.items())
    header = ("run", "seed", "checkpoint", "episodes", "success", "return")
    return Section("protocols", "Evaluations", (
        Table("Protocols, from the headers of the results.", ("runs", "protocol", "episodes"), listed),
        without_empty("Every evaluation after training; intervals are 95 %.", header, rows),
    ))  # fmt: skip


def _protocol(each: Evaluation) -> str:
    return ", ".join(f"{key} {value}" for key, value in each.protocol.items()) or NONE


def _plan(each: Evaluation) -> str:
    per_task = " of each task" if each.tasks else ""
    done = "" if each.is_whole else f", {each.whole.episodes} done"
    special = f", {asked(each)}" if each.special else ""
    return f"{each.planned}{per_task}, {each.split}, seed {each.seed}{done}{special}"


def datasets(groups: Groups) -> Section:
    """Return what was recorded."""
    rows = []
    for label, runs in groups.items():
        for run in runs:
            for folder, facts in run.datasets.items():
                quantiles = facts.get("return_quantiles") or ()
                success = facts.get("success")
                rows.append((
                    f"{label}/{run.seed}/{folder}", str(facts.get("env_id", NONE)), count(facts.get("episodes", 0)),
                    count(facts.get("steps", 0)), f"{count(facts.get('bytes', 0))}B",
                    NONE if success is None else f"{100 * success:.0f} %",
                    ", ".join(map(number, quantiles)) or NONE,
                ))  # fmt: skip
    header = ("dataset", "environment", "episodes", "steps", "on disk", "success", "returns: min, p10, p50, p90, max")
    return Section("datasets", "Datasets", (Table("Recorded episodes.", header, tuple(rows)),) if rows else ())


def time(groups: Groups) -> Section:
    """Return where wall time went, of all runs of each group."""
    rows = []
    parts = dict.fromkeys(key for runs in groups.values() for run in runs for key in run.seconds if key != "wall")
    for label, runs in groups.items():
        timed = [run for run in runs if run.seconds]
        total = {part: sum(run.seconds.get(part, 0.0) for run in timed) for part in parts}
        wall_s = sum(total.values())
        if not wall_s:
            continue
        training_s = total.get("collect", 0.0) + total.get("update", 0.0)
        speed = number(sum(run.step for run in timed) / training_s) if training_s else NONE
        shares = (f"{100 * seconds / wall_s:.0f} %" for seconds in total.values())
        rows.append((label, duration(wall_s / len(timed)), speed, *shares))
    caption = "Where time went. Steps a second are of collecting and learning; what else the machine did is not known."
    header = ("runs", "each run took", "steps/s", *parts)
    return Section("time", "Time", (Table(caption, header, tuple(rows)),) if rows else ())


def origin(groups: Groups) -> Section:
    """Return versions and commands."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    commands = []
    for runs in groups.values():
        for run in runs:
            if not run.origin:
                continue
            about = run.origin
            versions = ", ".join(f"{name} {version}" for name, version in (about.get("versions") or {}).items())
            commit = f"{str(about.get('git') or NONE)[:12]}{' with changes' if about.get('git_dirty') else ''}"
            machine = f"Python {about.get('python')}, {about.get('platform')}, {about.get('cpus')} CPUs"
            kinds.setdefault((versions, commit, machine), []).append(run.name)
            commands.append(
                (run.name, _day(about.get("created_unix_s")), shlex.join(map(str, about.get("command") or ())))
            )
    if not kinds:
        return Section("origin", "Origin", ())
    made = tuple((", ".join(names), *kind) for kind, names in kinds.items())
    return Section("origin", "Origin", (
        Table("What the runs were made with.", ("runs", "versions", "commit", "machine"), made),
        Table("How the runs were begun (UTC).", ("run", "begun", "command"), tuple(commands)),
    ))  # fmt: skip


def _day(unix_s: float | None) -> str:
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M") if unix_s else NONE
    except (TypeError, ValueError, OverflowError, OSError):  # no clock said that
        return NONE


def videos(groups: Groups) -> Section:
    """Return the videos that are there."""
    found = [Video(f"{run.name}: {Path(video).name}", Path(video)) for runs in groups.values() for run in runs
             for video in run.videos if is_regular(Path(video)) and Path(video).parent.parts]  # fmt: skip
    return Section("videos", "Videos", tuple(found))
