"""Crashes, damage, full disks and readers that look on: no committed episode is lost, and damage is never read."""

import errno
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from roboloop.core.errors import DataError, DiskError
from roboloop.data.dataset import Dataset
from roboloop.data.store import StoreWriter
from roboloop.data.verify import faults
from tests.data.kit import episode_of, fill, numbers_in, same, schema_of
from tests.faults.test_disk_full import can_mount, small_disk

KILLS = int(os.environ.get("ROBOLOOP_KILLS", "5"))
WRITER = """
import sys
from pathlib import Path
from tests.data.kit import *

writer = StoreWriter(Path(sys.argv[1]), schema_of("pictures"), shard_bytes=20_000)
number = int(writer.live["step"].max()) // 10 + 1 if len(writer.live["id"]) else 0
while True:
    writer.append(*episode_of(number, kind="pictures"))
    if number % 3 == 2:
        writer.commit()
        print(number, flush=True)  # promised: everything up to here that was not evicted
    if number % 11 == 10:
        writer.evict([int(n) for n in writer.live["id"] if n % 4 and n < number - 30])
    if number % 37 == 36:
        writer.compact(int(0.9 * writer.disk_bytes))
    number += 1
"""


def test_kill_9_at_random_moments_loses_nothing_that_was_committed(tmp_path):
    draw = random.Random(1)
    directory = tmp_path / "data"
    promised = -1
    for _ in range(KILLS):
        command = [sys.executable, "-c", WRITER, str(directory)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stderr is not None
        promised = int(process.stdout.readline() or process.stderr.read())
        time.sleep(draw.uniform(0, 0.4))
        process.send_signal(signal.SIGKILL)
        promised = max([promised, *map(int, process.stdout.read().split())])
        process.wait()
        process.stdout.close()
        process.stderr.close()
        data = Dataset.open(directory)
        assert list(faults(data)) == []
        found = numbers_in(data)
        # ids are numbers here: those that may have been evicted are known
        expected = {n for n in range(promised + 1) if n % 4 == 0 or n >= promised - 20}
        assert expected <= set(found)
        data.close()
    with StoreWriter(directory, schema_of("pictures")) as writer:
        referred = sum((directory / "shards" / name).stat().st_size for name in os.listdir(directory / "shards"))
        assert referred <= writer.disk_bytes


def test_a_torn_index_tail_that_was_never_committed_is_dropped(tmp_path):
    fill(tmp_path, range(6), shard_bytes=1 << 20)
    index = tmp_path / "index.log"
    whole = index.read_bytes()
    line = whole.splitlines(keepends=True)[-1]
    for cut in (1, len(line) // 2, len(line) - 1):
        index.write_bytes(whole + line[:-cut])
        assert numbers_in(Dataset.open(tmp_path)) == list(range(6))
    StoreWriter(tmp_path, schema_of()).close()
    assert index.read_bytes() == whole
    data = Dataset.open(tmp_path)
    last = data.entry(5)
    assert (tmp_path / "shards" / "000000.bin").stat().st_size == last.offset + last.size
    assert numbers_in(data) == list(range(6))


def test_an_index_that_was_cut_is_refused_by_readers_and_writers_and_nothing_is_cut_further(tmp_path):
    fill(tmp_path, range(6), shard_bytes=1 << 20)
    index, shard = tmp_path / "index.log", tmp_path / "shards" / "000000.bin"
    whole, bytes_of_shard = index.read_bytes(), shard.read_bytes()
    lines = whole.splitlines(keepends=True)
    for cut in (1, len(lines[-1]) // 2, len(lines[-1]), len(whole) // 2, len(whole)):
        index.write_bytes(whole[:-cut])
        with pytest.raises(
            DataError, match="lines that were committed are missing or changed; roboloop dataset repair"
        ):
            Dataset.open(tmp_path)
        with pytest.raises(
            DataError, match="lines that were committed are missing or changed; roboloop dataset repair"
        ):
            StoreWriter(tmp_path, schema_of())
        assert index.read_bytes() == whole[:-cut]
        assert shard.read_bytes() == bytes_of_shard


def test_whole_episodes_that_were_not_committed_are_taken_up_by_the_next_writer(tmp_path):
    fill(tmp_path, range(2))
    index, mark = (tmp_path / "index.log").read_bytes(), (tmp_path / "index.mark").read_bytes()
    fill(tmp_path, range(2, 9))
    (tmp_path / "index.log").write_bytes(index)
    (tmp_path / "index.mark").write_bytes(mark)
    assert numbers_in(Dataset.open(tmp_path)) == [0, 1]
    StoreWriter(tmp_path, schema_of()).close()
    data = Dataset.open(tmp_path)
    assert numbers_in(data) == list(range(9))
    assert data.table["id"].tolist() == list(range(9))


def test_shard_bytes_that_no_line_refers_to_are_removed(tmp_path):
    fill(tmp_path, range(2))
    (tmp_path / "shards" / "000007.bin").write_bytes(b"never committed")
    with open(tmp_path / "shards" / "000000.bin", "ab") as file:
        file.write(b"torn")
    assert numbers_in(Dataset.open(tmp_path)) == [0, 1]
    before = (tmp_path / "shards" / "000000.bin").stat().st_size
    StoreWriter(tmp_path, schema_of()).close()
    assert [p.name for p in (tmp_path / "shards").iterdir()] == ["000000.bin"]
    assert (tmp_path / "shards" / "000000.bin").stat().st_size == before - 4
    assert numbers_in(Dataset.open(tmp_path)) == [0, 1]


@pytest.mark.parametrize("place", [0, 0.3, 0.6, 0.999])
def test_a_flipped_byte_in_a_shard_names_the_episode(tmp_path, place):
    fill(tmp_path, range(6), kind="records", shard_bytes=1 << 20)
    data = Dataset.open(tmp_path)
    path = tmp_path / "shards" / "000000.bin"
    content = bytearray(path.read_bytes())
    at = int(place * len(content))
    content[at] ^= 4
    path.write_bytes(content)
    data = Dataset.open(tmp_path)
    (hit,) = [e.id for e in map(data.entry, range(6)) if e.offset <= at < e.offset + e.size]
    with pytest.raises(DataError, match=f"episode {hit} is damaged: the checksum of"):
        data.episode(hit)
    assert [fault.id for fault in faults(data)] == [hit]


def test_a_flipped_byte_in_the_index_is_found_wherever_it_is(tmp_path):
    fill(tmp_path, range(3))
    index = tmp_path / "index.log"
    whole = index.read_bytes()
    for place in range(0, len(whole) - 1, 13):
        content = bytearray(whole)
        content[place] ^= 1
        index.write_bytes(content)
        with pytest.raises(DataError, match=r"index.log is damaged in line \d"):
            Dataset.open(tmp_path)
        with pytest.raises(DataError, match=r"index.log is damaged in line \d"):
            StoreWriter(tmp_path, schema_of())


def test_a_missing_shard_is_named_and_does_not_hide_the_others(tmp_path):
    fill(tmp_path, range(12), shard_bytes=1500)
    (tmp_path / "shards" / "000001.bin").unlink()
    data = Dataset.open(tmp_path)
    gone = [e.id for e in map(data.entry, range(12)) if e.shard == 1]
    assert [(fault.id, fault.what) for fault in faults(data)] == [(n, "000001.bin is missing") for n in gone]
    assert same(data.episode(0), episode_of(0)[0])


def test_compacting_drops_what_is_damaged_and_says_so(tmp_path):
    fill(tmp_path, range(6), shard_bytes=1 << 20)
    entry = Dataset.open(tmp_path).entry(3)
    with open(tmp_path / "shards" / "000000.bin", "r+b") as file:
        file.seek(entry.offset)
        file.write(b"\0\0\0\0\0\0\0\0")
    with StoreWriter(tmp_path, schema_of()) as writer:
        writer.evict([0])
        writer.compact(0)
    data = Dataset.open(tmp_path)
    assert numbers_in(data) == [1, 2, 4, 5]
    assert data.notes == [{"dropped_as_damaged": [3]}]


def test_a_reader_keeps_its_view_while_the_writer_grows_evicts_and_compacts(tmp_path):
    with StoreWriter(tmp_path, schema_of("pictures"), shard_bytes=20_000) as writer:
        for number in range(60):
            writer.append(*episode_of(number, kind="pictures"))
        writer.commit()
        data = Dataset.open(tmp_path)
        for number in range(60, 160):
            writer.append(*episode_of(number, kind="pictures"))
            writer.evict([number - 60] if number % 3 else [])
            writer.compact(150_000)
            writer.commit()
            if number % 20 == 0:
                assert len(numbers_in(data)) == len(data)  # all of the old view can still be read
                data.refresh()
                assert data.table["id"].tolist() == writer.live["id"].tolist()
        data.refresh()
        assert numbers_in(data) == (writer.live["step"] // 10).tolist()


def test_a_full_disk_is_one_line_and_writing_goes_on_when_there_is_room(tmp_path):
    if not can_mount(tmp_path / "probe"):
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    with small_disk(disk, 1):
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(600_000))
        with StoreWriter(disk / "data", schema_of("pictures"), shard_bytes=100_000) as writer:
            number = 0
            with pytest.raises(DiskError, match="all committed episodes are intact"):  # noqa: PT012 - when is not known
                while True:
                    writer.append(*episode_of(number, kind="pictures"))
                    writer.commit()
                    number += 1
            data = Dataset.open(disk / "data")
            assert list(range(number)) == numbers_in(data)
            data.close()  # a reader would keep what was unlinked
            ballast.unlink()
            writer.evict(range(number // 2))
            writer.append(*episode_of(number + 1, kind="pictures"))
        data = Dataset.open(disk / "data")
        assert {*range(number // 2, number), number + 1} <= set(numbers_in(data))
        assert list(faults(data)) == []
        data.close()


@pytest.mark.parametrize("call", range(1, 25, 3))
def test_a_write_that_fails_anywhere_leaves_a_sound_dataset(tmp_path, monkeypatch, call):
    real, calls = os.write, 0

    def write(fd, data):
        nonlocal calls
        calls += 1
        if calls == call:
            return real(fd, data[: len(data) // 2])  # as a disk with a little room left does
        if calls == call + 1:
            raise OSError(errno.ENOSPC, "no space left")
        return real(fd, data)

    with StoreWriter(tmp_path, schema_of(), shard_bytes=2000) as writer:
        monkeypatch.setattr(os, "write", write)
        done = []
        for number in range(8):
            try:
                writer.append(*episode_of(number))
                done.append(number)
                writer.commit()
            except DiskError:
                pass
    assert numbers_in(Dataset.open(tmp_path)) == done
    assert list(faults(Dataset.open(tmp_path))) == []
