"""What takes minutes shows on a terminal how far it is; its output, and what goes to a pipe, stay as they are."""

from __future__ import annotations

import io
import sys

import pytest

from roboloop import cli
from roboloop.track import terminal
from tests.run.helpers import train
from tests.track.test_terminal import Terminal


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stream: io.StringIO, *args: str) -> str:
    """Run a verb with this standard error; return its output."""
    monkeypatch.setattr(terminal, "_LIVE_EVERY_S", 0.0)
    monkeypatch.setattr(sys, "stderr", stream)
    capsys.readouterr()
    assert cli.main(args) == 0
    return capsys.readouterr().out


def test_an_evaluation_shows_how_far_it_is(tiny, monkeypatch, capsys) -> None:
    path = str(train(tiny(steps=100, eval={"episodes": 0})))
    screen, pipe = Terminal(), io.StringIO()
    watched = run(monkeypatch, capsys, screen, "eval", path, "--episodes", "20", "--name", "a")
    unseen = run(monkeypatch, capsys, pipe, "eval", path, "--episodes", "20", "--name", "b")
    assert "\rstep 100: 0/20 episodes, 5 steps, 0:0" in screen.getvalue()
    assert "\rstep 100: 16/20 episodes, " in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K")
    assert pipe.getvalue() == ""
    assert watched == unseen.replace("/b.jsonl", "/a.jsonl")


def test_an_expert_is_watched_too(monkeypatch, capsys) -> None:
    screen = Terminal()
    run(monkeypatch, capsys, screen, "eval", "--expert", "metaworld/reach-v3", "--episodes", "2")
    assert "\r0/2 episodes, " in screen.getvalue()


def test_a_recording_shows_how_far_it_is(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(terminal, "_LIVE_EVERY_S", 0.0)
    screen, words = Terminal(), ("record", "tiny/point", "--random", "--episodes", "20", "--out")
    monkeypatch.setattr(sys, "stdout", screen)
    assert cli.main([*words, str(tmp_path / "seen")]) == 0
    lines = screen.getvalue().split("\r")
    assert any(line.startswith("seen: ") and " of 20 episodes, " in line and " attempts, " in line for line in lines)
    assert lines[-1].startswith("\x1b[K")
    assert ": 20 episodes, " in lines[-1]
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    assert cli.main([*words, str(tmp_path / "unseen")]) == 0
    assert pipe.getvalue().count("\n") == 1


def test_an_export_shows_how_far_its_proof_is(tiny, tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("onnxruntime")
    path, screen = str(train(tiny(steps=100, eval={"episodes": 0}))), Terminal()
    run(monkeypatch, capsys, screen, "export", path, "--checkpoint", "last", "--onnx", str(tmp_path / "a.onnx"))
    assert "\rcompared over 63/64 steps, 0:0" in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K")


def test_the_benchmark_of_forward_passes_names_the_case_that_it_is_at(monkeypatch, capsys) -> None:
    screen = Terminal()
    case = "sac 256x256 obs 6"
    flags = ["--only", case, "--calls", "20", "--warmup", "1", "--updates", "0"]
    out = run(monkeypatch, capsys, screen, "bench", "forward", *flags)
    assert screen.getvalue() == f"\r0/1 cases, now act {case}, 0:00:00\x1b[K\r\x1b[K"
    assert case in out
