"""Gymnasium's spaces as columns and records, there and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from roboloop.core.errors import ConfigError
from roboloop.envs import EnvConfig, make
from roboloop.envs.check import check_env
from roboloop.envs.spaces import columns, decoder, encode, legal, observations, to_chw

NESTED = spaces.Dict(
    {
        "arm": spaces.Box(-2, 2, (2, 3), np.float32),
        "grip": spaces.Discrete(2),
        "legs": spaces.Tuple((spaces.MultiDiscrete([3, 4]), spaces.MultiBinary(2), spaces.Discrete(3, start=-1))),
    }
)
ACTIONS = [
    spaces.Box(-1, 1, (3,), np.float32),
    spaces.Box(-1, 1, (), np.float32),
    spaces.Box(np.array([[0.1, -3]]), np.array([[0.7, 5]]), dtype=np.float64),
    spaces.Box(-3, 4, (2, 2), np.int8),
    spaces.Discrete(4),
    spaces.Discrete(4, start=5),
    spaces.MultiDiscrete([2, 5, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 1], [0, -2]]),
    spaces.MultiBinary(3),
    spaces.MultiBinary([2, 2]),
    NESTED,
]


def same(a: Any, b: Any) -> bool:
    """Compare nested actions."""
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(np.allclose(a, b, atol=1e-6))


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_an_action_survives_the_way_to_columns_and_back(space: spaces.Space[Any]) -> None:
    space.seed(0)
    low, high, choices = columns(space)
    for _ in range(20):
        native = space.sample()
        row = encode(space, native)
        assert row.dtype == np.float32
        assert ((np.float32(low) <= row) & (row <= np.float32(high))).all()
        assert row[np.array(choices) > 0].tolist() == [round(x) for x in row[np.array(choices) > 0]]
        back = decoder(space)(row)
        assert space.contains(back)
        assert same(native, back)


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_the_bounds_of_the_columns_are_actions(space: spaces.Space[Any]) -> None:
    low, high, choices = columns(space)
    assert len(low) == len(high) == len(choices)
    for row in (low, high):
        assert space.contains(decoder(space)(np.asarray(row, np.float32)))


def test_columns_lie_depth_first_and_choices_start_at_zero() -> None:
    low, high, choices = columns(NESTED)
    assert choices == (0,) * 6 + (2, 3, 4, 2, 2, 3)
    assert low.tolist() == [-2] * 6 + [0] * 6
    assert high.tolist() == [2] * 6 + [1, 2, 3, 1, 1, 2]
    action = decoder(NESTED)(np.array([0] * 6 + [1, 2, 3, 1, 0, 0], np.float32))
    assert (action["grip"], action["legs"][0].tolist(), action["legs"][1].tolist()) == (1, [2, 3], [1, 0])
    assert action["legs"][2] == -1


def test_actions_that_are_neither_numbers_nor_choices_are_refused() -> None:
    with pytest.raises(ConfigError, match="neither numbers nor choices"):
        columns(spaces.Tuple((spaces.Discrete(2), spaces.Text(3))))


@pytest.mark.parametrize(
    ("shape", "seen"),
    [
        ((6, 5), (1, 6, 5)),
        ((6, 5, 3), (3, 6, 5)),
        ((6, 5, 1), (1, 6, 5)),
        ((3, 6, 5), (3, 6, 5)),
        ((4, 6, 5), (4, 6, 5)),
        ((2, 6, 5, 3), (6, 6, 5)),
        ((2, 3, 6, 5), (6, 6, 5)),
        ((40, 30, 2), (2, 40, 30)),
        ((40, 30, 9), (9, 40, 30)),
        ((9, 40, 30), (9, 40, 30)),
        ((3, 40, 30), (3, 40, 30)),
    ],
)
def test_pictures_are_seen_with_channels_first(shape: tuple[int, ...], seen: tuple[int, ...]) -> None:
    picture = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    assert to_chw(picture).shape == seen
    assert sorted(to_chw(picture).ravel()) == sorted(picture.ravel())
    assert observations(spaces.Box(0, 255, shape, np.uint8), ()).shape == seen


@pytest.mark.parametrize("shape", [(20, 20, 20), (3, 64, 3), (3, 3, 3), (8, 40, 8)])
def test_pictures_whose_channels_may_be_first_or_last_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"channels first or last: make it \[height, width, channels\]"):
        observations(spaces.Box(0, 255, shape, np.uint8), ())


@pytest.mark.parametrize("name", ["vector", "action_mask", "picks"])
def test_a_picture_may_not_have_the_name_of_something_else(name: str) -> None:
    with pytest.raises(ConfigError, match=f"a picture may not be called '{name}'"):
        observations(spaces.Dict({name: spaces.Box(0, 255, (6, 5, 3), np.uint8)}), ())


def test_vectors_are_joined_and_choices_are_one_hot() -> None:
    space = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2)))})
    seen = observations(space, ())
    assert (seen.shape, seen.dtype) == ((7,), np.float32)
    obs = {"a": np.array([0.5, -0.5], np.float32), "b": (2, 0)}
    assert seen.read(obs, {}).tolist() == [0.5, -0.5, 0, 0, 1, 1, 0]


def test_pictures_among_numbers_make_a_record() -> None:
    image = spaces.Box(0, 255, (6, 5, 3), np.uint8)
    space = spaces.Dict(
        {"eye": image, "hand": spaces.Dict({"eye": image, "pose": spaces.Box(-1, 1, (2,))}), "kind": spaces.Discrete(2)}
    )
    seen = observations(space, (2,))
    assert seen.shape == ()
    assert seen.dtype == np.dtype(
        [("vector", np.float32, (4,)), ("eye", np.uint8, (3, 6, 5)), ("hand.eye", np.uint8, (3, 6, 5))]
    )
    space.seed(0)
    obs = space.sample()
    record = seen.read(obs, {})
    assert isinstance(record, np.ndarray)
    assert np.array_equal(record["hand.eye"], obs["hand"]["eye"].transpose(2, 0, 1))
    assert record["vector"].tolist() == [*obs["hand"]["pose"].tolist(), *np.eye(2)[obs["kind"]].tolist()]


def test_a_mask_in_the_observation_or_in_the_info_becomes_a_field() -> None:
    box = spaces.Box(-1, 1, (2,))
    inside = observations(spaces.Dict({"action_mask": spaces.MultiBinary(3), "state": box}), (3,))
    outside = observations(box, (0, 3), mask_in_info=True)
    state, mask = np.zeros(2, np.float32), np.array([1, 0, 1], np.int8)
    for record in (inside.read({"action_mask": mask, "state": state}, {}), outside.read(state, {"action_mask": mask})):
        assert record.dtype == np.dtype([("vector", np.float32, (2,)), ("action_mask", np.bool_, (3,))])
        assert record["action_mask"].tolist() == [True, False, True]
    picture = observations(spaces.Box(0, 255, (6, 5, 3), np.uint8), (3,), mask_in_info=True)
    assert picture.dtype.names == ("image", "action_mask")


def test_without_choices_there_is_nothing_to_mask() -> None:
    space = spaces.Dict({"action_mask": spaces.MultiBinary(3), "state": spaces.Box(-1, 1, (2,))})
    assert observations(space, (0, 0)).shape == (5,)


def test_masks_of_several_columns_are_joined_and_must_fit() -> None:
    assert legal((np.array([1, 0]), np.array([0, 1, 1])), (2, 3)).tolist() == [True, False, False, True, True]
    with pytest.raises(ConfigError, match="5 entries does not fit actions with 4 choices"):
        legal((np.array([1, 0]), np.array([0, 1, 1])), (2, 0, 2))


def test_a_column_in_which_nothing_is_allowed_allows_everything() -> None:
    assert legal(np.array([0, 0, 1, 0, 0]), (2, 3)).tolist() == [True, True, True, False, False]


def test_observations_without_a_fixed_size_are_refused() -> None:
    with pytest.raises(ConfigError, match="no fixed size"):
        observations(spaces.Sequence(spaces.Discrete(3)), ())


class Chooser(gymnasium.Env[Any, Any]):
    """Moves a dot by nested choices; some moves are forbidden, as the observation or the info says."""

    action_space = spaces.Dict({"go": spaces.Discrete(3, start=-1), "turn": spaces.Box(-1, 1, (1,), np.float32)})

    def __init__(self, mask_in_info: bool) -> None:
        self.mask_in_info, self.place = mask_in_info, 0
        parts: dict[str, spaces.Space[Any]] = {
            "eye": spaces.Box(0, 255, (6, 5, 3), np.uint8),
            "place": spaces.Box(-99, 99, (1,)),
        }
        if not mask_in_info:
            parts["action_mask"] = spaces.Box(0, 1, (3,), np.int8)
        self.observation_space = spaces.Dict(parts)

    def _see(self) -> tuple[Any, dict[str, Any]]:
        mask = np.array([self.place > -5, 1, self.place < 5], np.int8)
        eye = self.np_random.integers(0, 256, (6, 5, 3), np.uint8)
        obs = {"eye": eye, "place": np.array([self.place], np.float32)}
        return (obs, {"action_mask": mask}) if self.mask_in_info else (obs | {"action_mask": mask}, {})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return self._see()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.place += action["go"]
        obs, info = self._see()
        return obs, float(self.place), False, False, info


@pytest.fixture(params=[False, True], ids=["mask in obs", "mask in info"])
def chooser(request: pytest.FixtureRequest) -> Iterator[str]:
    gymnasium.register("Chooser-v0", lambda: Chooser(request.param), max_episode_steps=30)
    yield "Chooser-v0"
    del gymnasium.registry["Chooser-v0"]


def test_records_masks_and_nested_choices_pass_the_contract(chooser: str) -> None:
    check_env(lambda: make(EnvConfig(id=chooser)), steps=20, pictures=False)


def test_the_mask_follows_the_episode(chooser: str) -> None:
    env = make(EnvConfig(id=chooser))
    assert env.spec.action_choices == (3, 0)
    obs = env.reset(0)
    assert obs["action_mask"].tolist() == [True, True, True]
    for _ in range(5):
        obs = env.step(np.array([2, 0.0]))[0]
    assert obs["vector"].tolist() == [5.0]
    assert obs["action_mask"].tolist() == [True, True, False]


def test_taxi_says_its_mask_in_the_info() -> None:
    env = make(EnvConfig(id="gym/Taxi-v4"))
    assert env.spec.obs_dtype == np.dtype([("vector", np.float32, (500,)), ("action_mask", np.bool_, (6,))])
    assert env.reset(0)["vector"].sum() == 1
