"""A disk that is full, fails or is read-only at one call: one line, exit code 5, nothing lost, and it works again.

All calls of all verbs: ``roboloop bench disk-faults``.
"""

import errno
import os
import shutil

import pytest

from roboloop.cli import main
from roboloop.core.state import equal
from roboloop.track.trackers.tensorboard import TensorBoard
from tests.data.kit import fill
from tests.faults.kill_and_resume import remains
from tests.mirrored import points, tracked

FLAGS = (
    "--env gym/Pendulum-v1 --env.max-episode-steps 20 --env.eval-max-episode-steps 20"
    " --algo ppo --algo.rollout-steps 20 --algo.hidden 8 8 --algo.epochs 1 --algo.minibatches 1 --algo.processes 1"
    " --log-every-steps 20 --trackers --checkpoint.every-steps 40 --eval.every-steps 40 --eval.episodes 1"
    " --steps 80 --experiment run"
).split()
CALLS = ("open", "write", "fsync", "replace", "rename", "mkdir", "ftruncate")


class FailingDisk:
    """Counts calls on files below a directory, and lets one of them fail."""

    def __init__(self, monkeypatch, root):
        self.root, self.number, self.error, self.count = str(root), 0, 0, 0
        for name in CALLS:
            monkeypatch.setattr(os, name, self._watched(getattr(os, name)))

    def _watched(self, real):
        def call(first, *args, **kwargs):
            path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else os.path.abspath(first)
            is_harmless = real.__name__ == "open" and not args[0] & (os.O_WRONLY | os.O_RDWR)
            is_harmless |= real.__name__ == "mkdir" and os.path.exists(first)  # EEXIST on any disk
            if path.startswith(self.root) and not is_harmless:
                self.count += 1
                if self.count == self.number:
                    raise OSError(self.error, os.strerror(self.error), path)
            return real(first, *args, **kwargs)

        return call

    def fails_at(self, number, error):
        self.number, self.error, self.count = number, error, 0

    def works(self):
        self.number = 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing disturbed."""
    root = tmp_path_factory.mktemp("whole")
    assert main(["train", *FLAGS, "--runs-dir", str(root)]) == 0
    return root / "run" / "Pendulum-v1" / "0"


@pytest.fixture
def disk(monkeypatch, tmp_path):
    return FailingDisk(monkeypatch, tmp_path)


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "runs" / "run" / "Pendulum-v1" / "0")


def one_line(capsys):
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


def calls_of(disk, words):
    """Count what a command does when nothing fails."""
    disk.fails_at(0, 0)
    assert main(words) == 0
    return disk.count


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_training_whose_disk_fails_says_so_in_one_line_and_goes_on_to_the_same_bits(
    disk, whole, tmp_path, capsys, error
):
    words = ["train", *FLAGS, "--runs-dir", str(tmp_path / "new")]
    calls = calls_of(disk, ["train", *FLAGS, "--runs-dir", str(tmp_path / "clean")])
    first = 1 + error % 3  # others for each error, to be quick
    for number in (first, calls // 2 + first, calls - 5 - first):
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        disk.fails_at(number, error)
        capsys.readouterr()
        assert main(words) == 5, number
        assert "disk" in one_line(capsys)
        disk.works()
        assert main([*words, "--resume"]) == 0
        assert equal(remains(tmp_path / "new" / "run" / "Pendulum-v1" / "0"), remains(whole)), number


def test_the_end_of_a_run_is_not_passed_over_when_its_status_cannot_be_written(disk, tmp_path, capsys):
    words = ["train", *FLAGS, "--eval.episodes", "0", "--runs-dir"]
    calls = calls_of(disk, [*words, str(tmp_path / "clean")])
    codes = []
    for number in range(calls - 4, calls + 1):
        disk.fails_at(number, errno.EIO)
        codes.append(main([*words, str(tmp_path / str(number))]))
        status = (tmp_path / str(number) / "run" / "Pendulum-v1" / "0" / "status.json").read_text()
        assert codes[-1] == (0 if '"done"' in status else 5)
    assert 5 in codes


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("eval {run} --episodes 2 --seed 3", (1, 2)),
        ("train --fork {run} --at 80 --steps 100 --experiment fork --runs-dir {out}", (1, 4, 8, 12, 16)),
        ("record {run} --episodes 2 --out {out}/data", (1, 3, 6, 9)),
        ("export {run} --frozen {out}/policy.safetensors", (1, 3)),
        ("report {run} --out {out}/report.html", (1,)),
    ],
)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_other_verbs_end_with_one_line_and_the_same_command_then_works(
    disk, run, tmp_path, capsys, words, numbers, error
):
    (tmp_path / "out").mkdir()
    words = words.format(run=run, out=tmp_path / "out").split()
    for number in numbers:
        disk.fails_at(number, error)
        capsys.readouterr()
        assert main(words) == 5, number
        assert "disk" in one_line(capsys)
    disk.works()
    code = main(words)
    if code == 3:  # a fork that failed when it was a run already
        code = main(["train", "--resume", str(tmp_path / "out" / "fork" / "Pendulum-v1" / "0")])
    assert code == 0


@pytest.fixture
def unreadable(monkeypatch):
    """Let the disk fail where files of a name are opened to read."""
    names, real = [], os.open

    def call(path, flags, *args, **kwargs):
        if any(str(path).endswith(name) for name in names) and not flags & (os.O_WRONLY | os.O_RDWR | os.O_DIRECTORY):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", call)
    return names


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "manifest.json", "state.safetensors"])
def test_a_disk_that_does_not_give_back_what_a_resume_needs_is_one_line_and_moves_no_checkpoint(
    unreadable, run, capsys, name
):
    words = ["train", "--resume", str(run), "--steps", "120"]
    before = sorted(path.name for path in (run / "checkpoints").iterdir())
    unreadable.append(name)
    capsys.readouterr()
    assert main(words) == 5
    assert name in one_line(capsys)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == before
    unreadable.clear()
    assert main(words) == 0


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("plot {run} --out {out}/curve.png", "metrics.jsonl"),
        ("eval {run} --episodes 2 --seed 3", "config.yaml"),
        ("dataset info {out}/data", "schema.json"),
        ("dataset verify {out}/data", "index.log"),
    ],
)
def test_a_disk_that_cannot_be_read_is_exit_code_5_for_who_only_looks(unreadable, run, tmp_path, capsys, words, name):
    fill(tmp_path / "data", range(2))
    unreadable.append(name)
    capsys.readouterr()
    assert main(words.format(run=run, out=tmp_path).split()) == 5
    assert "Input/output error" in one_line(capsys)


def test_a_recorder_that_cannot_begin_for_the_disk_is_exit_code_5(tmp_path, capsys):
    runs = tmp_path / "run" / "Pendulum-v1" / "0"
    runs.mkdir(parents=True)
    words = ["train", *FLAGS, "--runs-dir", str(tmp_path), "--record.keep", "all", "--record.min-free-mb", "0"]
    import roboloop.data.recorder as recorder

    class Full(recorder.Child):
        def __init__(self, name, entry, fds):
            super().__init__(name, "tests.faults.test_disk_errors:full_writer", fds)

    recorder.Child, real = Full, recorder.Child
    try:
        assert main(words) == 5
    finally:
        recorder.Child = real
    assert "disk full" in one_line(capsys)


def full_writer(channel, memory_fd):
    """A writer of a dataset in whose directory there is no room."""
    from roboloop.data import recorder_process

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.mkdir = full
    recorder_process.main(channel, memory_fd)


def test_events_before_a_full_disk_can_be_read(disk, tmp_path):
    tracker = TensorBoard()
    tracker.open(tracked(tmp_path))
    tracker.write(10, {"x": 1.0})
    disk.fails_at(1, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        tracker.write(20, {"x": 2.0})
    disk.works()
    tracker.close()
    assert points(tmp_path / "events") == {"x": [(10, 1.0)]}


def test_training_whose_mirror_fails_goes_on(disk, whole, tmp_path, capsys, monkeypatch):
    real = os.open

    def no_events(path, *args, **kwargs):
        if "tfevents" in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", no_events)
    assert main(["train", *FLAGS, "--trackers", "tensorboard", "--runs-dir", str(tmp_path)]) == 0
    said = "".join(capsys.readouterr())
    assert said.count("tracker tensorboard failed in write and is dropped: disk failed; training goes on\n") == 1
    assert equal(remains(tmp_path / "run" / "Pendulum-v1" / "0"), remains(whole))
