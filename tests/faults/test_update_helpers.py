"""Update helpers that die or hang in any phase of any algorithm: named, replaced, and no bit of training changes."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from roboloop.algos.learner import shards
from roboloop.algos.learner.shards import HelperDied, ShardPool
from roboloop.algos.learner.undo import Undo
from roboloop.algos.mtsac.mtsac import make_mtsac
from roboloop.algos.sac.setup import make_sac
from roboloop.core.types import Algorithm, Metrics
from tests.algos import (
    test_imitation,
    test_multitask_sac,
    test_pick,
    test_pixel_sac,
    test_ppo,
    test_sac,
    test_sac_examples,
    toys,
)
from tests.algos.test_shards import needs_two_cores
from tests.faults.mortal import Death, ThreadHelper, doom

pytestmark = needs_two_cores


@dataclasses.dataclass
class Learning:
    """An algorithm and what it learns from."""

    algo: Any
    source: Iterator[Any]
    more: tuple[Any, ...] = ()

    @property
    def pool(self) -> ShardPool:
        algo = getattr(self.algo, "_rl", self.algo)
        found = algo.trainer.pool if hasattr(algo, "trainer") else algo._pool
        assert isinstance(found, ShardPool)
        return found

    @property
    def phases(self) -> tuple[str, ...]:
        algo = getattr(self.algo, "_rl", self.algo)
        if hasattr(algo, "trainer"):
            return tuple(algo.trainer.phases(algo.trainer.steps))
        return getattr(algo, "_phases", self.pool._phases)

    def update(self) -> Metrics:
        metrics: Metrics = self.algo.update(next(self.source), *self.more)
        return metrics


def sac(**change: Any) -> Callable[[int], Learning]:
    cfg = dataclasses.replace(test_sac.SMALL, **change)
    return lambda p: Learning(
        make_sac(dataclasses.replace(cfg, processes=p), test_sac.SPEC, 1, seed=0), test_sac.batches(16)
    )


def pixel_sac(processes: int) -> Learning:
    cfg = dataclasses.replace(test_pixel_sac.SMALL, processes=processes)
    return Learning(make_sac(cfg, test_pixel_sac.RECORD, 1, seed=0), test_pixel_sac.batches(test_pixel_sac.RECORD))


def mtsac(net: str) -> Callable[[int], Learning]:
    cfg = dataclasses.replace(test_multitask_sac.NETS[net], task_weights="temperature", normalize_obs=True)
    return lambda p: Learning(
        make_mtsac(dataclasses.replace(cfg, processes=p), test_multitask_sac.SPEC, 1, seed=0),
        test_multitask_sac.batches(),
    )


def guided(kind: str) -> Callable[[int], Learning]:
    terms = test_sac_examples.TERMS[kind]
    return lambda p: Learning(test_sac_examples.sac_with(terms, processes=p), test_multitask_sac.batches())


def pick(kind: str) -> Callable[[int], Learning]:
    which, spec = test_pick.KINDS[kind]

    def make(processes: int) -> Learning:
        of_sac = dataclasses.replace(test_pick.SAC_SMALL, processes=processes)
        cfg = dataclasses.replace(test_pick.SMALL, pick=which, sac=of_sac)
        return Learning(test_pick.make_pick(cfg, spec, seed=0), test_pick.batches(spec=spec))

    return make


def ppo(change: dict[str, Any]) -> Callable[[int], Learning]:
    def make(processes: int) -> Learning:
        algo, player = test_ppo.make({**change, "minibatches": 1, "shards": 2, "processes": processes})
        return Learning(algo, (player.collect(algo.policy, 6) for _ in iter(int, 1)))

    return make


def imitation(cfg: Any, spec: Any) -> Callable[[int], Learning]:
    return lambda p: Learning(
        test_imitation.make(dataclasses.replace(cfg, processes=p), spec), test_imitation.batches(spec)
    )


KINDS: dict[str, Callable[[int], Learning]] = {
    "sac": sac(),
    "sac-limited": sac(max_grad_norm=0.01, layer_norm=True),
    "sac-four-shards": sac(shards=4),
    "sac-pixels": pixel_sac,
    **{f"mtsac-{net}": mtsac(net) for net in ("heads", "soft", "hard")},
    **{f"guided-{kind}": guided(kind) for kind in test_sac_examples.TERMS},
    **{f"pick-{kind}": pick(kind) for kind in ("mvp", "joint-corner", "autoregressive-seen")},
    **{f"ppo-{i}": ppo(change) for i, change in enumerate(test_ppo.KINDS)},
    "dt": imitation(test_imitation.SMALL_DT, toys.Anything.spec),
    "dt-pixels": imitation(test_imitation.CONFIGS[1], toys.Look.spec),
    "bc": imitation(test_imitation.SMALL_BC, test_imitation.SPEC),
}


@pytest.fixture
def threads(monkeypatch) -> Iterator[None]:
    """Helpers are threads: the same code without the seconds that a new interpreter takes."""
    monkeypatch.setattr(shards, "Child", ThreadHelper)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval_s)


def same(a: Any, b: Any) -> bool:
    """Compare two trees, bit by bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "tobytes"):
        return bool(a.shape == b.shape and a.tobytes() == b.tobytes())
    return bool(a.equal(b)) if hasattr(a, "equal") else bool(a == b)


