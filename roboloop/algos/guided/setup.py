"""From a config to guided play: its tasks, its demonstrations, and the policy of a saved run."""

from __future__ import annotations

from roboloop.algos.gail.demonstrations import demonstrations, task_names
from roboloop.algos.guided.config import GuidedSettings, IntentionSettings
from roboloop.algos.guided.guided import GuidedPlay, make_guided
from roboloop.algos.guided.intention_policy import IntentionPolicy, as_set
from roboloop.algos.policy import ActorPolicy
from roboloop.algos.spec import Setup
from roboloop.core.errors import ConfigError
from roboloop.core.types import Array, State
from roboloop.envs import registry


def make(setup: Setup) -> GuidedPlay:
    """Return the algorithm for a run; its demonstrations are read now."""
    algo: GuidedSettings = setup.config
    tasks = algo.tasks_of(task_names(setup))
    if algo.looks_back:
        rows, needed = setup.experiment.replay.capacity // setup.env.num_envs, setup.spec.max_episode_steps
        if rows < needed + 2:
            what = f"replay.capacity has {rows} rows for one of {needed} steps"
            raise ConfigError(f"schedule 'learned' looks back on whole episodes: {what}")
    if algo.imitates:
        told_by = demonstrations(algo.expert, setup, tasks)
        return make_guided(algo, setup.spec, tasks, told_by, setup.seed, setup.device)
    auxiliary = registry.auxiliary_tasks(setup.env)
    columns = [auxiliary.names.index(task) for task in tasks]

    def formula(obs: Array, action: Array, next_obs: Array) -> Array:
        return auxiliary.task_rewards(obs, action, next_obs)[:, columns]

    return make_guided(algo, setup.spec, tasks, formula, setup.seed, setup.device)


def load_intentions(setup: Setup, state: State) -> IntentionPolicy:
    """Return the policy of a saved state."""
    algo: IntentionSettings = setup.config
    tasks = algo.tasks_of(task_names(setup))
    actor = ActorPolicy.from_state(state["policy"], as_set(setup.spec, tasks))
    actor.version = int(state["num_updates"])
    policy = IntentionPolicy(actor, algo.schedule, tasks, setup.spec.max_episode_steps, setup.seed)
    policy.scheduler.load(state["scheduler"])
    return policy
