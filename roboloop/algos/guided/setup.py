"""From a config to guided play: its tasks, its demonstrations, and the policy of a saved run."""

from __future__ import annotations

from roboloop.algos.gail.demonstrations import demonstrations, task_names
from roboloop.algos.guided.config import GuidedSettings, IntentionSettings
from roboloop.algos.guided.guided import GuidedPlay, learner_of, make_guided
from roboloop.algos.guided.intention_policy import IntentionPolicy, as_set
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.sac.sac import SAC
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


def load_dac(setup: Setup, state: State) -> LearnerPolicy:
    """Return the policy of a saved state of DAC."""
    return LearnerPolicy.from_state(SAC(setup.config.sac, setup.spec), state)


def load_intentions(setup: Setup, state: State) -> IntentionPolicy:
    """Return the policy of a saved state."""
    algo: IntentionSettings = setup.config
    tasks = algo.tasks_of(task_names(setup))
    learner, own = learner_of(algo, len(tasks))
    actor = LearnerPolicy.from_state(learner(own, as_set(setup.spec, tasks)), state)
    policy = IntentionPolicy(actor, algo.schedule, tasks, setup.spec.max_episode_steps, setup.seed)
    policy.scheduler.load(state["scheduler"])
    return policy
