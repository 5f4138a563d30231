"""The verbs of many runs: sweep, stop, requeue, tail."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from roboloop.core.cluster import SCHEME
from roboloop.core.errors import ConfigError, DataError
from roboloop.core.files import disk_errors, open_regular
from roboloop.core.options import Options
from roboloop.core.text import printable
from roboloop.launch import plan
from roboloop.launch.control import end_launcher, is_left_running, told
from roboloop.launch.engine import JobEngine, Local
from roboloop.launch.job import Job
from roboloop.launch.launcher import Launcher, Queue, Rules, conclude
from roboloop.launch.slots import Slot, describe, discover, make_slots
from roboloop.launch.sweep import Planned, Sweep, check_existing, expand, is_text, read_seeds, read_sweep, spelled
from roboloop.run.commands import aliases, config_of
from roboloop.run.config import Experiment
from roboloop.run.training import base_config
from roboloop.track.read import find_runs

if TYPE_CHECKING:
    from roboloop.launch.on_ray import OnRay
    from roboloop.launch.on_slurm import OnSlurm

HERE = "local"
FILES = (".yaml", ".yml", ".json")
_TAIL_S = 0.5
_TAIL_BYTES = 16 << 20
_LONGEST_LINE = 10_000


def sweep(args: list[str]) -> int:
    """Start a sweep, or go on with it: the same command skips what is done and adopts what runs."""
    options = _sweep_options()
    source = args[0] if args and not args[0].startswith("-") else None
    known, flags = options.parse_known_args(args[1:] if source else args)
    wanted = _sweep(source, known, aliases(flags), options)
    for name in ("retries", "fail_fast", "timeout_s", "memory_mb", "silent_s"):
        if getattr(known, name) < 0:
            raise ConfigError(f"--{name.replace('_', '-')} must not be negative: {getattr(known, name)}")
    rules = Rules(known.retries, known.fail_fast, known.timeout_s, known.memory_mb, known.silent_s)
    if known.search:
        from roboloop.launch.search import check_space, search

        check_space(wanted, known.trials)
        runs: list[Planned] = []
    else:
        if wanted.space or known.trials is not None:
            raise ConfigError("'space' and --trials are for a search: give --search optuna")
        runs = expand(wanted)
        for run in runs:
            check_existing(run)
    devices = {run.config.device for run in runs} or {wanted.base.device}
    if known.on == HERE:
        _check_here(devices)
    on_gpu = any(device.startswith("cuda") for device in devices)
    engine, slots, room = _settle(known, on_gpu, len(runs) or known.trials)
    if known.dry_run:
        print("\n".join(printable(run.path) for run in runs) or "a search makes its runs up as it goes")
        print(room)
        engine.close()
        return 0
    with plan.launching(wanted.directory), disk_errors(str(wanted.directory), "free space; the same command goes on"):
        _say(f"sweep {wanted.directory}: {room}")
        try:
            if known.search:
                return search(wanted, known.trials, slots, rules, args, _say, engine)
            plan.write(wanted.directory, runs, ["sweep", *args])
            return launch([Job(run.path, run) for run in runs], slots, rules, engine)
        finally:
            engine.close()


def _check_here(devices: set[str]) -> None:
    """Refuse devices that this machine does not have, before a run is made."""
    if devices != {"cpu"}:
        from roboloop.run.device import check_device  # imports torch, which a sweep on CPUs does without

        for device in sorted(devices):
            check_device(device)


def _settle(known: Namespace, on_gpu: bool, num_runs: int | None) -> tuple[JobEngine, list[Slot], str]:
    """Return what starts the runs, where there is room for them, and that in words."""
    if known.on == HERE:
        machine = discover()
        slots = make_slots(machine, known.slots, known.cores_per_run, on_gpu, num_runs)
        return Local(), slots, describe(machine, slots)
    for name in ("slots", "cores_per_run"):
        if getattr(known, name) is not None and getattr(known, name) < 1:
            raise ConfigError("--slots and --cores-per-run must be at least 1")
    engine: OnRay | OnSlurm
    if known.on == "ray" or known.on.startswith(SCHEME):
        from roboloop.launch.on_ray import OnRay

        engine = OnRay(known.on.removeprefix("ray") and known.on, known.cores_per_run or 1, on_gpu, known.memory_mb)
    elif known.on.partition(":")[0] == "slurm":
        from roboloop.launch.on_slurm import OnSlurm

        needs = (known.cores_per_run or 1, known.memory_mb, known.timeout_s)
        engine = OnSlurm(known.on.partition(":")[2], *needs)
    else:
        raise ConfigError(f"--on {known.on}: runs are started on local, ray, ray://HOST:PORT or slurm[:PARTITION]")
    slots = engine.slots(known.slots, num_runs)
    return engine, slots, engine.describe(slots)


def launch(jobs: Iterable[Job], slots: list[Slot], rules: Rules, engine: JobEngine | None = None) -> int:
    """Bring runs to their end."""
    live: list[Job] = []
    waiting: list[Job] = []
    counts: Counter[str] = Counter()
    for job in jobs:
        job.take_requeue()  # whoever wanted it again has it now
        if job.is_live():
            live.append(job)
        elif job.is_done():
            counts["done"] += 1
        else:
            waiting.append(job)
    if counts["done"]:
        _say(f"{counts['done']} of {counts['done'] + len(live) + len(waiting)} runs are done already")
    return conclude(Launcher(Queue(waiting), slots, rules, _say, counts, engine), live)


def stop(args: list[str]) -> int:
    """Let runs save and end; those of a sweep stay so until they are requeued."""
    options = Options(prog="roboloop stop", allow_abbrev=False)
    options.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="runs; a whole sweep by its directory")
    left = False
    for path in options.parse_args(args).runs:
        launchers = {sweep: found for sweep in plan.sweeps_at(path) if (found := plan.launcher_of(sweep))}
        for sweep, launcher in launchers.items():  # first, or they would start others
            _tell(f"{sweep}: {end_launcher(sweep, launcher)}")
            left = left or not launcher.is_here
        if path in launchers:
            continue
        planned = {job.path: job for job in plan.jobs_at(path)}
        known = planned | {info.path: Job(info.path) for info in find_runs(path) if info.path not in planned}
        jobs = [job for job in known.values() if not launchers.keys() & set(job.path.parents)]
        single = plan.sweep_of(path) is not None
        for job in jobs or ([] if launchers else [_unknown(path)]):
            if job.path in planned and single and not job.is_done():
                job.hold()  # of a sweep as a whole nothing is held: its command goes on with it
            ended = job.send(signal.SIGTERM)
            _tell(f"{job}: {told(job, ended)}")
            left = left or (not ended and is_left_running(job))
    return DataError.exit_code if left else 0


def requeue(args: list[str]) -> int:
    """Let runs of a sweep be started again that were stopped or failed."""
    options = Options(prog="roboloop requeue", allow_abbrev=False)
    options.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    from roboloop.launch.search import finished_trials

    over, refused = functools.cache(finished_trials), False
    for path in options.parse_args(args).runs:
        jobs = plan.jobs_at(path)
        if not jobs:
            what = "is of no sweep: roboloop train --resume RUN goes on with it" if find_runs(path) else "is no run"
            raise DataError(f"{path} {what}")
        for job in jobs:
            if job.is_done():
                _tell(f"{job}: is done")
                continue
            around = plan.sweep_of(job.path)
            assert around is not None
            if job.path.relative_to(around).parts[0] in over(around):
                refused = True
                _tell(f"{job}: its trial is over; a larger --trials asks for more")
                continue
            job.requeue()
            turn = "starts in its turn" if plan.launcher_of(around) else f"starts with: {plan.command_of(around)}"
            _tell(f"{job}: {turn}")
    return DataError.exit_code if refused else 0


def tail(args: list[str]) -> int:
    """Print the last lines of what a run said."""
    options = Options(prog="roboloop tail", allow_abbrev=False)
    options.add_argument("run", type=Path, metavar="RUN")
    options.add_argument("--lines", type=int, default=20, metavar="N")
    options.add_argument("--follow", action="store_true", help="and what it says from now on, until Ctrl-C")
    known = options.parse_args(args)
    job = Job(known.run)
    # one started by hand said it to its terminal
    file = job.log if os.path.lexists(job.log) else known.run / "metrics.jsonl"
    if not os.path.lexists(file):
        raise DataError(f"{known.run} has said nothing{'' if job.path.exists() else ': there is no such run'}")
    with open_regular(file) as log:
        lines = _last_lines(log)
        _pour(b"".join(lines[-known.lines :] if known.lines > 0 else []))
        try:
            while known.follow:
                _pour(log.read(_TAIL_BYTES >> 5))
                time.sleep(_TAIL_S)
        except KeyboardInterrupt:
            return 0
    return 0


def _last_lines(log: BinaryIO) -> list[bytes]:
    """Return the last lines of a log, and no more of it than is worth reading."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
    return [_shortened(line) for line in log.read(_TAIL_BYTES).splitlines(keepends=True)]


