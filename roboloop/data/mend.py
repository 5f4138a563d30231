"""An index that lost lines is rebuilt: its sound lines, and whole episodes that the shards' labels speak of."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roboloop.core.errors import DataError
from roboloop.core.files import open_regular, remove, replace_durable, take_lock
from roboloop.data.aside import MARK, AsideMark, Span, copy_aside, unclaimed
from roboloop.data.episodes import Schema
from roboloop.data.index import INDEX, Entry, EpisodeCatalog, line_of, read_index, read_schema, scan, shard_path
from roboloop.data.labels import find_episodes, read_parts


class Mended(NamedTuple):
    """What was done to an index."""

    damaged: list[int]
    """Numbers of the lines that were not sound."""
    found: list[int]
    """Episodes that were read back from the shards."""
    aside: int
    """Bytes of shards that were copied aside."""


def write_index(directory: Path, records: Iterable[dict[str, Any]]) -> AsideMark:
    """Write an index anew; readers notice that it is another file."""
    data = b"".join(map(line_of, records))
    mark = AsideMark(len(data), zlib.crc32(data))
    remove(directory / MARK)  # first: an index that does not fit its mark is taken for lost
    replace_durable(directory / INDEX, data)
    mark.write(directory)
    return mark


def mend_index(directory: Path) -> Mended:
    """Rebuild an index that is not what was committed; nobody else may write. What stays unclaimed is copied aside."""
    schema = read_schema(directory)
    with take_lock(directory, "written by"):
        data = read_index(directory)
        mark, found = AsideMark.read(directory), scan(data, schema)
        if not found.damaged and (mark is None or mark.fits(data)):
            return Mended([], [], 0)  # the writer takes up what was appended and not committed
        catalog = EpisodeCatalog()
        catalog.apply(found.records)
        evicted = {number for record in found.records if record["kind"] == "evict" for number in record["ids"]}
        whole = [entry for entry in catalog.entries.values() if _is_whole(directory, entry)]
        again = read_back(directory, unclaimed(directory, whole), schema, catalog, evicted)
        entries = [entry for _, entry in sorted({**catalog.entries, **{entry.id: entry for entry in again}}.items())]
        if data:
            copy_aside(directory, directory / INDEX, 0, len(data))
        left = unclaimed(directory, entries)
        for span in left:
            copy_aside(directory, shard_path(directory, span.shard), span.begin, span.end)
        mended = EpisodeCatalog()
        mended.next_id, mended.next_shard, mended.notes = catalog.next_id, catalog.next_shard, catalog.notes
        mended.apply({"kind": "episode", "entry": entry} for entry in entries)
        write_index(directory, mended.records())
        return Mended(found.damaged, [entry.id for entry in again], sum(span.end - span.begin for span in left))


def read_back(
    directory: Path, spans: Iterable[Span], schema: Schema, catalog: EpisodeCatalog, gone: Collection[int]
) -> list[Entry]:
    """Return the whole episodes in bytes that no line refers to, which are neither gone nor elsewhere, by id."""
    by_id: dict[int, Entry] = {}
    others: list[Entry] = []
    for span in spans:
        with open_regular(shard_path(directory, span.shard)) as file:
            for entry in find_episodes(file.fileno(), span.shard, (span.begin, span.end), schema):
                known = by_id.get(entry.id) or catalog.entries.get(entry.id)
                if known is not None and not np.array_equal(known.parts, entry.parts):
                    others.append(entry)
                elif entry.id not in catalog.entries or not _is_whole(directory, catalog.entries[entry.id]):
                    by_id[entry.id] = entry  # of one that is there twice the later: it was moved
    found = [entry for number, entry in sorted(by_id.items()) if number not in gone]
    next_id = max([catalog.next_id, *(entry.id + 1 for entry in found)])
    free = (entry for entry in others if entry.id not in gone)
    found += [entry._replace(id=next_id + n) for n, entry in enumerate(free)]
    return _newest(found, catalog)


def _is_whole(directory: Path, entry: Entry) -> bool:
    try:
        with open_regular(shard_path(directory, entry.shard)) as file:
            return read_parts(file.fileno(), entry) is not None
    except (FileNotFoundError, DataError):
        return False


def _newest(found: list[Entry], catalog: EpisodeCatalog) -> list[Entry]:
    """Leave out what training rolled back and recorded again in a later segment of the run."""
    last: dict[tuple[int, int, float], int] = {}
    for entry in [*catalog.entries.values(), *found]:
        last[_name(entry)] = max(entry.facts.segment, last.get(_name(entry), entry.facts.segment))
    return [entry for entry in found if entry.facts.segment >= last[_name(entry)]]


def _name(entry: Entry) -> tuple[int, int, float]:
    """Return what an episode has in common with its repetition after a resume; the key follows from the run's seed."""
    return entry.facts.env, entry.facts.episode, entry.facts.key
