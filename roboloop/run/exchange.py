"""The verbs ``dataset export`` and ``dataset import``: one table of formats, whole or not at all."""

from __future__ import annotations

import dataclasses
import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from roboloop.core.config import to_dict
from roboloop.core.errors import ConfigError, DataError, nearest, needs_extra
from roboloop.core.files import disk_errors, staged
from roboloop.core.options import Options
from roboloop.core.resolve import entry_points, load_named, resolve
from roboloop.data import journal
from roboloop.data.assembly import raw_bytes
from roboloop.data.dataset import Dataset
from roboloop.data.episodes import Schema
from roboloop.data.experience import Streams
from roboloop.data.store import StoreWriter
from roboloop.exchange.source import EpisodeFile

EXTRA = "interchange"
_PACKAGES = {"minari", "h5py", "pyarrow"}
_COMMIT_EPISODES = 64
_HDF5_BYTES = 1 << 16
"""Upper bound of what HDF5 itself takes for an episode: 33 kB in 12 arrays were seen."""
_ADVICE = "nothing is left of it; free space and try again"


class Format(NamedTuple):
    """How a format is written and read: functions, or their ``module:function``; empty where it is not."""

    write: Callable[..., None] | str
    """``write(dataset, target)``: the episodes of a ``Dataset`` into a file or directory that does not exist yet."""
    read: Callable[[str, str | None], AbstractContextManager[EpisodeFile]] | str
    """``with read(path, env_id) as file``: an ``EpisodeFile``; ``env_id`` is what ``--env`` says."""
    options: tuple[str, ...] = ()
    """Of ``write``."""
    hdf5_copies: int = 0
    """How often HDF5 holds each observation; 0 = it is not HDF5."""


FORMATS = {
    "minari": Format("roboloop.exchange.minari:write", "roboloop.exchange.minari:read", hdf5_copies=1),
    "lerobot": Format("roboloop.exchange.lerobot:write", "", ("fps",)),
    "d4rl-hdf5": Format("roboloop.exchange.flat:write_hdf5", "roboloop.exchange.flat:read_hdf5", hdf5_copies=2),
    "npz": Format("roboloop.exchange.flat:write_npz", "roboloop.exchange.flat:read_npz"),
    "replay": Format("", "roboloop.run.exchange:read_replay"),
}
GROUP = "roboloop.formats"
"""Entry points by which an installed package brings formats: each names a ``Format``."""


def find(name: str) -> Format:
    """Return a format: ours, or a plug-in's."""
    if name in FORMATS:
        return FORMATS[name]
    found = load_named(entry_points(GROUP)[name], "format")
    if not isinstance(found, Format):
        raise ConfigError(f"format {name!r} must be a Format, not {type(found).__name__}")
    return found


def names(way: str) -> list[str]:
    """Return the formats that can be written, or read; a plug-in that is broken is named when it is asked for."""
    found = [name for name, format_ in FORMATS.items() if getattr(format_, way)]
    for name in entry_points(GROUP).keys() - FORMATS.keys():
        with suppress(ConfigError):
            found += [name] if getattr(find(name), way) else []
    return found


def export(args: list[str]) -> int:
    """Write a dataset in another format."""
    writable = names("write")
    options = Options(prog="roboloop dataset export", allow_abbrev=False)
    options.add_argument("directory", type=Path, metavar="DIR")
    options.add_argument("out", type=Path, metavar="OUT")
    options.add_argument("--format", required=True, metavar="|".join(writable))
    options.add_argument("--fps", type=int, metavar="N", help="lerobot: steps per second, for its timestamps")
    known = options.parse_args(args)
    name = _known(known.format, writable)
    given = {} if known.fps is None else {"fps": known.fps}
    format_ = find(name)
    for option in given:
        if option not in format_.options:
            raise ConfigError(f"--{option} is not for format {name!r}")
    data = Dataset.open(known.directory)
    if not len(data):
        raise DataError(f"{known.directory} has no episodes: {known.out} was not written")
    with needs_extra(f"format {name!r}", _PACKAGES, EXTRA), disk_errors(str(known.out), _ADVICE):
        write = resolve(format_.write)
        with staged(known.out) as target:
            _check_room(data, target, format_)
            write(data, target, **given)
    print(f"{known.out}: {len(data)} episodes, {data.num_steps} steps as {name}")
    return 0


