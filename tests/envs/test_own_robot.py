"""A robot of one's own leads the Panda suite by a name."""

import numpy as np
import pytest

from roboloop.core.errors import ConfigError, DataError
from roboloop.core.vouched import vouched
from roboloop.envs import make, registry
from roboloop.run import trust

OWN = "tests.envs.own_robot:make"


def test_it_acts_as_the_same_robot_of_ours():
    ours, own = (make(registry.config("panda/reach", panda={"driver": driver})) for driver in ("virtual", OWN))
    assert np.array_equal(ours.reset(3), own.reset(3))
    for _ in range(5):
        mine, theirs = (env.step(np.full(3, 0.5))[:2] for env in (ours, own))
        assert np.array_equal(mine[0], theirs[0])
        assert mine[1] == theirs[1]


def test_it_is_taken_for_one_that_does_not_wait():
    cfg = registry.config("panda/reach", panda={"driver": OWN})
    assert cfg.on_wall_clock
    assert not registry.config("panda/reach").on_wall_clock


@pytest.mark.parametrize(
    ("driver", "message"),
    [
        ("virtua", "must be one of virtual, process or module:attr, not 'virtua'; did you mean 'virtual'"),
        ("tests.envs.own_robot:nothing", "must return a Robot: it has no connect"),
        ("tests.envs.own_robot:made", "has no 'made'"),
    ],
)
def test_a_wrong_one_is_one_line(driver, message):
    with pytest.raises(ConfigError, match=message):
        make(registry.config("panda/reach", panda={"driver": driver}))


def test_a_saved_file_may_not_name_one_that_nobody_vouches_for():
    vouched.take([])
    with pytest.raises(DataError, match=r"env\.panda\.driver 'os:abort'.*--trust"):
        trust.check_env(registry.config("panda/reach", panda={"driver": "os:abort"}), "config.yaml")
