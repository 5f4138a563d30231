"""Trackers that are slow, hang or break: training is never delayed without a word, and never ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from roboloop.core.errors import ConfigError, DiskError
from roboloop.core.files import RESUME
from roboloop.track.metrics import JsonlLog
from roboloop.track.trackers import mirrors
from roboloop.track.trackers.mirrors import Mirrors
from tests.mirrored import tracked
from tests.own import own_s


class Listener:
    """Remembers its calls, and the threads that they came from."""

    def __init__(self):
        self.calls, self.threads = [], set()

    def _note(self, *call):
        self.calls.append(call)
        self.threads.add(threading.current_thread())

    def open(self, run):
        self._note("open", run.name)

    def write(self, step, row):
        self._note("write", step, dict(row))

    def close(self):
        self._note("close")


class Hanging(Listener):
    """Waits in one of its calls until it may go on."""

    def __init__(self, where):
        super().__init__()
        self.where, self.go_on = where, threading.Event()

    def _note(self, *call):
        super()._note(*call)
        if call[0] == self.where:
            self.go_on.wait(60)


class Broken(Listener):
    def __init__(self, where, error):
        super().__init__()
        self.where, self.error = where, error

    def _note(self, *call):
        super()._note(*call)
        if call[0] == self.where:
            raise self.error


@pytest.fixture
def log(tmp_path: Path) -> Iterator[JsonlLog]:
    log = JsonlLog(tmp_path / "metrics.jsonl")
    yield log
    log.close()


def mirrored(log: JsonlLog, tracker) -> Mirrors:
    return Mirrors({"it": tracker}, tracked(log.path.parent), log.path)


def write(log: JsonlLog, to: Mirrors, *steps: int) -> None:
    for step in steps:
        log.write({"step": step, "x": step / 2})
        to.advance(log.mark().offset)


def closed(trackers: Mirrors) -> list[str]:
    said: list[str] = []
    trackers.close(said.append)
    return said


@contextmanager
def patience(monkeypatch, **seconds: float) -> Iterator[None]:
    with monkeypatch.context() as patch:
        for name, value in seconds.items():
            patch.setattr(mirrors, name, value)
        yield


def test_all_calls_come_from_one_thread_in_the_order_of_the_log_with_its_finite_numbers(log):
    tracker = Listener()
    log.write({"step": 1, "x": 0.1 + 0.2, "none": float("nan"), "word": "text", "many": [1, 2]})
    log.write({"step": 1, "word": "text"})
    trackers = mirrored(log, tracker)
    trackers.begin(log.mark().offset)
    write(log, trackers, 2, 3)
    assert closed(trackers) == []
    rows = [("write", 1, {"x": 0.1 + 0.2}), ("write", 2, {"x": 1.0}), ("write", 3, {"x": 1.5})]
    assert tracker.calls == [("open", "sac/reach-v3/0"), *rows, ("close",)]
    (thread,) = tracker.threads
    assert thread is not threading.current_thread()


def test_what_is_beyond_the_end_of_the_log_is_not_mirrored(log):
    log.write({"step": 1, "x": 0})
    end = log.mark().offset
    log.write({"step": 2, "x": 0})
    tracker = Listener()
    trackers = mirrored(log, tracker)
    trackers.begin(end)
    assert closed(trackers) == []
    assert [call[1] for call in tracker.calls if call[0] == "write"] == [1]


def test_a_tracker_that_hangs_is_named_once_delays_no_row_and_misses_none_when_it_goes_on(log, monkeypatch):
    tracker = Hanging("write")
    trackers = mirrored(log, tracker)
    trackers.begin(0)
    with patience(monkeypatch, BEHIND_S=0.05):
        began_s = own_s()
        write(log, trackers, *range(100))
        assert own_s() - began_s < 5  # not one of the minutes that it hangs
        time.sleep(0.1)
        said = trackers.messages() + trackers.messages()
    assert said == ["tracker it is behind: 0% of the metrics are mirrored; training does not wait"]
    tracker.go_on.set()
    assert closed(trackers) == []
    assert [call[1] for call in tracker.calls if call[0] == "write"] == list(range(100))


def test_a_tracker_that_hangs_in_open_is_named_and_training_begins_without_it(log, monkeypatch):
    tracker = Hanging("open")
    trackers = mirrored(log, tracker)
    with patience(monkeypatch, OPEN_S=0.05):
        trackers.begin(0)
        assert trackers.messages() == ["tracker it is not open after 0.05 s; training does not wait"]
    write(log, trackers, 1)
    tracker.go_on.set()
    assert closed(trackers) == []
    assert ("write", 1, {"x": 0.5}) in tracker.calls


def test_what_is_refused_too_late_drops_the_tracker_with_a_line(log, monkeypatch):
    class Late(Hanging):
        def _note(self, *call):
            super()._note(*call)
            if call[0] == "open":
                raise ConfigError("no account")

    tracker = Late("open")
    trackers = mirrored(log, tracker)
    with patience(monkeypatch, OPEN_S=0.05):
        trackers.begin(0)
    tracker.go_on.set()
    assert closed(trackers)[1:] == ["tracker it failed in open and is dropped: no account; training goes on"]


@pytest.mark.parametrize("where", ["write", "close"])
def test_the_end_of_a_run_waits_for_a_tracker_that_hangs_but_not_for_ever(log, monkeypatch, where):
    tracker = Hanging(where)
    trackers = mirrored(log, tracker)
    trackers.begin(0)
    write(log, trackers, 1)
    with patience(monkeypatch, BEHIND_S=0.5, CLOSE_S=1.0):
        said = closed(trackers)
    share = "0%" if where == "write" else "100%"
    assert said[:2] == [
        f"waiting for tracker it: {share} of the metrics are mirrored",
        f"tracker it hangs in {where} and is left behind: {share} of the metrics are mirrored",
    ]
    tracker.go_on.set()


@pytest.mark.parametrize("where", ["open", "write"])
@pytest.mark.parametrize("error", [RuntimeError("no\nnetwork"), SystemExit(3)])
def test_a_tracker_that_breaks_is_dropped_with_one_line_that_names_the_place(log, where, error):
    tracker, other = Broken(where, error), Listener()
    trackers = Mirrors({"it": tracker, "other": other}, tracked(log.path.parent), log.path)
    trackers.begin(0)
    write(log, trackers, 1, 2)
    (said,) = closed(trackers)
    assert said.startswith(f"tracker it failed in {where} and is dropped: {type(error).__name__} at ")
    assert "test_mirrors.py:" in said
    assert said.endswith("; training goes on")
    assert "\n" not in said
    assert [call[0] for call in tracker.calls] == ["open", "write", "close"][: 3 if where == "write" else 1]
    assert [call[0] for call in other.calls] == ["open", "write", "write", "close"]


def test_what_the_user_must_change_ends_the_command_before_training(log):
    trackers = mirrored(log, Broken("open", ConfigError("no account")))
    with pytest.raises(ConfigError, match="no account"):
        trackers.begin(0)
    assert closed(trackers) == []


def test_a_disk_that_is_full_at_the_beginning_drops_the_tracker_and_not_the_run(log):
    trackers = mirrored(log, Broken("open", DiskError(f"disk full while writing events: {RESUME}")))
    trackers.begin(0)
    (said,) = closed(trackers)
    assert said == "tracker it failed in open and is dropped: disk full while writing events; training goes on"


def test_a_tracker_that_fails_in_close_is_named(log):
    trackers = mirrored(log, Broken("close", OSError(28, "No space left on device")))
    trackers.begin(0)
    assert closed(trackers) == ["tracker it failed in close and is dropped: disk full"]


def test_a_run_that_ends_before_its_trackers_are_opened_closes_without_a_word(log):
    tracker = Listener()
    assert closed(mirrored(log, tracker)) == []
    assert tracker.calls == []
