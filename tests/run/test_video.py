"""An environment that cannot be rendered is one line, before anything is evaluated."""

from __future__ import annotations

import pytest

from roboloop import cli
from tests.run.helpers import train
from tests.sample.kit import Misbehaving

BLIND = {"id": "gym/tests.sample.kit:Misbehave-well-v0"}


def refuse(self: Misbehaving) -> None:
    raise RuntimeError("no display:\nset DISPLAY")


@pytest.mark.parametrize(("render", "why"), [(None, "it has no render mode 'rgb_array'"), (refuse, "no display: set")])
def test_a_film_of_what_cannot_be_rendered_is_refused_at_once(tiny, monkeypatch, capsys, render, why) -> None:
    path = train(tiny(steps=80, env=BLIND, eval={"episodes": 0}))
    if render:
        monkeypatch.setattr(Misbehaving, "render", render)
    capsys.readouterr()
    assert cli.main(["eval", str(path), "--trust", "--episodes", "2", "--video"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "Misbehave-well-v0" in err
    assert why in err
    assert cli.main(["eval", str(path), "--trust", "--episodes", "2"]) == 0
