"""The rig's arithmetic, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from roboloop.envs.panda.control import HoldTimer, LeadTarget
from roboloop.envs.panda.tasks import Box

ROOM = Box((0.3, 0.6), (-0.15, 0.15), (0.3, 0.5))
MIDDLE = np.array([0.45, 0.0, 0.4])


def lead_target(axes: tuple[str, ...] = ("x", "y", "z"), at: np.ndarray = MIDDLE) -> LeadTarget:
    made = LeadTarget(axes, ROOM, step_m=0.2 / 5, lead_m=12.5 / 250)
    made.begin(at)
    return made


def test_all_ones_move_the_target_by_four_centimetres_at_the_rigs_speed_and_rate() -> None:
    led = lead_target()
    taken = led.shift(np.ones(3), MIDDLE)
    assert np.linalg.norm(led.target_m - MIDDLE) == pytest.approx(0.04)
    assert taken == pytest.approx(np.ones(3))


def test_a_single_axis_moves_by_its_share() -> None:
    led = lead_target()
    led.shift(np.array([0.0, -1.0, 0.0]), MIDDLE)
    assert led.target_m == pytest.approx([0.45, -0.04 / np.sqrt(3), 0.4])


def test_actions_shift_the_last_target_and_not_the_arm() -> None:
    led = lead_target()
    for _ in range(2):  # the arm has not moved yet
        led.shift(np.array([0.5, 0.0, 0.0]), MIDDLE)
    assert led.target_m[0] == pytest.approx(0.45 + 2 * 0.5 * 0.04 / np.sqrt(3))


def test_the_target_stays_inside_the_limits_and_the_action_taken_is_what_was_left() -> None:
    at = np.array([0.59, 0.0, 0.4])
    led = lead_target(at=at)
    taken = led.shift(np.array([1.0, 0.0, 0.0]), at)
    assert led.target_m[0] == 0.6
    assert taken == pytest.approx([0.01 / (0.04 / np.sqrt(3)), 0.0, 0.0])


def test_the_target_leads_a_blocked_arm_by_no_more_than_the_force_cap_over_the_stiffness() -> None:
    led = lead_target()
    for _ in range(10):
        taken = led.shift(np.array([1.0, 0.0, 0.0]), MIDDLE)
    assert np.linalg.norm(led.target_m - MIDDLE) == pytest.approx(0.05)
    assert taken == pytest.approx(np.zeros(3), abs=1e-12)


def test_an_arm_that_was_pushed_away_pulls_its_target_after_it() -> None:
    led, pushed = lead_target(), MIDDLE - [0.1, 0.0, 0.0]
    taken = led.shift(np.zeros(3), pushed)
    assert led.target_m == pytest.approx(MIDDLE - [0.05, 0.0, 0.0])
    assert taken == pytest.approx([-1.0, 0.0, 0.0])  # further than an action can say


def test_a_jump_that_no_action_can_make_is_refused() -> None:
    led = lead_target()
    led.target_m = np.array([0.45, 0.0, 0.8])  # far outside: coming back would be a jump of 30 cm
    led.shift(np.zeros(3), np.array([0.45, 0.0, 0.8]))
    assert led.refused == 1
    assert led.target_m[2] == 0.8


def test_actions_move_only_the_valid_axes() -> None:
    led = lead_target(("x", "z"))
    taken = led.shift(np.ones(2), MIDDLE)
    assert led.target_m[1] == 0.0
    assert taken == pytest.approx(np.ones(2))


def test_an_axis_of_no_width_stays_where_it_is_fixed() -> None:
    led = LeadTarget(("x",), Box((0.3, 0.66), (0.0, 0.0), (0.25, 0.25)), 0.04, 0.05)
    assert led.begin(np.array([0.4, 0.01, 0.26])) == pytest.approx([0.4, 0.0, 0.25])


def test_success_must_hold_without_a_break_and_is_then_kept() -> None:
    timer = HoldTimer(0.5)
    looks = [(True, 0.0), (True, 0.2), (False, 0.4), (True, 0.6), (True, 0.8), (True, 1.0)]
    assert not any(timer.update(holds, now_s) for holds, now_s in looks)
    assert timer.update(True, 1.2)
    assert timer.update(False, 1.4)


def test_half_a_second_at_ten_looks_a_second_is_six_looks() -> None:
    timer = HoldTimer(0.5)
    assert [timer.update(True, 0.1 * i) for i in range(6)] == [False] * 5 + [True]
