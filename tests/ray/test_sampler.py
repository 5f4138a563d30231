import os
import signal
import time

import numpy as np
import pytest

from roboloop.core.errors import ConfigError, WorkerLost
from roboloop.core.processes import family
from roboloop.core.state import equal
from roboloop.envs.registry import make
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.config import SampleConfig
from roboloop.sample.crew import WorkerPool
from roboloop.sample.group import plans
from roboloop.sample.parallel import FreeSampler, LockStepSampler
from tests.ray.kit import Cluster, listens_only_on_loopback
from tests.sample.kit import LinearPolicy
from tests.sample.test_parallel import NUM_ENVS, assert_fresh_as_the_queue_allows, misbehaving, serial
from tests.sample.test_serial import CONFIG, fields

pytestmark = pytest.mark.alone


@pytest.fixture
def build(cluster: Cluster):
    """Make samplers on the cluster that are closed when the test ends."""
    from roboloop.sample.on_ray import RayPlace

    made = []

    def make_sampler(policy, env=CONFIG, free=False, steps=5, **cfg):
        cfg = {"groups": 2, "workers": 2, "free_running": free, "on": "ray", "address": cluster.address, **cfg}
        cfg = SampleConfig(**cfg)
        shape = RolloutShape(make(env).spec, steps, NUM_ENVS, 1, False, policy.memory_size)
        crew = WorkerPool(env, plans(NUM_ENVS, cfg.groups, 0), shape, cfg, cfg.queue if free else 1, [policy],
                    lambda board: RayPlace(cfg, board))  # fmt: skip
        made.append(FreeSampler(crew) if free else LockStepSampler(crew))
        return made[-1]

    yield make_sampler
    for sampler in made:
        sampler.close()


def policy():
    return LinearPolicy(3, 1)


def links(sampler):
    return [worker.link for worker in sampler._crew._workers]


def until_cut(sampler, p, limit_s=60.0):
    """Collect until a loss is seen; rollouts that were finished before it come first."""
    deadline_s = time.monotonic() + limit_s
    while not (rollout := sampler.collect(p)).cut:
        assert time.monotonic() < deadline_s
    return rollout


def test_remote_workers_in_lock_step_collect_the_same_bits_as_the_serial_sampler(build):
    a, b = policy(), policy()
    theirs, ours = build(b, groups=4), serial(groups=4)
    for _ in range(3):
        assert equal(fields(ours.collect(a)), fields(theirs.collect(b)))
        a.improve(), b.improve()
    on = {link._where["node"] for link in links(theirs)}
    assert len(on) == 2  # they are spread over machines
    moved = serial(groups=4)
    moved.load(theirs.state())
    assert equal(fields(moved.collect(a)), fields(theirs.collect(b)))


def test_free_running_remote_workers_give_every_step_once_as_fresh_as_the_queue_allows(build):
    p = policy()
    s = build(p, free=True, steps=5)
    seen, given = {env: [] for env in range(NUM_ENVS)}, {}
    while min(len(rows) for rows in seen.values()) < 20:
        rollout = s.collect(p)
        assert_fresh_as_the_queue_allows(given, rollout, p.version)
        for column in range(rollout.reward.shape[1]):
            seen[rollout.first_env + column] += rollout.obs[:-1, column].tolist()
        p.improve()
    expected = serial(steps=max(len(rows) for rows in seen.values())).collect(policy())
    for env, rows in seen.items():
        assert rows[::7] == expected.obs[: len(rows) : 7, env].tolist()


def test_a_killed_remote_worker_is_named_replaced_and_its_running_episodes_are_cut(build):
    p = policy()
    s = build(p)
    s.collect(p)
    os.kill(links(s)[1].pid, signal.SIGKILL)
    rollout = until_cut(s, p)
    assert rollout.cut == (2, 3)
    assert (rollout.memory[2:] == 0).all()
    assert not s.collect(p).cut
    (said,) = s.faults()
    assert "worker 1 (pid " in said
    assert "on 127.0.0." in said
    assert s.stats()["sample/restarts"] == 1


def test_a_remote_worker_that_hangs_is_found_and_its_stack_is_shown(build, permits_everywhere):
    p = policy()
    s = build(p, misbehaving("hang"), steps=8, hang_s=2.0, restarts=0)
    with pytest.raises(WorkerLost, match=r"(?s)hung in env.step of env.*kit.py.*in step"):
        s.collect(p)


def test_more_workers_than_the_cluster_has_cpus_are_refused(build):
    for workers, worker_cpus in ((4, 2.0), (2, 3.0)):  # also where no machine alone has room for one
        with pytest.raises(ConfigError, match=r"more than the 2 \+ 2 \+ 2 CPUs of the Ray cluster"):
            build(policy(), groups=4, workers=workers, worker_cpus=worker_cpus)


def test_an_address_where_nobody_listens_is_one_line(cluster):
    import ray

    from roboloop.core import cluster as joined

    ray.shutdown()
    with pytest.raises(ConfigError, match=r"no Ray cluster at 127\.0\.0\.1:1 "):
        joined.connect("ray://127.0.0.1:1")


def test_all_workers_of_a_lost_machine_are_one_loss_and_only_their_episodes_are_cut(cluster, build):
    p = policy()
    s = build(p, free=True, groups=4, workers=4, restarts=1)
    while not all(link.pid for link in links(s)):  # all have begun
        s.collect(p)
    nodes = [link._where["node"] for link in links(s)]
    doomed = max(nodes, key=nodes.count)
    lost = {env for env, node in enumerate(nodes) if node == doomed}
    assert len(lost) == 2
    cluster.kill(doomed)
    cut, counts = set(), np.zeros(4, int)
    deadline_s = time.monotonic() + 60
    while cut != lost or counts.min() < 3:  # all environments go on
        assert time.monotonic() < deadline_s
        rollout = s.collect(p)
        cut |= set(rollout.cut)
        counts[rollout.first_env] += 1
    assert s.stats()["sample/restarts"] == 1
    assert all("was lost with its machine" in said for said in s.faults())


def test_nothing_listens_beyond_loopback(cluster, build):
    p = policy()
    build(p).collect(p)
    assert listens_only_on_loopback(set(family(os.getpid())))
