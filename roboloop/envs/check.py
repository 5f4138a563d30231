"""The contract that every suite passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from roboloop.core.types import Array, Env, State
from roboloop.envs.auxiliary import AuxiliaryTasks
from roboloop.envs.env import Info

Step = tuple[Array, float, bool, bool, Info]


@contextmanager
def _opened(make: Callable[[], Env]) -> Iterator[Env]:
    env = make()
    try:
        yield env
    finally:
        env.close()


class ContractBroken(AssertionError):
    """What an environment did that the contract does not allow, as a sentence."""


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ContractBroken(message)


def random_actions(env: Env, count: int, seed: int = 0) -> Array:
    """Return uniform actions inside the bounds; choices are whole numbers."""
    spec, rng = env.spec, np.random.default_rng(seed)
    actions = rng.uniform(spec.action_low, spec.action_high, (count, spec.action_dim))
    for column, choices in enumerate(spec.action_choices):
        if choices:
            actions[:, column] = rng.integers(0, choices, count)
    return actions.astype(np.float32)


def _play(env: Env, actions: Array) -> list[Step]:
    """Step until the actions or the episode end."""
    steps: list[Step] = []
    for action in actions:
        steps.append(env.step(action))
        if steps[-1][2] or steps[-1][3]:
            break
    return steps


def _same(a: list[Step], b: list[Step]) -> bool:
    """Compare bit for bit: observations, rewards, flags and success."""
    return len(a) == len(b) and all(
        x[0].dtype == y[0].dtype and x[0].tobytes() == y[0].tobytes() and x[1:] == y[1:]
        for x, y in zip(a, b, strict=True)
    )


def _copy(state: State) -> State:
    """Return a state as a checkpoint would hand it back: nothing shared with the environment."""
    return {
        k: _copy(v) if isinstance(v, dict) else v.copy() if isinstance(v, np.ndarray) else v for k, v in state.items()
    }


def parts_of(obs: Array) -> list[Array]:
    """Return the fields of a record, or the array itself."""
    return [obs[name] for name in obs.dtype.names] if obs.dtype.names else [obs]


def check_bounds(env: Env) -> None:
    """Action bounds are finite, and choices are numbered from zero."""
    spec = env.spec
    low, high = np.asarray(spec.action_low), np.asarray(spec.action_high)
    choices = np.asarray(spec.action_choices or (0,) * spec.action_dim)
    _require(len(choices) == spec.action_dim, "there is not one number of choices per action column")
    _require(bool(np.isfinite(low).all() and np.isfinite(high).all()), "action bounds are not finite")
    _require(bool((low < high)[choices == 0].all()), "action bounds are broken")
    whole = (low == 0) & (high == choices - 1)
    _require(bool(whole[choices > 0].all()), "choices are not numbered from zero")


def check_spaces(env: Env) -> None:
    """Observations, rewards and flags have the shapes and types that the spec promises."""
    spec = env.spec
    check_bounds(env)
    for key in ("suite", "task", "horizon", "action_repeat"):
        _require(key in spec.protocol, f"the protocol does not name its {key}")
    example = np.zeros(spec.obs_shape, spec.obs_dtype)
    _require(all(part.size for part in parts_of(example)), "observations hold nothing")
    obs = env.reset(0)
    for step in _play(env, random_actions(env, 5)):
        for seen in (obs, step[0]):
            _require(seen.shape == spec.obs_shape, f"observation {seen.shape} is not {spec.obs_shape}")
            _require(isinstance(seen, np.ndarray), f"observation is a {type(seen).__name__}, not an array")
            _require(seen.dtype == spec.obs_dtype, f"observation {seen.dtype} is not {spec.obs_dtype}")
            _require(seen.flags.c_contiguous, "observation is not contiguous")
            _require(all(bool(np.isfinite(part).all()) for part in parts_of(seen)), "observation is not finite")
        _require(type(step[1]) is float, f"reward is a {type(step[1]).__name__}, not a float")
        _require(type(step[2]) is bool and type(step[3]) is bool, "flags are not bools")
        for key in ("success", "raw_reward"):
            _require(type(step[4].get(key, 0.0)) is float, f"{key} is not a float")


def check_same_seed(env: Env, other: Env, steps: int) -> None:
    """A seed determines its episode, in any instance and after any history."""
    actions = random_actions(env, steps)
    first = env.reset(7), _play(env, actions)
    for again in (env, other):
        obs = again.reset(7)
        _require(obs.tobytes() == first[0].tobytes(), "the same seed gave another first observation")
        _require(_same(_play(again, actions), first[1]), "the same seed and actions gave another trajectory")


def check_other_seed(env: Env, steps: int) -> None:
    """Another seed gives another episode."""
    actions = random_actions(env, steps)
    first = env.reset(7), _play(env, actions)
    obs = env.reset(8)
    differs = obs.tobytes() != first[0].tobytes() or not _same(_play(env, actions), first[1])
    _require(differs, "another seed gave the same episode")  # some worlds look alike at their first step


def check_seeding(env: Env, other: Env, steps: int) -> None:
    """A seed determines its episode; another seed gives another one."""
    check_same_seed(env, other, steps)
    check_other_seed(env, steps)


def check_observations_are_owned(env: Env) -> None:
    """An observation does not change when the environment moves on."""
    obs = env.reset(1)
    steps = _play(env, random_actions(env, 3))
    seen = [obs, *(step[0] for step in steps)]
    kept = [x.copy() for x in seen]
    if steps[-1][2] or steps[-1][3]:  # some worlds are over that soon
        env.reset(2)
    _play(env, random_actions(env, 3, seed=1))
    _require(
        all(x.tobytes() == y.tobytes() for x, y in zip(seen, kept, strict=True)),
        "a returned observation was overwritten",
    )


def check_state(make: Callable[[], Env], env: Env, steps: int) -> None:
    """A fresh instance with a saved state goes on bit for bit, from the reset, mid-episode and the episode's end."""
    actions = random_actions(env, steps)
    for cut in (0, 1, steps // 2):
        env.reset(11)
        head = _play(env, actions[:cut])
        if head and (head[-1][2] or head[-1][3]):
            continue
        state = _copy(env.get_state())
        tail = _play(env, actions[cut:])
        with _opened(make) as fresh:
            fresh.reset(99)
            fresh.set_state(_copy(state))
            _require(_same(_play(fresh, actions[cut:]), tail), f"restored at step {cut}, the episode went another way")
        env.set_state(state)
        _require(_same(_play(env, actions[cut:]), tail), f"rewound to step {cut}, the episode went another way")


def check_end(make: Callable[[], Env], own_clock: bool = False) -> None:
    """At the horizon the clock truncates and never terminates, stepping on is refused, and the state survives.

    With a clock of its own an environment may truncate earlier.
    """
    with _opened(make) as env, _opened(make) as fresh:
        for seed in range(20):  # a random policy may fall before the horizon
            env.reset(seed)
            steps = _play(env, random_actions(env, env.spec.max_episode_steps + 1, seed))
            if steps[-1][3]:
                break
        _require(steps[-1][3] or steps[-1][2], "the episode outlived its horizon")
        if steps[-1][3]:
            is_early = len(steps) < env.spec.max_episode_steps and own_clock
            _require(is_early or len(steps) == env.spec.max_episode_steps, f"truncated after {len(steps)} steps")
            _require(not steps[-1][2], "the clock terminated the episode")
        fresh.set_state(_copy(env.get_state()))
        for ended in (env, fresh):
            try:
                ended.step(random_actions(env, 1)[0])
            except RuntimeError:
                continue
            raise ContractBroken("a step after the end was not refused")
        _require(env.reset(3).tobytes() == fresh.reset(3).tobytes(), "the reset after an ended episode differs")


def check_clipping(env: Env) -> None:
    """An action outside the bounds does what the nearest one inside does."""
    high, low = np.asarray(env.spec.action_high, np.float32), np.asarray(env.spec.action_low, np.float32)
    for inside, outside in ((high, high + 10), (low, low - 10)):
        env.reset(5)
        first = _play(env, np.stack([inside] * 3))
        env.reset(5)
        _require(_same(_play(env, np.stack([outside] * 3)), first), "actions are not clipped to their bounds")


def check_picture(env: Env) -> None:
    """The picture is an image with something in it, and taking it changes nothing."""
    actions = random_actions(env, 4)
    env.reset(2)
    first = _play(env, actions)
    env.reset(2)
    frame = env.render()
    _require(
        frame.ndim == 3 and frame.shape[2] == 3 and frame.dtype == np.uint8, f"picture {frame.shape} {frame.dtype}"
    )
    _require(int(frame.max()) > int(frame.min()), f"the picture is of one colour, {int(frame.min())}")
    _require(_same(_play(env, actions), first), "rendering changed the episode")


def check_tasks(env: Env, tasks: AuxiliaryTasks, steps: int = 40) -> None:
    """Auxiliary tasks are the declared ones, and pure functions of the rows that they are given, each by itself."""
    _require(env.spec.tasks == tasks.names, f"the spec names {env.spec.tasks}, the tasks are {tasks.names}")
    _require(len(set(tasks.names)) == len(tasks.names), "two tasks have one name")
    actions, obs = random_actions(env, steps), env.reset(4)
    seen = np.stack([obs, *(step[0] for step in _play(env, actions))])
    before, after, actions = seen[:-1], seen[1:], actions[: len(seen) - 1]
    kept = before.tobytes(), actions.tobytes(), after.tobytes()
    shape = (len(before), len(tasks.names))
    for function, dtype in ((tasks.task_rewards, np.float32), (tasks.task_successes, np.bool_)):
        found = function(before, actions, after)
        name = f"{function.__name__} of {len(before)} transitions"
        _require(found.shape == shape and found.dtype == dtype, f"{name} are {found.dtype} {found.shape}")
        _require(bool(np.isfinite(found).all()), f"{name} are not finite")
        rows = [function(before[i : i + 1], actions[i : i + 1], after[i : i + 1]) for i in range(len(before))]
        _require(np.concatenate(rows).tobytes() == found.tobytes(), f"{name} depend on other rows")
    same = kept == (before.tobytes(), actions.tobytes(), after.tobytes())
    _require(same, "the tasks changed what they were given")


def check_env(make: Callable[[], Env], steps: int = 60, pictures: bool = True) -> None:
    """Raise ``AssertionError`` with a sentence where an environment breaks the contract."""
    with _opened(make) as env, _opened(make) as other:
        check_spaces(env)
        check_seeding(env, other, steps)
        check_observations_are_owned(env)
        check_clipping(env)
        check_state(make, env, steps)
        if pictures:
            check_picture(env)
    check_end(make)
