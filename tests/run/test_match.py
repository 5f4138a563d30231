"""The verb envs match: one robot in several engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from roboloop.core.errors import ConfigError
from roboloop.envs.legged.hopper import HopperTask
from roboloop.envs.legged.match import FACTS, match
from roboloop.run.envs import envs


def test_the_hopper_is_the_same_in_all_engines_and_parts_only_in_contact() -> None:
    pytest.importorskip("pybullet")
    pytest.importorskip("dartpy")
    pytest.importorskip("mujoco")
    found = match(HopperTask(), ("bullet", "dart", "mujoco"), poses=5, rollouts=3, steps=10)
    assert max(worst for engines in found.facts.values() for worst in engines.values()) < 1e-5
    for engine in ("dart", "mujoco"):
        assert found.flight_m[engine].max() < 1e-3
        assert found.contact_m[engine].max() < 3e-2
    assert found.contact_m["bullet"].max() == 0.0
    for heights in found.drop_m.values():
        assert heights[-1] == pytest.approx(0.06, abs=0.005)


def test_a_variant_shows_as_what_it_changes() -> None:
    pytest.importorskip("mujoco")
    found = match(HopperTask(), ("mujoco", "mujoco-heavy"), poses=2, rollouts=2, steps=5)
    assert found.facts["masses"]["mujoco-heavy"] == pytest.approx(2.0)
    assert found.facts["centres of mass"]["mujoco-heavy"] == pytest.approx(0.15)
    assert found.facts["masses"]["mujoco"] == 0.0
    assert found.flight_m["mujoco-heavy"][-1] > 1e-5


def test_the_verb_prints_a_table_and_draws_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mujoco")
    pytest.importorskip("dartpy")
    picture = tmp_path / "match.png"
    few = ["--poses", "2", "--rollouts", "2", "--steps", "6"]
    assert envs(["match", "hopper", "mujoco", "dart", *few, "--out", str(picture)]) == 0
    said = capsys.readouterr().out
    assert all(fact in said for fact in FACTS)
    assert "on the floor, 5 control steps (0.10 s)" in said
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["mach"], "unknown command 'mach'; did you mean 'match'?"),
        (["match", "hoper"], "unknown robot 'hoper'; did you mean 'hopper'?"),
        (["match", "hopper", "mujco"], "unknown engine 'mujco'; did you mean 'mujoco'?"),
        (["match", "hopper", "mujoco-pwer"], "unknown variant 'pwer' of hopper; did you mean 'power'?"),
        (["match", "hopper", "--rollouts", "0"], "must be at least 1"),
    ],
)
def test_mistakes_are_one_line(args: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        envs(args)
