import numpy as np
import pytest

from roboloop.core.errors import DataError
from roboloop.data.journal import START, Journal, copy, read


def write(directory, values, segment_bytes=1 << 20, at=START):
    journal = Journal(directory, segment_bytes, at)
    for value in values:
        journal.append({"x": np.full(10, value)}, {"value": value})
    frontier = journal.commit()
    journal.close()
    return frontier


def values(directory, frontier):
    return [info["value"] for _, info in read(directory, frontier)]


def test_records_come_back_in_order_over_sealed_files(tmp_path):
    frontier = write(tmp_path, range(20), segment_bytes=500)
    assert frontier.segment > 3
    assert values(tmp_path, frontier) == list(range(20))


def test_a_journal_goes_on_at_its_frontier(tmp_path):
    first = write(tmp_path, range(3), segment_bytes=500)
    second = write(tmp_path, range(3, 9), segment_bytes=500, at=first)
    assert values(tmp_path, second) == list(range(9))
    assert values(tmp_path, first) == [0, 1, 2]


def test_what_lies_beyond_the_frontier_is_moved_aside_not_deleted(tmp_path):
    first = write(tmp_path, range(3), segment_bytes=500)
    size = sum(p.stat().st_size for p in tmp_path.glob("*.rlj"))
    write(tmp_path, range(3, 9), segment_bytes=500, at=first)
    beyond = sum(p.stat().st_size for p in tmp_path.glob("*.rlj")) - size
    again = write(tmp_path, [7], segment_bytes=500, at=first)
    assert values(tmp_path, again) == [0, 1, 2, 7]
    assert sum(p.stat().st_size for p in (tmp_path / "beyond").iterdir()) == beyond


@pytest.mark.parametrize("place", [0, 5, 20, 60, -1])
def test_a_flipped_byte_is_found(tmp_path, place):
    frontier = write(tmp_path, range(3))
    path = tmp_path / "seg-00000.rlj"
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="damaged"):
        values(tmp_path, frontier)


def test_a_torn_or_missing_file_is_found(tmp_path):
    frontier = write(tmp_path, range(3))
    path = tmp_path / "seg-00000.rlj"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match="damaged"):
        values(tmp_path, frontier)
    path.unlink()
    with pytest.raises(DataError, match="missing"):
        values(tmp_path, frontier)


def test_a_copy_ends_at_the_frontier(tmp_path):
    first = write(tmp_path / "a", range(3), segment_bytes=500)
    write(tmp_path / "a", range(3, 9), segment_bytes=500, at=first)
    copy(tmp_path / "a", tmp_path / "b", first)
    assert values(tmp_path / "b", first) == [0, 1, 2]
    assert write(tmp_path / "b", [3], segment_bytes=500, at=first).records == 4
