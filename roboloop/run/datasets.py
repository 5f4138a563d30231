"""The verb ``dataset``: look at, verify, mend, join, thin out and exchange what was recorded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from roboloop.core.errors import ConfigError, DataError, nearest
from roboloop.core.fields import pictures_in
from roboloop.core.files import disk_errors, is_regular, staged
from roboloop.core.options import Options
from roboloop.core.text import printable
from roboloop.core.types import Array
from roboloop.data.dataset import LABEL_FAULT, Dataset
from roboloop.data.episodes import Schema
from roboloop.data.index import SCHEMA, SHARDS
from roboloop.data.mend import mend_index
from roboloop.data.store import StoreWriter
from roboloop.data.verify import check_index, faults
from roboloop.run.exchange import FORMATS, export, import_
from roboloop.track.stats import spearman
from roboloop.track.terminal import count, number

_COMMIT_EPISODES = 64
_SHOWN = 10
_BARS, _BAR_WIDTH = 10, 40
_LARGEST_RETURN = 1e300
_SHEET = (6, 8)  # rows and columns of pictures


def dataset(args: list[str]) -> int:
    """Run one of the verbs on datasets."""
    if not args or args[0] in ("-h", "--help"):
        print("usage: roboloop dataset VERB DIR [...]\n")
        print("\n".join(f"  {name:<7} {about}" for name, (_, about) in VERBS.items()))
        return 0
    if args[0] not in VERBS:
        raise ConfigError(f"unknown verb 'dataset {args[0]}'{nearest(args[0], VERBS)}")
    try:
        return VERBS[args[0]][0](args[1:])
    except MemoryError:
        raise DataError(f"dataset {args[0]}: there is not enough memory") from None


def info(args: list[str]) -> int:
    """Say what is in a dataset."""
    options = _options("info")
    options.add_argument("--sheet", type=Path, metavar="FILE.png", help="write pictures of some steps")
    known = options.parse_args(args)
    data = Dataset.open(known.directory)
    print("\n".join(map(printable, _about(data))))
    if known.sheet:
        print(f"sheet: {_write_sheet(data, known.sheet)}")
    return 0


def _about(data: Dataset) -> Iterable[str]:
    spec, table = data.schema.spec, data.table
    size, live = disk_bytes(data.directory), int(table["bytes"].sum())
    dead = disk_bytes(data.directory / SHARDS) - live
    per_step = f", {live / data.num_steps:.0f} bytes/step" if data.num_steps else ""
    evicted = f", {count(dead)}B of it of evicted or unfinished episodes" if dead > 0 else ""
    yield f"{data.directory}: {data.schema.env_id}, {len(data)} episodes, {data.num_steps} steps"
    yield f"disk      {count(size)}B{evicted}{per_step}, codec {data.schema.codec}"
    shape = "x".join(map(str, spec.obs_shape)) or "record"
    fields = f" of {', '.join(spec.obs_dtype.names)}" if spec.obs_dtype.names else f" {spec.obs_dtype}"
    yield f"contents  observations {shape}{fields}; actions {spec.action_dim}, choices {list(spec.action_choices)}"
    if not len(data):
        return
    returns, versions = table["episode_return"], table["version_last"]
    for task in sorted(set(table["task"])):
        of_task = table["task"] == task
        mean = number(returns[of_task].mean())
        yield f"task      {task}: {of_task.sum()} episodes, {table['length'][of_task].sum()} steps, mean return {mean}"
    points = np.quantile(returns, (0, 0.1, 0.5, 0.9, 1))
    labels = ("min", "p10", "p50", "p90", "max")
    yield "return    " + "  ".join(f"{n} {number(v)}" for n, v in zip(labels, points, strict=True))
    yield from _histogram(returns)
    yield f"versions  {table['version_first'].min()} to {versions.max()}"
    yield f"order     Spearman correlation of policy version and return {number(spearman(versions, returns))}"
    known = table["success"][~np.isnan(table["success"])]
    yield f"success   {f'{known.mean():.0%} of {len(known)} episodes' if len(known) else 'not said'}"
    for note in data.notes:
        yield f"note      {json.dumps(note)}"


def disk_bytes(directory: Path) -> int:
    """Return the size of all files of a dataset."""
    return sum(path.lstat().st_size for path in directory.rglob("*") if is_regular(path))


def _histogram(values: Array) -> Iterable[str]:
    values = values[np.abs(values) < _LARGEST_RETURN]
    if not len(values):
        return
    counts, edges = np.histogram(values, bins=_BARS)
    for size, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
        bar = "#" * -(-int(size) * _BAR_WIDTH // int(counts.max()))
        yield f"  {number(low):>8} to {number(high):>8}  {bar:<{_BAR_WIDTH}}  {size}"


def _write_sheet(data: Dataset, path: Path) -> Path:
    from roboloop.track.sheet import write_sheet

    wanted = _SHEET[0] * _SHEET[1]
    rows = np.unique(np.linspace(0, len(data) - 1, wanted).astype(int)) if len(data) else np.zeros(0, int)
    pictures: list[Array] = []
    for row in rows.tolist():
        obs = _pictures(data.schema, data.episode(row).obs)
        share = -(-wanted // len(rows))
        pictures += list(obs[np.linspace(0, len(obs) - 1, share).astype(int)])
    return write_sheet(pictures[:wanted], path, _SHEET[1])


def _pictures(schema: Schema, obs: Array) -> Array:
    """Return the first field of observations that is a picture, ``[N, C, H, W]``."""
    found = pictures_in(obs)
    if not found:
        raise DataError(f"the observations of {schema.env_id} are not pictures: there is no sheet to draw")
    return next(iter(found.values()))


def verify(args: list[str]) -> int:
    """Read every byte; damage is one line and exit code 2."""
    known = _options("verify").parse_args(args)
    data = Dataset.open(known.directory, whole=False)
    said = check_index(data)
    found = list(faults(data))
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        advice = f"roboloop dataset repair {known.directory} takes out what is damaged"
        raise DataError(f"{known.directory} is damaged: episode {found[0].id}: {found[0].what}{more}; {advice}")
    print(printable(f"{known.directory}: {len(data)} episodes, {data.num_steps} steps, all sound{said}"))
    return 0


def repair(args: list[str]) -> int:
    """Rebuild a damaged index and take out damaged episodes; nothing recorded is deleted, it goes to ``aside/``."""
    known = _options("repair").parse_args(args)
    for line in _mend(known.directory):
        print(printable(line))
    return 0


def _mend(directory: Path) -> Iterator[str]:
    mended = mend_index(directory)
    yield from (f"dropped index line {line}" for line in mended.damaged)
    if mended.found:
        yield f"read back from the shards: {_listed(mended.found)}"
    data = Dataset.open(directory)
    with StoreWriter(directory, data.schema) as writer:
        held = len(data)
        data.refresh()
        if len(data) > held:
            yield f"read back from the shards: {_listed(data.table['id'][held:].tolist())}"
        found = list(faults(data))
        writer.relocate([fault.id for fault in found if fault.what == LABEL_FAULT])
        lost = [fault for fault in found if fault.what != LABEL_FAULT]
        writer.keep_aside([fault.id for fault in lost])
        yield from (f"dropped episode {fault.id}: {fault.what}" for fault in lost)
        writer.evict([fault.id for fault in lost])
    data.refresh()
    yield f"{directory}: {len(data)} episodes, {data.num_steps} steps, all sound{check_index(data)}"


def _listed(ids: list[int]) -> str:
    shown = ", ".join(map(str, ids[:_SHOWN]))
    return f"{len(ids)} episodes ({shown}{', ...' if len(ids) > _SHOWN else ''})"


def merge(args: list[str]) -> int:
    """Write the episodes of several datasets into a new one."""
    options = Options(prog="roboloop dataset merge", allow_abbrev=False)
    options.add_argument("out", type=Path)
    options.add_argument("directories", nargs="+", type=Path, metavar="DIR")
    known = options.parse_args(args)
    sources = [Dataset.open(directory) for directory in known.directories]
    first = sources[0].schema
    for source in sources[1:]:
        # how they are compressed may differ: such episodes are decoded and encoded anew
        alike = dataclasses.replace(source.schema, codec=first.codec, chunk_rows=first.chunk_rows)
        difference = alike.difference(first)
        if difference:
            raise DataError(f"{source.directory} does not fit to {sources[0].directory}: its {difference}")
    return _write(known.out, [(source, np.arange(len(source))) for source in sources])


def filter_(args: list[str]) -> int:
    """Write some of a dataset's episodes into a new one."""
    options = _options("filter")
    options.add_argument("out", type=Path)
    options.add_argument("--min-return", type=float, metavar="X")
    options.add_argument("--max-return", type=float, metavar="X")
    options.add_argument("--success-only", action="store_true")
    options.add_argument("--task")
    options.add_argument("--top-percent", type=float, metavar="P", help="of the episodes that are left, by return")
    options.add_argument("--every", type=int, default=1, metavar="K", help="keep one in K of those that are left")
    known = options.parse_args(args)
    if known.every < 1:
        raise ConfigError(f"--every must be at least 1, not {known.every}")
    if known.top_percent is not None and not 0 < known.top_percent <= 100:
        raise ConfigError(f"--top-percent must be above 0 and at most 100, not {known.top_percent:g}")
    data = Dataset.open(known.directory)
    table, keep = data.table, np.ones(len(data), bool)
    if known.task is not None:
        tasks = sorted(set(table["task"]))
        if known.task not in tasks:
            raise ConfigError(f"{known.directory} has no task {known.task!r}{nearest(known.task, tasks)}")
        keep &= table["task"] == known.task
    if known.success_only:
        keep &= table["success"] > 0
    if known.min_return is not None:
        keep &= table["episode_return"] >= known.min_return
    if known.max_return is not None:
        keep &= table["episode_return"] <= known.max_return
    rows = np.flatnonzero(keep)
    if known.top_percent is not None:
        best_first = rows[np.argsort(-table["episode_return"][rows], kind="stable")]
        rows = np.sort(best_first[: int(np.ceil(len(rows) * known.top_percent / 100))])
    return _write(known.out, [(data, rows[:: known.every])])


