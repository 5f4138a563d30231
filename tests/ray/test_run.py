"""Whole runs whose workers are on several machines, one of which may die."""

import numpy as np
import pytest

from roboloop.core.config import override
from roboloop.data.replay import FINAL, TRUNCATED
from roboloop.run.rundir import RunDir
from roboloop.track.read import read_jsonl
from tests.ray.kit import Cluster
from tests.run.helpers import make_runner, remains, train
from tests.run.test_resume import assert_same

pytestmark = pytest.mark.alone


def test_sac_loses_with_a_machine_no_step_that_it_was_given_and_its_journal_has_each_once(tiny):
    cluster = Cluster(nodes=3, is_fast=False)  # as real ones: Ray takes its time to hold a machine for lost
    handed = {env: [] for env in range(4)}
    cut = set()
    try:
        sample = {"groups": 4, "workers": 4, "free_running": True, "on": "ray", "address": cluster.address, "steps": 5}
        # 37: rollouts of 5 steps end between two episodes only after 185, so that what is cut was in the middle of one
        run = RunDir.create(tiny(steps=600, env={"num_envs": 4, "max_episode_steps": 37}, sample=sample), [])
        runner = make_runner(run)
        collect, nodes = runner.sampler.collect, []

        def watched(policy):
            rollout = collect(policy)
            for column in range(rollout.reward.shape[1]):
                handed[rollout.first_env + column] += rollout.reward[:, column].tolist()
            cut.update(rollout.cut)
            if not nodes and min(map(len, handed.values())) >= 50:  # all work, and are in the middle of something
                nodes.extend(worker.link._where["node"] for worker in runner.sampler._crew._workers)
                cluster.kill(max(nodes, key=nodes.count))
            return rollout

        runner.sampler.collect = watched
        assert runner.train() == "done"
        assert runner.sampler.stats()["sample/restarts"] == 1
        assert runner.clock.updates == runner.clock.step - 60  # one for each step after the warm-up
        runner.close()
        run.close()
    finally:
        cluster.close()
    doomed = max(nodes, key=nodes.count)
    assert cut == {env for env, node in enumerate(nodes) if node == doomed}
    assert min(map(len, handed.values())) > 60  # those too went on
    assert sum(map(len, handed.values())) == runner.clock.step
    alone = RunDir.open(run.path, write=True, check_names=False)  # the address is ours
    alone.save_config(override(alone.config, {"sample": {"on": "processes", "address": ""}}))
    again = make_runner(alone)
    assert again.resume(print) == runner.clock.step
    store, cuts = again.store, set()
    for env, rewards in handed.items():
        written = slice(0, int(store._head[env]))
        flags, reward, age = (column[env, written] for column in (store._flags, store._reward, store._age))
        is_step = flags != FINAL
        np.testing.assert_array_equal(reward[is_step], np.array(rewards, np.float32))
        lengths = age[flags == FINAL]
        cuts |= {env} if set(lengths) - {37} else set()  # an episode of Pendulum has all its steps unless it was cut
        assert (flags[:-1][~is_step[1:]] & TRUNCATED).all()
    assert cuts == cut
    again.close()
    alone.close()


PPO = {"name": "ppo", "hidden": [16], "rollout_steps": 16, "minibatches": 2, "processes": 1}
CART = {"id": "tiny/cart", "num_envs": 4, "max_episode_steps": 20, "eval_max_episode_steps": 20}


def test_ppo_in_lock_step_over_machines_learns_the_same_bits_as_alone(tiny, cluster):
    alone = train(tiny(experiment="alone", steps=512, env=CART, algo=PPO, sample={"groups": 2}))
    sample = {"groups": 2, "workers": 2, "on": "ray", "address": cluster.address}
    spread = train(tiny(experiment="spread", steps=512, env=CART, algo=PPO, sample=sample))
    assert remains(alone)["metrics"] == remains(spread)["metrics"]
    assert_same(alone, spread)


def test_algorithm_suite_and_reward_of_a_package_of_ones_own_learn_the_same_bits_over_machines_as_alone(tiny, cluster):
    own = {"env": {**CART, "id": "planar/reach", "reward": "outside.pendulum:fast"}, "algo": {"name": "td3"}}
    alone = train(tiny(experiment="alone", steps=160, sample={"groups": 2}, **own))
    sample = {"groups": 2, "workers": 2, "on": "ray", "address": cluster.address}
    spread = train(tiny(experiment="spread", steps=160, sample=sample, **own))
    assert_same(alone, spread)
    assert any("train/shaped_return" in row for row in read_jsonl(spread / "metrics.jsonl"))


def test_free_running_ppo_learns_from_several_machines_and_says_how_old_its_rollouts_are(tiny, cluster):
    sample = {"groups": 2, "workers": 2, "free_running": True, "on": "ray", "address": cluster.address}
    run = RunDir.create(tiny(steps=1024, env=CART, algo=PPO, sample=sample), [])
    runner = make_runner(run)
    assert runner.train() == "done"
    nodes = {worker.link._where["node"] for worker in runner.sampler._crew._workers}
    runner.close()
    run.close()
    assert len(nodes) == 2
    assert runner.clock.updates >= 1024 // 32  # at least one for each rollout of two environments
    lags = [row["sample/lag_max"] for row in read_jsonl(run.metrics) if "sample/lag_max" in row]
    assert lags
    assert min(lags) >= 0