def assert_unharmed(make: Callable[[int], Learning], deaths: list[Death], plan: Any, updates: int) -> list[str]:
    """Learn alone and with helpers that die by a plan, an update after another; return what was said."""
    alone, together = make(1), make(2)
    doom(together.pool, plan, deaths)
    try:
        for _ in range(updates):
            together.pool.wait_until_ready()
            assert alone.update() == together.update()
            assert same(alone.algo.state(), together.algo.state())
        said: list[str] = together.algo.messages()
        assert together.algo.messages() == []
        return said
    finally:
        together.algo.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_helper_lost_in_any_phase_of_any_algorithm_leaves_no_trace(kind, threads, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MOST_LOSSES", 100)
    phases = KINDS[kind](1).phases
    deaths = [Death(phase, way) for phase in phases for way in ("before", "half")]
    said = assert_unharmed(KINDS[kind], deaths, tmp_path / "plan", 2 * len(deaths) + 1)
    assert [re.search(r"during '([\w/]+)'", line)[1] for line in said] == [death.phase for death in deaths]


@pytest.mark.parametrize("shard", [1, 3])
def test_of_several_shards_only_the_unfinished_ones_are_done_again(shard, threads, tmp_path):
    deaths = [Death("critic_loss/move", "half", shard=shard), Death("actor_loss/move", "before", shard=shard)]
    assert len(assert_unharmed(KINDS["sac-four-shards"], deaths, tmp_path / "plan", 6)) == 2


@pytest.mark.parametrize("kind", ["sac-limited", "ppo-3", "dt"])
def test_a_helper_that_hangs_in_any_phase_leaves_no_trace(kind, threads, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "TIMEOUT_S", 0.3)
    phases = KINDS[kind](1).phases
    deaths = [Death(phase, "half", hangs=True) for phase in phases]
    said = assert_unharmed(KINDS[kind], deaths, tmp_path / "plan", 2 * len(deaths) + 1)
    assert len(said) == len(deaths)
    assert all("hung in" in line and "it is stopped" in line for line in said)


def test_two_helpers_lost_in_one_update_leave_no_trace(threads, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "usable_processes", lambda wanted, *_: 3 if wanted > 1 else 1)
    make = sac(shards=3, batch_size=24)
    alone, together = (dataclasses.replace(make(p), source=test_sac.batches(24)) for p in (1, 3))
    deaths = [Death("critic_loss/move", "half", shard=1), Death("critic_loss/move", "half", shard=2)]
    doom(together.pool, tmp_path / "plan", deaths)
    together.pool.wait_until_ready()
    for _ in range(3):
        assert alone.update() == together.update()
        assert same(alone.algo.state(), together.algo.state())
    said = together.algo.messages()
    assert [line.partition(" (pid")[0] for line in said] == ["update helper 1", "update helper 2"]
    together.algo.close()


def test_without_the_copy_a_death_in_mid_change_would_show(threads, tmp_path, monkeypatch):
    monkeypatch.setattr(Undo, "restore", lambda self, phase: None)
    with pytest.raises(AssertionError):
        assert_unharmed(KINDS["sac"], [Death("critic_loss/move", "half")], tmp_path / "plan", 3)


@pytest.mark.parametrize("kind", ["sac-pixels", "bc"])
def test_a_killed_and_a_stopped_process_leave_no_trace(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "TIMEOUT_S", 3.0)
    first, *_, last = KINDS[kind](1).phases
    alone, together = KINDS[kind](1), KINDS[kind](2)
    doom(together.pool, tmp_path / "plan", [Death(last, "half"), Death(first, "before", hangs=True)])
    pids = []
    try:
        for _ in range(3):
            monkeypatch.setattr(shards, "TIMEOUT_S", 60.0)  # to start
            together.pool.wait_until_ready()
            monkeypatch.setattr(shards, "TIMEOUT_S", 3.0)
            pids += together.pool.helper_pids
            for _ in range(2):
                assert alone.update() == together.update()
        assert same(alone.algo.state(), together.algo.state())
        killed, stopped = together.algo.messages()
    finally:
        together.algo.close()
    assert len(set(pids)) == 3
    assert killed == (
        f"update helper 1 (pid {pids[0]}) was killed by SIGKILL during '{last}'; a new one takes over (1 of at most 10)"
    )
    assert stopped == (
        f"update helper 1 (pid {pids[1]}) hung in '{first}' for 3 s: it is stopped (SIGSTOP, or a debugger);"
        " a new one takes over (2 of at most 10)"
    )


def test_helpers_lost_too_often_end_the_run_in_one_line(threads, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MOST_LOSSES", 2)
    with pytest.raises(HelperDied, match="3 lost update helpers are too many") as lost:
        assert_unharmed(KINDS["sac"], [Death("actor_loss/move", "before", lives=0)] * 3, tmp_path / "plan", 9)
    assert lost.value.exit_code == 7
    assert "\n" not in str(lost.value)


def test_all_algorithms_say_what_happened_to_their_helpers():
    for kind in ("sac", "ppo-0", "bc", "pick-mvp"):
        algo: Algorithm = KINDS[kind](1).algo
        assert algo.messages() == []