def _write(out: Path, sources: list[tuple[Dataset, Array]]) -> int:
    """Copy episodes into a new dataset."""
    if (out / SCHEMA).exists():
        raise DataError(f"{out} is already a dataset: nothing was changed")
    if not sum(len(rows) for _, rows in sources):
        raise DataError(f"no episode is left: {out} was not written")
    schema = sources[0][0].schema
    with disk_errors(str(out), "nothing is left of it; free space and try again"), staged(out) as target:
        _copy_all(target, schema, sources)
    written = Dataset.open(out)
    print(printable(f"{out}: {len(written)} episodes, {written.num_steps} steps"))
    return 0


def _copy_all(target: Path, schema: Schema, sources: list[tuple[Dataset, Array]]) -> None:
    with StoreWriter(target, schema) as writer:
        for data, rows in sources:
            writer.note({"copied_from": str(data.directory), "episodes": len(rows), "source": data.schema.source})
            for done, row in enumerate(rows.tolist(), 1):
                _copy(data, row, writer)
                if done % _COMMIT_EPISODES == 0:
                    writer.commit()


def _copy(data: Dataset, row: int, writer: StoreWriter) -> None:
    facts = data.entry(row).facts
    if (data.schema.codec, data.schema.chunk_rows) == (writer.schema.codec, writer.schema.chunk_rows):
        writer.adopt(data.parts(row), facts)
    else:
        writer.append(data.episode(row), facts)


def _options(verb: str) -> Options:
    options = Options(prog=f"roboloop dataset {verb}", allow_abbrev=False)
    options.add_argument("directory", type=Path, metavar="DIR")
    return options


def _names(way: str) -> str:
    return "|".join(name for name, format_ in FORMATS.items() if getattr(format_, way))


VERBS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "info": (info, "DIR: what is in it; --sheet FILE.png shows pictures"),
    "verify": (verify, "DIR: read every byte, exit code 2 if anything is damaged"),
    "repair": (repair, "DIR: rebuild the index, take out what is damaged; its bytes go to DIR/aside"),
    "merge": (merge, "OUT DIR...: join datasets of the same environment"),
    "filter": (filter_, "DIR OUT: keep some episodes, by return, success, task, or one in K"),
    "export": (export, f"DIR OUT --format {_names('write')}"),
    "import": (import_, f"PATH OUT --format {_names('read')} [--env ID]"),
}
