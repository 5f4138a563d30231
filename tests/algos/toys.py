"""Tiny worlds in plain numpy, and a sampler of a few lines: enough for an algorithm to learn from in seconds."""

from __future__ import annotations

import numpy as np

from roboloop.core.types import Array, EnvSpec, EpisodeEnd, Policy, Rollout

VECTOR = np.dtype(np.float32)


class World:
    """B copies of one task; ``obs`` is always the true present observation."""

    spec: EnvSpec

    def __init__(self, num_envs: int, seed: int = 0) -> None:
        self.num_envs, self.rng = num_envs, np.random.default_rng(seed)
        self.obs = np.zeros((num_envs, *self.spec.obs_shape), self.spec.obs_dtype)
        self.age = np.zeros(num_envs, int)
        self.reset(np.ones(num_envs, bool))

    def reset(self, envs: Array) -> None:
        """Begin episodes in the chosen environments."""
        self.age[envs] = 0
        self.begin(envs)

    def begin(self, envs: Array) -> None:
        """Write first observations."""
        raise NotImplementedError

    def step(self, action: Array) -> tuple[Array, Array, Array]:
        """Return reward, terminated, truncated."""
        raise NotImplementedError


class Match(World):
    """Name the context: one choice of three, one step per episode."""

    spec = EnvSpec((3,), VECTOR, (0.0,), (2.0,), 1, action_choices=(3,))

    def begin(self, envs: Array) -> None:
        self.obs[envs] = np.eye(3, dtype=np.float32)[self.rng.integers(0, 3, envs.sum())]

    def step(self, action: Array) -> tuple[Array, Array, Array]:
        done = np.ones(self.num_envs, bool)
        return (action[:, 0] == self.obs.argmax(1)).astype(np.float32), done, ~done


class Aim(World):
    """Go to the number that is shown, in an action's own units: continuous, two steps per episode, cut by the clock."""

    spec = EnvSpec((1,), VECTOR, (-4.0,), (2.0,), 2)

    def begin(self, envs: Array) -> None:
        self.obs[envs] = self.rng.uniform(-1, 1, (envs.sum(), 1))

    def step(self, action: Array) -> tuple[Array, Array, Array]:
        reward = -np.square(action[:, 0] - self.obs[:, 0]).astype(np.float32)
        self.age += 1
        self.begin(np.ones(self.num_envs, bool))
        return reward, np.zeros(self.num_envs, bool), self.age == 2


class Recall(World):
    """A sign is shown once; it must be named three steps later, when nothing is seen."""

    spec = EnvSpec((2,), VECTOR, (0.0,), (1.0,), 4, action_choices=(2,))

    def begin(self, envs: Array) -> None:
        self.sign = getattr(self, "sign", np.zeros(self.num_envs, int))
        self.sign[envs] = self.rng.integers(0, 2, envs.sum())
        self.obs[envs] = np.stack((2.0 * self.sign[envs] - 1.0, np.zeros(envs.sum())), axis=1)

    def step(self, action: Array) -> tuple[Array, Array, Array]:
        self.age += 1
        done = self.age == 4
        reward = np.where(done, action[:, 0] == self.sign, 0.0).astype(np.float32)
        self.obs[:, 0], self.obs[:, 1] = 0.0, self.age == 3
        return reward, done, np.zeros(self.num_envs, bool)


class Look(World):
    """Say which half of a picture is bright; pictures in a record with a vector that says nothing."""

    spec = EnvSpec(
        (),
        np.dtype([("image", np.uint8, (3, 12, 16)), ("vector", np.float32, (2,))]),
        (0.0,),
        (1.0,),
        1,
        action_choices=(2,),
    )

    def begin(self, envs: Array) -> None:
        side = self.rng.integers(0, 2, envs.sum())
        image = self.rng.integers(0, 100, (envs.sum(), 3, 12, 16))
        image[side == 0, :, :, :8] += 100
        image[side == 1, :, :, 8:] += 100
        self.obs["image"][envs] = image
        self.side = getattr(self, "side", np.zeros(self.num_envs, int))
        self.side[envs] = side

    def step(self, action: Array) -> tuple[Array, Array, Array]:
        done = np.ones(self.num_envs, bool)
        return (action[:, 0] == self.side).astype(np.float32), done, ~done


