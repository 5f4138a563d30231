"""Each of our trackers by itself: what its viewer reads, a second start, and files that are not ours."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from roboloop.core.errors import ConfigError, DataError, MissingExtra
from roboloop.track.trackers import registry
from roboloop.track.trackers.tensorboard import TensorBoard
from roboloop.track.trackers.tracker import Tracker
from roboloop.track.trackers.trackio import Trackio
from roboloop.track.trackers.wandb import Wandb
from tests.mirrored import points, tracked, trackio_rows, wait_for_wandb_steps, wandb_rows


@contextmanager
def opened(tracker: Tracker, run: Path) -> Iterator[Tracker]:
    tracker.open(tracked(run))
    try:
        yield tracker
    finally:
        tracker.close()


@contextmanager
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail if anything is sent to where this machine's way out is said to be."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0.2)
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield
        with pytest.raises(TimeoutError):
            proxy.accept()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "sac" / "reach-v3" / "0"
    path.mkdir(parents=True)
    return path


def test_tensorboard_reads_what_was_written(run: Path) -> None:
    with opened(TensorBoard(), run) as tracker:
        tracker.write(10, {"eval/return": 1.5})
        tracker.write(20, {"eval/return": 2.5, "eval/success": 1.0})
    assert points(run / "events") == {"eval/return": [(10, 1.5), (20, 2.5)], "eval/success": [(20, 1.0)]}


def test_a_run_without_rows_leaves_no_events(run: Path) -> None:
    with opened(TensorBoard(), run):
        pass
    assert not list(run.iterdir())


def test_a_second_start_leaves_no_event_twice_and_touches_no_file_of_others(run: Path) -> None:
    foreign = run / "events" / "events.out.tfevents.1.someone"
    with opened(TensorBoard(), run) as crashed:
        for step in range(0, 60, 10):
            crashed.write(step, {"x": float(step)})
    foreign.touch()
    with opened(TensorBoard(), run) as resumed:
        for step in range(0, 50, 10):
            resumed.write(step, {"x": -float(step)})
    assert points(run / "events") == {"x": [(step, -float(step)) for step in range(0, 50, 10)]}
    assert foreign.exists()
    assert len(list(foreign.parent.iterdir())) == 2


def test_wandb_offline_writes_each_step_once_over_two_starts_without_touching_the_network(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    with no_network(monkeypatch):
        with opened(Wandb(), run) as tracker:
            for step in (10, 20, 30):
                tracker.write(step, {"eval/return": float(step)})
        wait_for_wandb_steps(run, [10, 20, 30])
        time.sleep(1.1)  # W&B names its folders by the second
        with opened(Wandb(), run) as tracker:
            for step in (10, 20, 30, 40):
                tracker.write(step, {"eval/return": -float(step)})
    wait_for_wandb_steps(run, [10, 20, 30, 40])
    (folder,) = (run / "wandb").glob("offline-run-*")
    assert folder.name.endswith((run / "wandb" / "id.txt").read_text())


def test_an_evaluation_that_comes_after_later_steps_is_not_lost_in_wandb(run: Path) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    with opened(Wandb(), run) as tracker:
        tracker.write(100, {"train/return": 1.0})
        tracker.write(200, {"train/return": 2.0})
        tracker.write(100, {"eval/return": 7.0})
    wait_for_wandb_steps(run, [100, 200])
    _, last = wandb_rows(run)[-1]
    assert (last["eval/return"], last["eval/step"], last["train/return"]) == ("7", "100", "2")


def test_trackio_keeps_each_step_once_over_two_starts_without_touching_the_network(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trackio", reason="the extra trackio is not installed")
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    other = tmp_path / "elsewhere" / "0"
    other.mkdir(parents=True)
    with no_network(monkeypatch):
        with opened(Trackio(), other) as tracker:
            tracker.write(10, {"eval/return": 0.0})
        for steps in ((10, 20, 30), (10, 20, 30, 40)):
            with opened(Trackio(), run) as tracker:
                for step in steps:
                    tracker.write(step, {"eval/return": float(step)})
    ids = [(path / "trackio" / "id.txt").read_text() for path in (other, run)]
    assert trackio_rows("roboloop", "sac/reach-v3/0") == {ids[0]: [10], ids[1]: [10, 20, 30, 40]}


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_missing_package_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"^tracker {name} needs {name}: pip install 'roboloop\[{name}\]'$"):
        registry.make([name])


@pytest.mark.parametrize("act", ["open", "write"])
def test_events_are_never_written_or_deleted_through_a_link(tmp_path: Path, run: Path, act: str) -> None:
    victim, tracker = tmp_path / "victim", TensorBoard()
    victim.mkdir()
    (victim / "events.out.tfevents.1.roboloop").write_text("precious")
    if act == "write":
        tracker.open(tracked(run))
    (run / "events").symlink_to(victim)
    with pytest.raises(DataError, match="symbolic link"):
        tracker.open(tracked(run)) if act == "open" else tracker.write(1, {"x": 1.0})
    assert [path.read_text() for path in victim.iterdir()] == ["precious"]


@pytest.mark.parametrize(
    "odd", ["folder", "id", "long id", "id that is a path", "settings", "settings here", "hidden settings here", "FIFO"]
)
@pytest.mark.parametrize("kind", [Wandb, Trackio])
def test_odd_files_of_a_tracker_in_a_run_are_refused(
    tmp_path: Path, run: Path, kind: type[Tracker], odd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = kind.__name__.lower()
    pytest.importorskip(name, reason=f"the extra {name} is not installed")
    victim, folder = tmp_path / "victim", run / name
    victim.mkdir()
    (victim / "id.txt").write_text("abc")
    if odd == "folder":
        folder.symlink_to(victim)
    else:
        folder.mkdir()
    if odd == "id":
        (folder / "id.txt").symlink_to(victim / "id.txt")
    elif odd == "long id":
        (folder / "id.txt").write_text("a" * 10_000)
    elif odd == "id that is a path":
        (folder / "id.txt").write_text("../../*")
    elif "settings" in odd:  # W&B reads them in the working directory: they may name another server
        if kind is not Wandb:
            pytest.skip("only W&B reads settings")
        monkeypatch.chdir(tmp_path)
        place = {"settings": folder, "settings here": Path("wandb"), "hidden settings here": Path(".wandb")}[odd]
        place.mkdir(exist_ok=True)
        (place / "settings").write_text("[default]\nbase_url = http://127.0.0.1:9\n")
    elif odd == "FIFO":
        os.mkfifo(folder / "id.txt")
    with pytest.raises(DataError):
        kind().open(tracked(run))
    assert [path.name for path in victim.iterdir()] == ["id.txt"]


class NotOpen:
    def write(self, step, row):
        pass

    def close(self):
        pass


class NeedsWords(TensorBoard):
    def __init__(self, words):
        pass


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["tensorbord"],
            r"unknown tracker 'tensorbord'; did you mean 'tensorboard'\? \(known: tensorboard, wandb, trackio",
        ),
        (["none"], "for none, give --trackers without a name"),
        (["wandb", "wandb"], "tracker 'wandb' is named twice"),
        (["roboloop.core.child:subprocess.Popen"], "module roboloop.core.child has no 'subprocess.Popen'"),
        (["no_such_package:X"], "tracker 'no_such_package:X': there is no module 'no_such_package'"),
        ([f"{__name__}:NotThere"], "has no 'NotThere'"),
        ([f"{__name__}:NotOpen"], r"has no open\(\): a tracker is a class with open, write, close"),
        (["os:abort"], "is no class: a tracker is a class with"),
        ([f"{__name__}:NeedsWords"], r"cannot be made: TypeError.*missing 1 required positional argument: 'words'"),
    ],
)
def test_a_name_that_cannot_be_used_is_one_line(names: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        registry.make(names)
    assert re.search(message, str(error.value))
    assert "\n" not in str(error.value)


def test_a_plug_in_names_its_tracker_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"sqlite": "outside.tracker:SQLite", "wandb": "other:Thing"}
    monkeypatch.setattr(registry, "entry_points", lambda group: found if group == "roboloop.trackers" else {})
    assert type(registry.make(["sqlite"])["sqlite"]).__module__ == "outside.tracker"
    assert registry.known() == ["tensorboard", "wandb", "trackio", "sqlite"]  # ours keep their names
    assert registry.path_of("wandb").startswith("roboloop.")
