"""From a config to guided play: its tasks, its teacher's data, and the policy of a saved run."""

from __future__ import annotations

from roboloop.algos.guided import GuidedPlay, make_guided
from roboloop.algos.guided_config import GuidedSettings, IntentionSettings, LfGPConfig
from roboloop.algos.intention_policy import IntentionPolicy, as_set
from roboloop.algos.policy import ActorPolicy
from roboloop.core.errors import ConfigError
from roboloop.core.types import Array, EnvSpec, State
from roboloop.envs import registry
from roboloop.run.build import experts_of, task_names
from roboloop.run.config import Experiment


def make(cfg: Experiment, algo: GuidedSettings, spec: EnvSpec) -> GuidedPlay:
    """Return the algorithm; what experts must have done is read now."""
    tasks = algo.tasks_of(task_names(cfg, spec))
    if isinstance(algo, IntentionSettings) and algo.schedule.name == "learned":
        rows = cfg.replay.capacity // cfg.env.num_envs
        if rows < spec.max_episode_steps + 2:
            what = f"replay.capacity has {rows} rows for one of {spec.max_episode_steps} steps"
            raise ConfigError(f"schedule 'learned' looks back on whole episodes: {what}")
    if not isinstance(algo, LfGPConfig) or algo.imitates:
        return make_guided(algo, spec, tasks, experts_of(algo.expert, spec, cfg, tasks), cfg.seed, cfg.device)
    auxiliary = registry.auxiliary_tasks(cfg.env)
    columns = [auxiliary.names.index(task) for task in tasks]

    def formula(obs: Array, action: Array, next_obs: Array) -> Array:
        return auxiliary.task_rewards(obs, action, next_obs)[:, columns]

    return make_guided(algo, spec, tasks, formula, cfg.seed, cfg.device)


def policy_of_intentions(cfg: Experiment, algo: IntentionSettings, spec: EnvSpec, state: State) -> IntentionPolicy:
    """Return the policy of a saved state of the whole run."""
    tasks = algo.tasks_of(task_names(cfg, spec))
    actor = ActorPolicy.from_state(state["algo"]["policy"], as_set(spec, tasks))
    actor.version = int(state["algo"]["num_updates"])
    policy = IntentionPolicy(actor, algo.schedule, tasks, spec.max_episode_steps, cfg.seed)
    policy.scheduler.load(state["algo"]["scheduler"])
    return policy
