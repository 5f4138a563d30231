from __future__ import annotations

import errno
import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roboloop.core.errors import DataError, DiskError
from roboloop.track.metrics import JsonlLog, LogMark, Meter
from roboloop.track.read import read_jsonl


def test_a_row_keeps_its_order_and_nan_and_infinity_become_null(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "m.jsonl")
    log.write({"step": 3, "b": math.nan, "a": np.float32(0.5), "c": [math.inf, np.int64(2)], "d": {"e": -math.inf}})
    row = '{"step": 3, "b": null, "a": 0.5, "c": [null, 2], "d": {"e": null}}'
    assert log.path.read_text() == f'{row[:-1]}, "crc": "{zlib.crc32(row.encode()):08x}"}}\n'
    assert log.mark().offset == log.path.stat().st_size
    assert read_jsonl(log.path) == [json.loads(row)]


def test_a_resumed_log_equals_one_that_was_never_stopped(tmp_path: Path) -> None:
    whole, cut = JsonlLog(tmp_path / "whole"), JsonlLog(tmp_path / "cut")
    for step in range(10):
        whole.write({"step": step, "x": step / 3})
    for step in range(5):
        cut.write({"step": step, "x": step / 3})
    frontier = cut.mark()
    cut.write({"step": 5, "x": 99.0})  # after the checkpoint, before the crash
    with cut.path.open("ab") as file:
        file.write(b'{"step": 6, "x"')
    resumed = JsonlLog(tmp_path / "cut")
    resumed.check(frontier)
    resumed.truncate(frontier.offset)
    for step in range(5, 10):
        resumed.write({"step": step, "x": step / 3})
    resumed.sync()
    assert resumed.path.read_bytes() == whole.path.read_bytes()


def test_truncating_to_zero_empties_the_log(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "m.jsonl")
    log.write({"step": 1})
    log.truncate(0)
    log.write({"step": 2})
    assert read_jsonl(log.path) == [{"step": 2}]


def test_a_log_shorter_than_the_checkpoint_is_refused(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "m.jsonl")
    log.write({"step": 1})
    with pytest.raises(DataError, match=r"m\.jsonl: has 31 bytes, the checkpoint was made at 500"):
        log.truncate(500)


def test_an_offset_inside_a_line_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "m.jsonl")
    log.write({"step": 1})
    with pytest.raises(DataError, match="inside a line"):
        log.truncate(5)
    assert read_jsonl(log.path) == [{"step": 1}]


def test_a_torn_tail_does_not_glue_itself_to_the_next_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "long' + b"x" * 200_000)
    log = JsonlLog(path)
    log.write({"step": 3})
    log.close()
    assert read_jsonl(path) == [{"step": 1}, {"step": 3}]


def test_a_full_disk_leaves_the_last_whole_line(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "m.jsonl")
    log.write({"step": 1})
    real: Any = log._file

    class Full:
        """Takes three bytes of a line, then has no room."""

        room = 3

        def write(self, data: memoryview) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            taken, self.room = self.room, 0
            return int(real.write(data[:taken]))

        def truncate(self, offset: int) -> None:
            real.truncate(offset)

    log._file = Full()  # type: ignore[assignment]
    with pytest.raises(DiskError, match=r"m\.jsonl"):
        log.write({"step": 2})
    assert read_jsonl(log.path) == [{"step": 1}]


def _rows(path: Path, number: int = 5) -> JsonlLog:
    log = JsonlLog(path)
    for step in range(number):
        log.write({"step": step, "x": step / 3})
    return log


def test_every_changed_digit_of_a_log_is_found(tmp_path: Path) -> None:
    log = _rows(tmp_path / "m.jsonl")
    data, mark = log.path.read_bytes(), log.mark()
    for at in [i for i, letter in enumerate(data) if chr(letter).isdecimal()]:
        other = b"7" if data[at : at + 1] != b"7" else b"3"
        log.path.write_bytes(data[:at] + other + data[at + 1 :])
        with pytest.raises(DataError, match="checksum"):
            read_jsonl(log.path)
        with pytest.raises(DataError, match="checksum"):
            log.check(mark)


