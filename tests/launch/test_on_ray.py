"""What Ray says of a run, judged without a cluster: a stand-in answers for it."""

from types import SimpleNamespace

import pytest

from roboloop.core.cluster import telling_line
from roboloop.core.errors import ConfigError
from roboloop.launch.job import Job
from roboloop.launch.on_ray import OnRay, RayRun


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class ActorUnavailableError(RayError):
    pass


class GetTimeoutError(RayError):
    """As Ray's."""


DEAD, ALIVE = "dead" * 14, "beef" * 14
TRACEBACK = """The actor died because of an error raised in its creation task, ray::_RayTrial.__init__() (pid=7)
RuntimeError: The actor with name _RayTrial failed to import on the worker. This may be because:
ray::_RayTrial.__init__() (pid=7, ip=10.0.0.7)
ModuleNotFoundError: No module named 'roboloop'
"""


def cluster(error: Exception | None = None, cpus: tuple[float, ...] = (2.0, 2.0)) -> SimpleNamespace:
    def get(answer: object, timeout: float) -> object:
        raise error or AssertionError

    nodes = [{"NodeID": ALIVE, "Alive": True, "Resources": {"CPU": number}} for number in cpus]
    nodes.append({"NodeID": DEAD, "Alive": False, "Resources": {"CPU": 64.0}})
    return SimpleNamespace(
        nodes=lambda: nodes, wait=lambda answers, timeout: (answers, []), get=get, kill=lambda actor: None,
        remote=lambda cls: cls,
        exceptions=SimpleNamespace(
            RayError=RayError, RayTaskError=RayTaskError, ActorUnavailableError=ActorUnavailableError,
            GetTimeoutError=GetTimeoutError,
        ),
    )  # fmt: skip


def ended(tmp_path, error: Exception, node: str | None = None) -> RayRun:
    run = RayRun(cluster(error), None, "answer", Job(tmp_path))
    run._node = node
    assert run.poll() is not None
    return run


def test_a_start_that_fails_is_no_lost_machine_and_says_why(tmp_path):
    for error, why in (
        (
            RayTaskError("ray::start_here()\n  File ...\nOSError: [Errno 28] No space left"),
            "OSError: [Errno 28] No spa",
        ),
        (RayError(TRACEBACK), "ModuleNotFoundError: No module named 'roboloop'"),
        (RayError("The actor died unexpectedly before finishing this task.\n\tpid: 7"), "The actor died unexpectedly"),
        (RayTaskError(f"RuntimeError: node {DEAD} is full"), "RuntimeError: node dead"),  # raised here, not lost there
    ):
        run = ended(tmp_path, error)
        assert (run.machine_lost, run.returncode) == (False, 1)
        assert run.why.startswith(why)


def test_a_machine_that_dies_is_lost_whether_its_run_had_begun_or_not(tmp_path):
    before = ended(tmp_path, RayError(f"The actor died because its node has died. Node Id: {DEAD}"))
    after = ended(tmp_path, RayError("The actor died"), DEAD)
    for run in (before, after):
        assert (run.machine_lost, run.returncode) == (True, -9)
        assert run.why == "its machine was lost, node deaddead"
    alone = ended(tmp_path, RayError("The actor died because it was killed"), ALIVE)
    assert (alone.machine_lost, alone.returncode) == (False, -9)


def test_an_answer_that_is_still_on_its_way_is_waited_for_no_longer_and_is_no_loss(tmp_path):
    run = RayRun(cluster(GetTimeoutError()), None, "answer", Job(tmp_path))
    assert run.poll() is None
    assert (run._answer, run.returncode, run.machine_lost) == ("answer", None, False)


def test_a_run_that_cannot_be_reached_for_now_is_asked_again(tmp_path):
    actor = SimpleNamespace(poll_soon=SimpleNamespace(remote=lambda: "the next answer"))
    run = RayRun(cluster(ActorUnavailableError("connection reset")), actor, "answer", Job(tmp_path))
    run._node = ALIVE
    assert run.poll() is None
    assert run._answer == "the next answer"
    never_begun = ended(tmp_path, ActorUnavailableError("connection reset"))  # nobody knows what would answer
    assert (never_begun.machine_lost, never_begun.returncode) == (False, 1)


def test_an_error_without_words_has_a_name():
    assert telling_line(RayError("")) == "RayError"


def test_there_is_room_for_as_many_runs_as_fit_on_single_machines(monkeypatch):
    def slots(cores: int, *cpus: float) -> int:
        monkeypatch.setattr("roboloop.launch.on_ray.connect", lambda address: (cluster(cpus=cpus), False))
        return len(OnRay("", cores, False, 0).slots(None, None))

    assert slots(2, 5.0, 3.0, 1.0) == 3  # nine CPUs, but no machine has the fourth pair
    with pytest.raises(ConfigError, match=r"one needs 4 CPU, a machine has at most 3 CPU$"):
        slots(4, 3.0, 3.0)
