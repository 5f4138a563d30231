"""``dataset export`` and ``dataset import`` end to end, as a user types them."""

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

from roboloop.cli import main
from roboloop.core import resolve
from roboloop.data.dataset import Dataset
from roboloop.run.exchange import FORMATS, GROUP
from tests.cli.test_cli import TINY, roboloop
from tests.data.kit import fill, numbers_in

for package in ("minari", "h5py", "pyarrow"):
    pytest.importorskip(package)
OUT = {"minari": "toy-v0", "lerobot": "lerobot", "d4rl-hdf5": "file.hdf5", "npz": "file.npz"}
BC = "--steps 10 --log-every-steps 5 --eval.every-steps 0 --eval.episodes 1 --algo.processes 1 --algo.batch-size 8"


@pytest.fixture
def numbers(tmp_path):
    fill(tmp_path / "a", range(5))
    return tmp_path / "a"


def test_every_format_is_tried_here():
    assert {*OUT, "replay"} == {*FORMATS}


@pytest.mark.parametrize("name", OUT)
def test_a_dataset_goes_out_and_comes_in_again(numbers, tmp_path, name):
    done = roboloop("dataset", "export", numbers, tmp_path / "x" / OUT[name], "--format", name)
    assert done.returncode == 0, done.stderr
    assert f"5 episodes, {Dataset.open(numbers).num_steps} steps as {name}" in done.stdout
    if FORMATS[name].read:
        done = roboloop("dataset", "import", tmp_path / "x" / OUT[name], tmp_path / "b", "--format", name)
        assert done.returncode == 0, done.stderr
        assert numbers_in(Dataset.open(tmp_path / "b")) == list(range(5))
        assert "imported_from" in roboloop("dataset", "info", tmp_path / "b").stdout
        assert roboloop("dataset", "verify", tmp_path / "b").returncode == 0


@pytest.mark.parametrize("name", OUT)
def test_a_relative_path_is_as_good_as_an_absolute_one(numbers, tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["dataset", "export", "a", f"x/{OUT[name]}", "--format", name]) == 0
    if FORMATS[name].read:
        assert main(["dataset", "import", f"x/{OUT[name]}", "b", "--format", name]) == 0
        assert numbers_in(Dataset.open(tmp_path / "b")) == list(range(5))


