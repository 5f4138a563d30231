"""Silhouettes, areas and projections of rope and cloth, worked out by hand; no simulator."""

from __future__ import annotations

import math

import numpy as np
import pytest

from roboloop.envs.soft import geometry
from roboloop.envs.soft.model import ROPE, sheet
from roboloop.envs.soft.rewards import LINE_DECAY_M, MASK_SIZE, Judge
from roboloop.envs.soft.starts import turned
from roboloop.envs.soft.view import View, centres_of, pixels_of

CLOTH = sheet(9)


def folded(points_m: np.ndarray) -> np.ndarray:
    """Return the sheet with its left half mirrored onto its right."""
    out = points_m.copy()
    out[:, 0] = np.abs(out[:, 0])
    return out


def test_a_grid_has_two_triangles_per_cell_that_fill_it() -> None:
    triangles = geometry.grid_triangles(9)
    assert triangles.shape == (128, 3)
    corners = CLOTH.flat_m[:, :2][triangles]
    a, b = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    areas = 0.5 * np.abs(a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0])
    assert areas.sum() == pytest.approx(0.24**2)


def test_a_right_triangle_holds_the_pixels_whose_centres_are_in_it() -> None:
    points = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    mask = geometry.triangles_mask(points, np.array([[0, 1, 2]]), 5)
    assert mask.astype(int).tolist() == [
        [1, 1, 1, 1, 0],  # the last one's centre is on the long side
        [1, 1, 1, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]


def test_a_silhouette_is_the_same_whichever_way_its_triangles_go_round() -> None:
    points = np.random.default_rng(0).uniform(-3, 20, (30, 2))
    triangles = np.random.default_rng(1).integers(0, 30, (20, 3))
    assert (
        geometry.triangles_mask(points, triangles, 16) == geometry.triangles_mask(points, triangles[:, ::-1], 16)
    ).all()


def test_windows_find_the_pixels_that_a_search_over_all_pixels_finds() -> None:
    rng = np.random.default_rng(2)
    for _ in range(5):
        points, triangles = rng.uniform(-4, 20, (12, 2)), rng.integers(0, 12, (9, 3))
        expected = np.zeros((16, 16), bool)
        for row in range(16):
            for column in range(16):
                for a, b, c in points[triangles]:
                    at = np.array([column + 0.5, row + 0.5])
                    sides = [(q - p)[0] * (at - p)[1] - (q - p)[1] * (at - p)[0] for p, q in ((a, b), (b, c), (c, a))]
                    box = np.stack([a, b, c])
                    is_near = (box.min(axis=0) <= at).all() and (at <= box.max(axis=0)).all()
                    expected[row, column] |= is_near and (min(sides) >= 0 or max(sides) <= 0)
        assert (geometry.triangles_mask(points, triangles, 16) == expected).all()


def test_a_line_holds_the_pixels_within_its_radius() -> None:
    mask = geometry.line_mask(np.array([[2.5, 2.5], [5.5, 2.5]]), 1.0, 8)
    assert mask[2, 1:7].all()  # its row, and a radius beyond both ends
    assert mask[1, 2:6].all()
    assert mask[3, 2:6].all()
    assert mask.sum() == 6 + 4 + 4


def test_things_outside_the_picture_leave_it_empty() -> None:
    points = np.array([[-9.0, -9.0], [-5.0, -9.0], [-9.0, -5.0]])
    assert not geometry.triangles_mask(points, np.array([[0, 1, 2]]), 8).any()
    assert not geometry.line_mask(points + 30.0, 1.0, 8).any()


def test_a_flat_cloth_has_coverage_one_and_the_right_area() -> None:
    judge = Judge(CLOTH, "coverage")
    assert judge.score(CLOTH.flat_m) == 1.0
    pixel_m = 2 * CLOTH.half_m / MASK_SIZE
    assert judge.mask(CLOTH.flat_m).sum() * pixel_m**2 == pytest.approx(0.24**2, rel=0.03)


@pytest.mark.parametrize("reward", ["coverage", "area", "convex", "concave", "diagonal"])
def test_a_flat_cloth_has_reward_one(reward: str) -> None:
    judge = Judge(CLOTH, reward)
    assert judge.score(CLOTH.flat_m) == pytest.approx(1.0, abs=1e-12)
    assert judge.best == 1.0


@pytest.mark.parametrize("reward", ["coverage", "area", "convex", "concave"])
def test_a_folded_cloth_has_half_of_it(reward: str) -> None:
    tolerance = 1e-9 if reward == "convex" else 0.02  # pixels
    assert Judge(CLOTH, reward).score(folded(CLOTH.flat_m)) == pytest.approx(0.5, abs=tolerance)


def test_the_diagonals_of_a_folded_cloth_are_those_of_half_a_square() -> None:
    found = Judge(CLOTH, "diagonal").score(folded(CLOTH.flat_m))
    assert found == pytest.approx(1.0 / math.sqrt(2.0))  # corner to corner is one side now


def test_height_does_not_change_coverage() -> None:
    judge = Judge(CLOTH, "coverage")
    assert judge.score(CLOTH.flat_m + np.array([0.0, 0.0, 0.1])) == 1.0


def test_a_turned_or_shifted_cloth_covers_less_of_its_goal_but_has_its_area() -> None:
    moved = turned(CLOTH.flat_m, 0.6, np.array([0.03, 0.0]))
    assert Judge(CLOTH, "coverage").score(moved) < 0.92
    assert Judge(CLOTH, "area").score(moved) == pytest.approx(1.0, abs=0.02)
    assert Judge(CLOTH, "convex").score(moved) == pytest.approx(1.0)


def test_the_hull_of_a_square_with_points_inside_is_the_square() -> None:
    inside = np.random.default_rng(0).uniform(0.1, 1.9, (50, 2))
    square = np.array([[0, 0], [2, 0], [2, 2], [0, 2], [1, 0], [1, 2]], float)
    assert geometry.hull_area(np.concatenate([inside, square])) == pytest.approx(4.0)


def test_the_hull_of_a_cross_is_larger_than_its_silhouette() -> None:
    spike = CLOTH.flat_m.copy()
    spike[4, :2] = [-0.16, 0.0]  # one particle of a side, pulled out
    assert Judge(CLOTH, "convex").score(spike) - 1.0 == pytest.approx(0.5 * 0.24 * 0.04 / 0.24**2)
    assert Judge(CLOTH, "concave").score(spike) - 1.0 == pytest.approx(0.5 * 0.06 * 0.04 / 0.24**2, abs=0.006)


def test_the_distance_to_the_goal_pose_is_the_mean_over_particles_in_lengths() -> None:
    judge = Judge(CLOTH, "distance")
    assert judge.score(CLOTH.flat_m) == 0.0 == judge.best
    assert judge.score(CLOTH.flat_m + np.array([0.03, 0.04, 0.0])) == pytest.approx(-0.05 / 0.24)


def test_a_rope_on_the_line_has_reward_one_whichever_way_it_lies() -> None:
    for reward, best in (("line", 1.0), ("distance", 0.0)):
        judge = Judge(ROPE, reward)
        assert judge.score(ROPE.flat_m) == best == judge.best
        assert judge.score(ROPE.flat_m[::-1]) == pytest.approx(best, abs=1e-12)


def test_a_rope_off_the_line_or_folded_on_it_has_less() -> None:
    judge, up_m, radius_m = Judge(ROPE, "line"), 0.012, ROPE.radius_m
    near, far, on_it = (math.exp(-y_m / LINE_DECAY_M) for y_m in (up_m - radius_m, up_m + radius_m, radius_m))
    raised = judge.score(ROPE.flat_m + np.array([0.0, up_m, 0.0]))
    assert raised == pytest.approx((near - far) / (2.0 * (1.0 - on_it)), abs=0.002)  # but for its round ends
    assert judge.score(folded(ROPE.flat_m)) == pytest.approx(0.5, abs=0.03)
    assert judge.score(turned(ROPE.flat_m, math.pi / 2, np.zeros(2))) < 0.2


@pytest.mark.parametrize("moved", ["all of it", "one half", "one bead"])
def test_a_rope_nearer_to_its_line_is_never_worth_less(moved: str) -> None:
    judge = Judge(ROPE, "line")
    which = {"all of it": slice(None), "one half": slice(12, None), "one bead": slice(12, 13)}[moved]
    scores = []
    for off_m in np.arange(0.0, 0.04, 0.0005):
        points_m = ROPE.flat_m.copy()
        points_m[which, 1] += off_m
        scores.append(judge.score(points_m))
    assert (np.diff(scores) <= (0.0 if moved == "all of it" else 0.0005)).all()  # a slope is longer than its shadow


def test_what_a_tangled_rope_is_worth_is_what_fine_pixels_say() -> None:
    points = np.random.default_rng(0).normal(size=(25, 2)).cumsum(axis=0) * 0.015
    columns, rows = np.linspace(-0.3, 0.3, 128), np.arange(-0.3, 0.3, 0.0002) + 0.0001
    x, y = np.meshgrid(columns, rows)
    is_rope = np.zeros(x.shape, bool)
    for start, way in zip(points[:-1], np.diff(points, axis=0), strict=True):
        share = np.clip(((x - start[0]) * way[0] + (y - start[1]) * way[1]) / (way @ way), 0.0, 1.0)
        is_rope |= np.hypot(x - start[0] - share * way[0], y - start[1] - share * way[1]) <= 0.008
    expected = (is_rope * np.exp(-np.abs(y) / 0.02)).sum() * 0.0002
    assert geometry.line_score(points, 0.008, columns, 0.02) == pytest.approx(expected, rel=1e-3)


def test_a_perfect_fold_has_no_gap_and_a_flat_sheet_the_mean_of_its_widths() -> None:
    judge = Judge(CLOTH, "fold")
    judge.begin(CLOTH.flat_m)
    assert judge.score(folded(CLOTH.flat_m)) == pytest.approx(0.0, abs=1e-12)
    assert judge.score(CLOTH.flat_m) == pytest.approx(-np.mean([0.24, 0.18, 0.12, 0.06]) / 0.24)
    drifted = folded(CLOTH.flat_m) + np.array([0.02, 0.0, 0.0])
    assert judge.score(drifted) == pytest.approx(-1.2 * 0.02 / 0.24)


@pytest.mark.parametrize("side", [3, 6, 9])
def test_the_seam_of_a_flat_cloth_is_worth_one(side: int) -> None:
    flex = sheet(side)
    judge = Judge(flex, "seam")
    assert judge.score(flex.flat_m) == pytest.approx(1.0)
    lifted = flex.flat_m.copy()
    lifted[side // 2, 2] += 0.05  # the seam's middle is off the table
    assert judge.score(lifted) == pytest.approx(0.9)
    bent = flex.flat_m.copy()
    bent[side // 2, 0] -= 2 * flex.spacing_m
    assert judge.score(bent) < 0.7


def test_something_over_the_seam_costs_its_share() -> None:
    flex = sheet(9)
    covered = flex.flat_m.copy()
    covered[80] = covered[4] + np.array([0.0, 0.0, 0.02])
    assert Judge(flex, "seam").score(covered) == pytest.approx(1.0 - 0.2 / 78)


def test_points_come_back_from_their_pixels() -> None:
    view, rng = View(0.2, 0.75, 0.01, -0.02), np.random.default_rng(0)
    points_m = rng.uniform([-0.2, -0.2, 0.0], [0.2, 0.2, 0.2], (100, 3))
    back_m = view.points_of(view.units_of(points_m), points_m[:, 2])
    np.testing.assert_allclose(back_m, points_m, atol=1e-12)


def test_a_higher_point_is_seen_farther_from_the_middle() -> None:
    view = View(0.2, 0.75)
    low, high = view.units_of(np.array([[0.1, 0.0, 0.0], [0.1, 0.0, 0.25]]))
    assert low.tolist() == pytest.approx([0.5, 0.0])
    assert high.tolist() == pytest.approx([0.75, 0.0])  # at two thirds of the distance it looks half as large again


def test_pixels_come_back_from_their_centres_exactly_even_in_half_precision() -> None:
    pixels = np.stack(np.meshgrid(np.arange(64), np.arange(64)), axis=-1).reshape(-1, 2)
    units = centres_of(pixels, 64)
    assert np.abs(units).max() < 1
    assert (units.astype(np.float16) == units).all()
    assert (np.floor(pixels_of(units.astype(np.float16).astype(float), 64)) == pixels).all()
    top_left = centres_of(np.array([0, 0]), 64)
    assert top_left[0] < 0 < top_left[1]  # rows go down, units go up


def test_strain_is_of_the_worst_edge() -> None:
    points_m, edges = np.array([[0, 0, 0], [1, 0, 0], [1, 3, 0]], float), np.array([[0, 1], [1, 2]])
    assert geometry.max_strain(points_m, edges, np.array([1.0, 2.0])) == pytest.approx(0.5)
