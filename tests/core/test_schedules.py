from roboloop.core.schedules import Every, UpdateRatio


def test_every_fires_once_per_period_however_large_the_jumps():
    due = Every(10_000)
    assert [s for s in range(0, 40_000, 7_000) if due(s)] == [0, 14_000, 21_000, 35_000]


def test_every_with_period_zero_never_fires():
    assert not any(Every(0)(s) for s in range(10))


def test_a_restored_schedule_fires_when_the_original_would():
    a = Every(10, first=10)
    fired = [s for s in range(0, 25, 3) if a(s)]
    b = Every(10, first=10)
    b.load(a.state())
    assert fired == [12, 21]
    assert [a(s) for s in range(25, 60)] == [b(s) for s in range(25, 60)]


def test_fractions_of_updates_are_carried_over():
    ratio = UpdateRatio(per_step=0.1, start=0, every=1, at_episode_end=False)
    assert [len(ratio(s, False)) for s in range(1, 31)] == ([0] * 9 + [1]) * 3


def test_nothing_is_owed_for_warm_up_steps():
    ratio = UpdateRatio(per_step=2.0, start=100, every=1, at_episode_end=False)
    assert sum(len(ratio(s, False)) for s in range(1, 101)) == 0
    assert len(ratio(101, False)) == 2


def test_an_epoch_pays_all_its_updates_in_one_burst():
    ratio = UpdateRatio(per_step=0.75, start=0, every=200, at_episode_end=False)
    paid = {s: n for s in range(1, 601) if (n := len(ratio(s, False)))}
    assert paid == {200: 150, 400: 150, 600: 150}


def test_training_between_episodes_waits_for_the_episode():
    ratio = UpdateRatio(per_step=1.0, start=0, every=1, at_episode_end=True)
    assert [len(ratio(s, s % 5 == 0)) for s in range(1, 11)] == [0, 0, 0, 0, 5, 0, 0, 0, 0, 5]
