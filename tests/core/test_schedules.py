import math

from roboloop.core import schedules
from roboloop.core.schedules import Every, InSlack, UpdateRatio


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


class Slack:
    """A clock for updates that take as long as the test says, and a deadline that it moves."""

    def __init__(self, monkeypatch):
        self.now_s, self.deadline_s = 0.0, math.inf
        monkeypatch.setattr(schedules.time, "perf_counter", lambda: self.now_s)

    def left_s(self):
        return self.deadline_s - self.now_s

    def tick(self, due, step, takes_s, slack_s):
        """Return how many updates are paid in a tick."""
        self.deadline_s = self.now_s + slack_s
        count = 0
        for _ in due(step, False):
            self.now_s += takes_s
            count += 1
        return count


def test_the_first_updates_wait_for_a_time_without_deadline(monkeypatch):
    slack = Slack(monkeypatch)
    due = InSlack(per_step=4.0, start=10, time_left_s=slack.left_s)
    assert slack.tick(due, 10, 0.01, math.inf) == 0  # nothing is owed for warm-up
    assert slack.tick(due, 15, 0.01, 0.2) == 0
    assert slack.tick(due, 15, 0.01, math.inf) == 20
    assert slack.tick(due, 16, 0.01, 0.2) == 4


def test_updates_stop_before_the_deadline_and_the_rest_is_owed(monkeypatch):
    slack = Slack(monkeypatch)
    due = InSlack(per_step=100.0, start=0, time_left_s=slack.left_s)
    slack.tick(due, 1, 0.01, math.inf)
    assert slack.tick(due, 2, 0.01, 0.1) == 9  # a tenth would end when the deadline comes
    assert slack.left_s() > 0
    assert slack.tick(due, 2, 0.01, math.inf) == 91


def test_an_update_that_was_slow_is_remembered_and_slowly_forgotten(monkeypatch):
    slack = Slack(monkeypatch)
    due = InSlack(per_step=math.inf, start=0, time_left_s=slack.left_s)
    assert slack.tick(due, 1, 0.01, math.inf) == InSlack.TRIALS  # without end only in the slack
    assert slack.tick(due, 2, 0.05, 0.07) == 1
    assert slack.tick(due, 3, 0.01, 0.049) == 0
    assert any(slack.tick(due, 4 + i, 0.01, 0.045) for i in range(40))


def test_the_debt_survives_a_checkpoint(monkeypatch):
    slack = Slack(monkeypatch)
    one, two = (InSlack(per_step=3.0, start=0, time_left_s=slack.left_s) for _ in range(2))
    slack.tick(one, 5, 0.01, math.inf)
    two.load(one.state())
    assert slack.tick(two, 6, 0.01, math.inf) == 3