def test_the_experience_of_a_run_is_cloned(tmp_path):
    done = roboloop("train", *TINY, "--experiment", "a", "--runs-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "a" / "InvertedPendulum-v5" / "0"
    refused = roboloop("train", "bc", "--dataset", run, "--runs-dir", tmp_path, *BC.split())
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert f"roboloop dataset import {run} OUT --format replay" in refused.stderr
    done = roboloop("dataset", "import", run, tmp_path / "out", "--format", "replay")
    assert done.returncode == 0, done.stderr
    assert "steps of episodes that had not ended" in done.stdout or Dataset.open(tmp_path / "out").num_steps == 200
    done = roboloop("train", "bc", "--dataset", tmp_path / "out", "--runs-dir", tmp_path, *BC.split())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", OUT)
def test_what_exists_is_refused_and_left_alone(numbers, tmp_path, name, capsys):
    (tmp_path / OUT[name]).write_text("mine")
    assert main(["dataset", "export", str(numbers), str(tmp_path / OUT[name]), "--format", name]) == 2
    assert "exists: nothing was changed" in capsys.readouterr().err
    assert (tmp_path / OUT[name]).read_text() == "mine"
    if FORMATS[name].read:
        assert main(["dataset", "import", str(tmp_path / "x"), str(numbers), "--format", name]) == 2
        assert "exists: nothing was changed" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["a", OUT[name]])


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["export", "a", "out", "--format", "lerobt"], "did you mean 'lerobot'?"),
        (["export", "a", "out", "--format", "replay"], "only the other way round"),
        (["import", "x", "out", "--format", "lerobot"], "only the other way round"),
        (["export", "a", "out"], "--format"),
        (["export", "nowhere", "out", "--format", "npz"], "nowhere is not a dataset"),
        (["export", "a", "out", "--format", "npz", "--fps", "9"], "--fps is not for format 'npz'"),
        (["export", "a", "out", "--format", "lerobot", "--fps", "0"], "--fps must be at least 1"),
        (["import", "nowhere", "out", "--format", "replay"], "nowhere is not a run directory"),
        (["import", "a", "out", "--format", "replay", "--env", "gym/CartPole-v1"], "--env is not for"),
        (["import", "nowhere", "out", "--format", "npz", "--emv", "x"], "did you mean '--env'?"),
    ],
)
def test_bad_input_is_one_line(numbers, args, hint, capsys, monkeypatch):
    monkeypatch.chdir(numbers.parent)
    assert main(["dataset", *args]) == 2
    said = capsys.readouterr().err
    assert hint in said
    assert said.count("\n") == 1
    assert [path.name for path in numbers.parent.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("name", "package"),
    [("minari", "minari"), ("minari", "h5py"), ("d4rl-hdf5", "h5py"), ("lerobot", "pyarrow")],
)
def test_a_missing_package_is_one_line_that_names_the_extra(numbers, tmp_path, name, package, capsys, monkeypatch):
    for module in [m for m in sys.modules if m.startswith("roboloop.exchange.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["dataset", "export", str(numbers), str(tmp_path / OUT[name]), "--format", name]) == 2
    said = capsys.readouterr().err
    assert said == f"roboloop: format {name!r} needs {package}: pip install 'roboloop[interchange]'\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_empty_dataset_is_not_written(tmp_path, capsys):
    fill(tmp_path / "a", range(0))
    assert main(["dataset", "export", str(tmp_path / "a"), str(tmp_path / "f"), "--format", "npz"]) == 2
    assert "has no episodes" in capsys.readouterr().err


PAGE = (Path(__file__).parents[2] / "docs" / "interchange.md").read_text()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Formats of a package of its own, with entry points as an installation has them."""
    (tmp_path / "formats_pkg").mkdir()
    (tmp_path / "formats_pkg" / "csv_format.py").write_text(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1])
    monkeypatch.syspath_prepend(tmp_path)
    real = metadata.entry_points
    wanted = {"csv": "formats_pkg.csv_format:FORMAT", "odd": "formats_pkg.csv_format:write", "gone": "nowhere:FORMAT"}
    points = metadata.EntryPoints(metadata.EntryPoint(name, path, GROUP) for name, path in wanted.items())
    monkeypatch.setattr(resolve.metadata, "entry_points", lambda **g: points if g == {"group": GROUP} else real(**g))
    resolve.entry_points.cache_clear()
    yield
    resolve.entry_points.cache_clear()


def test_the_format_of_the_page_is_written_by_its_entry_point(numbers, tmp_path, installed, capsys):
    assert main(["dataset", "export", str(numbers), str(tmp_path / "out.csv"), "--format", "csv"]) == 0
    head, *lines = (tmp_path / "out.csv").read_text().splitlines()
    assert head == "episode,step,reward,action"
    assert len(lines) == Dataset.open(numbers).num_steps
    assert "5 episodes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verb", "name", "said"),
    [
        ("export", "odd", "format 'odd' must be a Format, not function"),
        ("export", "gone", "format 'nowhere:FORMAT': there is no module 'nowhere'"),
        ("import", "csv", "format 'csv' works only the other way round"),
        ("export", "cvs", "unknown format 'cvs'; did you mean 'csv'?"),
    ],
)
def test_what_is_wrong_with_a_format_of_a_package_is_one_line(numbers, tmp_path, installed, capsys, verb, name, said):
    assert main(["dataset", verb, str(numbers), str(tmp_path / "out"), "--format", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