def test_a_row_that_was_taken_out_or_put_elsewhere_is_found(tmp_path: Path) -> None:
    log = _rows(tmp_path / "m.jsonl")
    lines = log.path.read_bytes().splitlines(keepends=True)
    for odd in (lines[1:], [*lines[:2], *lines[3:]], [lines[1], lines[0], *lines[2:]], [*lines[:3], lines[2]]):
        log.path.write_bytes(b"".join(odd))
        with pytest.raises(DataError, match="checksum"):
            read_jsonl(log.path)


def test_a_log_that_is_not_the_one_of_a_checkpoint_is_found(tmp_path: Path) -> None:
    mark = _rows(tmp_path / "m.jsonl").mark()
    other = JsonlLog(tmp_path / "other.jsonl")
    for step in range(5):
        other.write({"step": step, "x": (step + 1) / 3})
    with pytest.raises(DataError, match=r"has \d+ bytes|inside a line|not those of the checkpoint"):
        other.check(mark)


def test_a_log_of_an_older_version_is_read_and_goes_on_with_checksums(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    log = JsonlLog(path)
    log.check(LogMark(24, None))
    log.write({"step": 3})
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}, {"step": 3}]
    path.write_text(path.read_text() + '{"step": 4}\n')
    with pytest.raises(DataError, match="no checksum"):
        read_jsonl(path)


def test_a_line_of_zeros_that_a_power_cut_left_is_cut_off(tmp_path: Path) -> None:
    log = _rows(tmp_path / "m.jsonl", 1)
    with log.path.open("ab") as file:
        file.write(bytes(40) + b"\n")
    JsonlLog(log.path).write({"step": 1})
    assert [row["step"] for row in read_jsonl(log.path)] == [0, 1]


def test_a_log_that_a_run_can_go_on_without_is_cut_as_far_as_it_goes(tmp_path: Path) -> None:
    log = _rows(tmp_path / "timing.jsonl")
    whole = log.mark().offset
    log.path.write_bytes(log.path.read_bytes()[: whole // 2])
    short = JsonlLog(log.path)
    short.cut(whole)
    short.write({"step": 9})
    assert [row["step"] for row in read_jsonl(log.path)] == [0, 1, 9]


def test_a_meter_gives_the_mean_since_the_last_flush() -> None:
    meter = Meter()
    meter.add({"loss": 1.0, "rare": 5})
    meter.add({"loss": torch.tensor(2.0, requires_grad=True)})
    assert meter.flush() == {"loss": 1.5, "rare": 5.0}
    assert meter.flush() == {}


def test_a_meter_does_not_follow_a_tensor_that_is_reused() -> None:
    meter, loss = Meter(), torch.tensor(1.0)
    meter.add({"loss": loss})
    loss.fill_(3.0)
    meter.add({"loss": loss})
    assert meter.flush() == {"loss": 2.0}


def test_a_meter_counts_booleans_of_tensors() -> None:
    meter = Meter()
    for hit in (True, True, False, True):
        meter.add({"hit": torch.tensor(hit)})
    assert meter.flush() == {"hit": 0.75}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_a_meter_survives_a_checkpoint_bit_for_bit(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    stream = [
        {"z": torch.tensor(a * 7, dtype=dtype), "a": b, "mixed": torch.tensor(c, dtype=dtype) if c > 0 else c}
        for a, b, c in rng.normal(size=(200, 3))
    ]
    whole, before, after = Meter(), Meter(), Meter()
    for row in stream:
        whole.add(row)
    for row in stream[:77]:
        before.add(row)
    # sorted keys: a checkpoint writer may choose so, and the order of names must not change with it
    after.load(json.loads(json.dumps(before.state(), sort_keys=True, allow_nan=False)))
    for row in stream[77:]:
        after.add(row)
    expected, resumed = whole.flush(), after.flush()
    assert list(resumed.items()) == list(expected.items())


def test_a_meter_with_nan_has_a_state_that_json_accepts() -> None:
    meter, other = Meter(), Meter()
    meter.add({"x": math.nan, "y": 1.0})
    other.load(json.loads(json.dumps(meter.state(), allow_nan=False)))
    other.add({"x": 1.0})
    assert math.isnan(other.flush()["x"])
