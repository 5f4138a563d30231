"""Which modules of the working directory may be imported."""

import importlib.util
import sys

import pytest

from roboloop.core.vouched import check_code, find_typed_modules, for_children, of_parent, vouched


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in ("mine", "yours", "json"):
        (tmp_path / f"{name}.py").write_text("SPEC = 1\n")
    find_typed_modules()
    yield tmp_path
    vouched.take([])


@pytest.mark.parametrize(
    "words", [["mine:SPEC"], ["--env=mine:SPEC/reach"], ["gym/mine:Env"], ["gym/mine.envs:Env-v0"]]
)
def test_one_that_was_typed_is_found(here, words):
    assert importlib.util.find_spec("mine") is None
    vouched.take(words)
    assert importlib.util.find_spec("yours") is None
    assert importlib.util.find_spec("mine").origin == str(here / "mine.py")


@pytest.mark.parametrize("words", [["mine"], ["runs/mine"], ["ray://mine:6379"], ["--trust"], ["C:mine"]])
def test_a_word_that_names_no_code_finds_none(here, words):
    vouched.take(words)
    assert importlib.util.find_spec("mine") is None


def test_what_it_imports_is_found_beside_it_from_then_on(here):
    vouched.take(["mine:SPEC"])
    assert importlib.util.find_spec("yours") is None
    importlib.util.find_spec("mine")
    assert importlib.util.find_spec("yours").origin == str(here / "yours.py")
    assert importlib.util.find_spec("json").origin != str(here / "json.py")


def test_a_child_process_finds_the_same(here, monkeypatch):
    vouched.take(["mine:SPEC"])
    importlib.util.find_spec("mine")
    for name, value in for_children().items():
        monkeypatch.setenv(name, value)
    vouched.take([])
    of_parent()
    assert importlib.util.find_spec("yours").origin == str(here / "yours.py")  # it may be asked for first


def test_one_that_a_trusted_file_names_is_found(here):
    vouched.take(["eval", "run", "--trust"])
    check_code("algo.name", "mine:SPEC", ["mine"])
    assert importlib.util.find_spec("mine").origin == str(here / "mine.py")


def test_a_directory_that_is_called_like_one_finds_none(here):
    (here / "mine:x").mkdir()
    vouched.take(["eval", "mine:x"])
    assert importlib.util.find_spec("mine") is None


def test_what_is_installed_goes_before_it(here):
    vouched.take(["json:loads"])
    assert importlib.util.find_spec("json").origin != str(here / "json.py")
