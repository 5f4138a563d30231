"""Rollouts whose every number says where it belongs, and a recorder whose writer lives in the same process."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from roboloop.core.config import override
from roboloop.core.types import EnvSpec, EpisodeEnd, Rollout
from roboloop.data.config import RecordConfig
from roboloop.data.dataset import Dataset
from roboloop.data.recorder import Recorder, RecordSource
from roboloop.data.recorder_process import Writer

SPEC = EnvSpec((3,), np.dtype(np.float32), (-1.0, -1.0), (1.0, 1.0), 1000, {"task": "counting"})


class Counting:
    """Environments that see (environment, episode, step); ``lengths`` gives the length of an episode of one."""

    def __init__(self, num_envs, lengths, spec=SPEC, stack=1):
        self.num_envs, self._lengths, self.spec, self._stack = num_envs, lengths, spec, stack
        self.episode, self.t = [0] * num_envs, [0] * num_envs
        self.version = self.steps = 0

    def obs(self, env, t=None):
        value = np.zeros(self.spec.obs_shape, self.spec.obs_dtype)
        numbers = (env, self.episode[env], self.t[env] if t is None else t)
        if self.spec.obs_dtype.names:
            value["image"], value["vector"] = numbers[2] % 256, numbers
        else:
            value[:] = numbers
        return value

    def seen(self, env):
        if self._stack == 1:
            return self.obs(env)
        return np.stack([self.obs(env, max(0, self.t[env] - k)) for k in reversed(range(self._stack))])

    def collect(self, steps, first=0, count=None, lost=(), cut=()):
        """Return a rollout of some environments; (env, t) in ``lost`` break their episodes behind that row."""
        count = count or self.num_envs
        envs = range(first, first + count)
        for env in cut:
            self.episode[env], self.t[env] = self.episode[env] + 1, 0
        self.version += 1
        one = np.zeros((steps, count), np.float32)
        shape = (self._stack, *self.spec.obs_shape) if self._stack > 1 else self.spec.obs_shape
        out = Rollout(
            obs=np.zeros((steps + 1, count, *shape), self.spec.obs_dtype),
            action=np.zeros((steps, count, 2), np.float32),
            reward=one,
            raw_reward=one.copy(),
            terminated=one > 0,
            truncated=one > 0,
            log_prob=one.copy(),
            value=np.zeros((steps + 1, count), np.float32),
            memory=np.zeros((count, 0), np.float32),
            version=np.full(count, self.version, np.int64),
            episodes=[],
            cut=tuple(cut),
            first_env=first,
        )
        for t in range(steps):
            for column, env in enumerate(envs):
                out.obs[t, column] = self.seen(env)
                out.action[t, column] = (self.t[env], env)
                out.raw_reward[t, column] = self.t[env]
                out.reward[t, column] = 2 * self.t[env]
                out.log_prob[t, column] = -self.t[env]
                out.value[t, column] = 10 + self.t[env]
                self.t[env] += 1
                if (env, t) in lost or self.t[env] == self._lengths(env, self.episode[env]):
                    self._end(out, column, env, t, (env, t) in lost)
        for column, env in enumerate(envs):
            out.obs[steps, column] = self.seen(env)
        self.steps += steps * count
        return out

    def _end(self, out, column, env, t, is_lost):
        length = self.t[env]
        out.truncated[t, column] = is_lost or self.episode[env] % 2 == 1
        out.terminated[t, column] = not out.truncated[t, column]
        raw = length * (length - 1) / 2
        out.episodes.append(
            EpisodeEnd(env, self.episode[env], length, raw, np.nan, t, self.seen(env), 0.0, 2 * raw, is_lost)
        )
        self.episode[env], self.t[env] = self.episode[env] + 1, 0


class InOneProcess(Recorder):
    """Writes when it is told to, so that a test decides who is fast and who is slow."""

    def _start(self, step):
        self._ring.reset()
        self.writer = Writer(self._job(step), self._ring)

    def _await_start(self):
        """It is here already."""

    def drain(self):
        while (packet := self._ring.peek()) is not None:
            self.writer.take(packet)
            self._ring.release()
            self.writer.tick()

    def finish(self) -> Dataset:
        self.drain()
        self.writer.finish()
        return Dataset.open(self._directory)


def recorder(directory: Path, envs: Counting, steps: int, begin_at: int | None = 0, seed=0, **record) -> InOneProcess:
    cfg = override(RecordConfig(), {"keep": "all", "min_free_mb": 0, "ring_mb": 8, **record})
    cfg.check(envs.num_envs)
    made = InOneProcess(cfg, RecordSource("counting", envs.spec, envs.num_envs, steps, envs._stack > 1, seed, {}))
    if begin_at is not None:
        made.begin(directory / "dataset", begin_at)
    return made


def names(dataset: Dataset) -> list[tuple[int, int]]:
    """Return (environment, episode) of all that is stored."""
    return list(zip(dataset.table["env"].tolist(), dataset.table["episode"].tolist(), strict=True))


def assert_sound(dataset: Dataset) -> None:
    """Every stored episode is whole and is the one that it is said to be."""
    assert len(set(names(dataset))) == len(dataset)
    for row, (env, episode) in enumerate(names(dataset)):
        stored, length = dataset.episode(row), int(dataset.table["length"][row])
        vector = stored.obs["vector"] if dataset.schema.spec.obs_dtype.names else stored.obs
        assert (vector == np.array([(env, episode, t) for t in range(length + 1)])).all()
        count = np.arange(length)
        assert (stored.action == np.stack([count, np.full(length, env)], axis=1)).all()
        assert (stored.raw_reward == count).all()
        assert (stored.reward == 2 * count).all()
        assert (stored.log_prob == -count).all()
        assert (stored.value == 10 + count).all()
        assert (np.diff(stored.version) >= 0).all()
        assert (stored.terminated | stored.truncated).nonzero()[0].tolist() == [length - 1]