def _check_room(data: Dataset, target: Path, format_: Format) -> None:
    """Look for room before HDF5 is asked to write: on a full disk its library (2.0) ends the process."""
    if not format_.hdf5_copies:
        return
    raw = int(raw_bytes(data.schema.spec, data.table["length"]).sum())
    most, free = format_.hdf5_copies * raw + _HDF5_BYTES * (len(data) + 1), shutil.disk_usage(target.parent).free
    if free < most:
        raise OSError(errno.ENOSPC, f"{most} bytes may be needed, {free} are free")


def import_(args: list[str]) -> int:
    """Make a dataset of one of another format, or of a run's replay journal."""
    readable = names("read")
    options = Options(prog="roboloop dataset import", allow_abbrev=False)
    options.add_argument("path", metavar="PATH", help="a file, a directory, the id of a Minari dataset, or a run")
    options.add_argument("out", type=Path, metavar="OUT")
    options.add_argument("--format", required=True, metavar="|".join(readable))
    options.add_argument("--env", metavar="ID", help="environment, where the data does not name it")
    known = options.parse_args(args)
    name = _known(known.format, readable)
    with needs_extra(f"format {name!r}", _PACKAGES, EXTRA), disk_errors(str(known.out), _ADVICE):
        read = resolve(find(name).read)
        with staged(known.out) as target, read(known.path, known.env) as source:
            _store(source, target, known.env, {"imported_from": str(known.path), "format": name})
    written = Dataset.open(known.out)
    print(f"{known.out}: {len(written)} episodes, {written.num_steps} steps")
    for what, number in source.left_out.items():
        print(f"left out or altered: {number} {what}")
    return 0


def _store(source: EpisodeFile, target: Path, env_id: str | None, note: dict[str, Any]) -> None:
    schema = source.schema if env_id is None else dataclasses.replace(source.schema, env_id=env_id)
    count = 0
    with StoreWriter(target, schema) as writer:
        for episode, facts in source.episodes:
            writer.append(episode, facts)
            count += 1
            if count % _COMMIT_EPISODES == 0:
                writer.commit()
        writer.note({**note, "left_out_or_altered": dict(source.left_out)})
    if not count:
        left_out = "".join(f"; {number} {what}" for what, number in source.left_out.items())
        raise DataError(f"{note['imported_from']} has no whole episode{left_out}")


@contextmanager
def read_replay(path: str, env_id: str | None) -> Iterator[EpisodeFile]:
    """Read the replay journal of a run, up to its newest sound checkpoint."""
    from roboloop.run.build import spec_of
    from roboloop.run.rundir import RunDir

    if env_id is not None:
        raise ConfigError("--env is not for format 'replay': the run says which environment it is of")
    run = RunDir.open(Path(path))
    newest = next(run.newest_checkpoints(print), None)
    if newest is None or not newest.journal.records:
        why = "has no checkpoint yet" if newest is None else "keeps no replay journal: record it with --record.keep"
        raise DataError(f"{path} {why}")
    cfg = run.config
    source = {"experiment": cfg.experiment, "algo": cfg.algo.name, "seed": cfg.seed, "env": to_dict(cfg.env)}
    schema = Schema.of(cfg.env.id, spec_of(cfg), source)
    streams = Streams(schema.task, cfg.seed)
    yield EpisodeFile(schema, streams.episodes(journal.read(run.journal, newest.journal)), streams.left_out)


def _known(name: str, here: list[str]) -> str:
    if name in here:
        return name
    if name in FORMATS or name in entry_points(GROUP):
        find(name)  # says what is wrong with a plug-in's
        raise ConfigError(f"format {name!r} works only the other way round (here: {', '.join(here)})")
    raise ConfigError(f"unknown format {name!r}{nearest(name, here)} (known: {', '.join(here)})")