def _shortened(line: bytes) -> bytes:
    return line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + "…\n".encode()


def _pour(data: bytes) -> None:
    """Print what a run said, as text: it may hold what a terminal would obey."""
    print(printable(data.decode(errors="replace"), keep="\n\t"), end="", flush=True)


def _tell(line: str) -> None:
    print(printable(line))


def _sweep_options() -> Options:
    options = Options(prog="roboloop sweep", allow_abbrev=False)
    add = options.add_argument
    options.usage = "roboloop sweep FILE|RECIPE [--axis KEY VALUE...]... [--seeds S...] [options] [--KEY VALUE]..."
    options.epilog = "All other flags are config keys, as roboloop train has them; they hold for every variant."
    add("--config", type=Path, help="a config file as the base")
    add("--name", help="of the sweep: runs are in RUNS_DIR/NAME/VARIANT/TASK/SEED")
    add("--axis", nargs="+", action="append", default=[], metavar=("KEY", "VALUE"), help="a config key and its values")
    add("--seeds", nargs="+", type=int, metavar="S")
    add("--on", default=HERE, metavar="WHERE", help="local, ray://HOST:PORT, or slurm[:PARTITION] (extras: ray, slurm)")
    add("--slots", type=int, metavar="N", help="runs at a time; as many as there are cores")
    add("--cores-per-run", type=int, metavar="C")
    add("--retries", type=int, default=Rules.retries, metavar="K", help="starts after a failure")
    add("--fail-fast", type=int, default=Rules.fail_fast, metavar="K", help="start no more once the first K runs die")
    add("--timeout-s", type=float, default=Rules.timeout_s, metavar="S", help="longest time of one begun start")
    add("--memory-mb", type=int, default=Rules.memory_mb, metavar="MB", help="most memory of one run")
    add("--silent-s", type=float, default=Rules.silent_s, metavar="S", help="a run that is silent for so long hangs")
    add("--search", choices=("optuna",), help="look for good settings instead of trying all (extra: search)")
    add("--trials", type=int, metavar="N", help="settings to try in a search")
    add("--dry-run", action="store_true", help="check everything and list the runs")
    return options