class Anything(World):
    """Random pictures, vectors, masks, rewards and ends; two choices and a continuous action between them."""

    spec = EnvSpec(
        (),
        np.dtype([("image", np.uint8, (2, 12, 16)), ("vector", np.float32, (3,)), ("action_mask", np.uint8, (7,))]),
        (0.0, -3.0, 0.0),
        (2.0, 1.0, 3.0),
        9,
        action_choices=(3, 0, 4),
    )

    def begin(self, envs: Array) -> None:
        count = int(envs.sum())
        self.obs["image"][envs] = self.rng.integers(0, 256, (count, 2, 12, 16))
        self.obs["vector"][envs] = self.rng.normal(2.0, 3.0, (count, 3))
        mask = self.rng.random((count, 7)) < 0.5
        mask[:, [0, 5]] = True
        self.obs["action_mask"][envs] = mask

    def step(self, action: Array) -> tuple[Array, Array, Array]:
        mask = self.obs["action_mask"]
        rows = np.arange(self.num_envs)
        assert mask[rows, action[:, 0].astype(int)].all(), "an impossible choice was made"
        assert mask[rows, 3 + action[:, 2].astype(int)].all(), "an impossible choice was made"
        self.begin(np.ones(self.num_envs, bool))
        ends = self.rng.random((2, self.num_envs)) < 0.1
        return self.rng.normal(size=self.num_envs).astype(np.float32), ends[0], ends[1]


class Player:
    """Plays on where it stopped; rollouts are new arrays each time."""

    def __init__(self, world: World, policy: Policy, seed: int = 0) -> None:
        self.world, self.rng = world, np.random.default_rng(seed)
        self.memory = np.zeros((world.num_envs, policy.memory_size), np.float32)

    def collect(self, policy: Policy, steps: int) -> Rollout:
        """Return ``steps`` of every environment."""
        world, envs, episodes = self.world, self.world.num_envs, list[EpisodeEnd]()
        rows: dict[str, list[Array]] = {n: [] for n in ("obs", "action", "reward", "end", "cut", "log_prob", "value")}
        first_memory = self.memory.copy()
        for t in range(steps):
            said = policy.act(world.obs, self.memory, True, self.rng)
            assert said.log_prob is not None
            assert said.value is not None
            rows["obs"].append(world.obs.copy())
            reward, terminated, truncated = world.step(said.action)
            self.memory = said.memory
            last_value = policy.act(world.obs, self.memory, False, self.rng).value
            assert last_value is not None
            for env in np.flatnonzero(terminated | truncated).tolist():
                value = float(last_value[env]) if truncated[env] and not terminated[env] else 0.0
                episodes.append(EpisodeEnd(env, 0, 1, 0.0, np.nan, t, world.obs[env].copy(), value))
            for name, column in (("action", said.action), ("reward", reward), ("end", terminated), ("cut", truncated),
                                 ("log_prob", said.log_prob), ("value", said.value)):  # fmt: skip
                rows[name].append(column)
            self.memory[terminated | truncated] = 0.0
            world.reset(terminated | truncated)
        rows["obs"].append(world.obs.copy())
        last = policy.act(world.obs, self.memory, False, self.rng).value
        assert last is not None
        a = {name: np.stack(parts) for name, parts in rows.items()}
        value, version = np.concatenate((a["value"], last[None])), np.full(envs, policy.version)
        return Rollout(
            a["obs"], a["action"], a["reward"], a["reward"], a["end"], a["cut"], a["log_prob"], value, first_memory,
            version, episodes,
        )  # fmt: skip
