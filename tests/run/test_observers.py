import time
from typing import ClassVar

import pytest

from roboloop.core.errors import ConfigError
from roboloop.run.observers import MAILBOX, Observers
from tests.own import own_s


class Watcher:
    """Remembers what it saw; the class is what a config names."""

    seen: ClassVar[list] = []

    def on_episode(self, facts):
        self.seen.append(facts)


class Sleeper:
    def on_episode(self, facts):
        time.sleep(0.05)


class Thrower:
    def on_checkpoint(self, facts):
        raise RuntimeError("no disk for me")


class Blind:
    pass


def name(kind):
    return f"{__name__}:{kind.__name__}"


def test_an_observer_sees_the_events_it_has_methods_for():
    Watcher.seen = []
    observers = Observers([name(Watcher)], 1.0)
    observers.post("on_episode", {"step": 1})
    observers.post("on_checkpoint", {"step": 2})
    observers.close()
    assert Watcher.seen == [{"step": 1}]


def test_a_slow_observer_never_delays_training_and_is_named_with_its_budget():
    observers = Observers([name(Sleeper)], 0.01)
    begin_s = own_s()
    for step in range(10 * MAILBOX):
        observers.post("on_episode", {"step": step})
    assert own_s() - begin_s < 1.0
    said = "\n".join(observers.messages())
    deadline_s = time.monotonic() + 60
    while "took" not in said and time.monotonic() < deadline_s:  # the first of them is over in 0.05 s
        time.sleep(0.01)
        said += "\n".join(observers.messages())
    assert "Sleeper.on_episode took" in said
    assert "budget is 0.01 s" in said
    assert "events dropped" in said
    for box in observers._boxes:
        box._events.clear()
    observers.close()


def test_an_observer_that_raises_is_named_with_its_traceback_and_training_goes_on():
    observers = Observers([name(Thrower)], 1.0)
    observers.post("on_checkpoint", {})
    observers.close()
    (said,) = observers.messages()
    assert "Thrower.on_checkpoint raised" in said
    assert "no disk for me" in said


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("nonsense", "module:Class"),
        ("no_such_module:X", "cannot be imported"),
        (f"{__name__}:Watchr", "did you mean 'Watcher'"),
        (f"{__name__}:Blind", "has none of the methods"),
    ],
)
def test_an_observer_that_cannot_be_used_is_refused_before_training(wrong, message):
    with pytest.raises(ConfigError, match=message):
        Observers([wrong], 1.0)