def _sweep(source: str | None, known: Namespace, flags: list[str], options: Options) -> Sweep:
    """Return what the arguments ask for."""
    if source is not None and source.endswith(FILES):
        if known.config:
            raise ConfigError("--config is for a sweep by flags: a sweep file names its base")
        wanted = read_sweep(Path(source))
    else:
        base = base_config(source, known.config, None)
        wanted = Sweep(f"{base.experiment}-sweep", base)
    for flag in [f.split("=")[0] for f in flags if f.startswith("--")]:
        if flag in ("--seed", "--experiment"):
            raise ConfigError(f"{flag} is for one run: a sweep has {'--seeds' if flag == '--seed' else '--name'}")
    if flags:
        wanted = replace(wanted, base=config_of(wanted.base, flags, options.names))
    axes = _axes(known.axis, wanted.base)
    seeds = read_seeds(known.seeds) if known.seeds else wanted.seeds
    return replace(wanted, axes={**wanted.axes, **axes}, seeds=seeds, name=known.name or wanted.name)


def _axes(given: list[list[str]], base: Experiment) -> dict[str, list[Any]]:
    axes: dict[str, list[Any]] = {}
    for words in given:
        key = spelled(words[0])
        if key in axes:
            raise ConfigError(f"--axis {words[0]} is given twice: one --axis takes all its values")
        axes[key] = _values(words, is_text(base, key))
    return axes


def _values(words: list[str], is_text: bool) -> list[Any]:
    """Return the values of an axis as YAML reads them; where the key takes text, off and 1 are words."""
    import yaml

    if len(words) < 2:
        raise ConfigError(f"--axis {words[0]} needs values")
    try:
        read = [(word, yaml.safe_load(word)) for word in words[1:]]
        return [word if is_text and isinstance(value, bool | int | float) else value for word, value in read]
    except (yaml.YAMLError, ValueError):  # the latter of dates that there are not, and of numbers without end
        raise ConfigError(f"--axis {words[0]}: {' '.join(words[1:])!r} cannot be read") from None


def _unknown(path: Path) -> Job:
    raise DataError(f"no runs at {path}")


def _say(line: str) -> None:
    try:
        print(printable(line), flush=True)
    except OSError:  # whoever read it has gone: the runs go on
        sys.stdout = open("/dev/null", "w")  # noqa: SIM115
