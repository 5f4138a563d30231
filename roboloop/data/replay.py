"""The replay ring: every observation stored once, windows and stacks built by index, committed through a journal."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from roboloop.core.errors import DataError
from roboloop.core.rng import get_rng_state, set_rng_state, stream
from roboloop.core.types import Array, Batch, BatchSpec, EnvSpec, EpisodeEnd, Rollout, State
from roboloop.data.journal import Frontier, Journal, Record
from roboloop.data.shifts import Shifts

TERMINATED, TRUNCATED, FINAL = 1, 2, 4
_COLUMNS = ("obs", "action", "reward", "flags", "age")


class Replay:
    """One ring of rows per environment; the successor of row i is always row i + 1.

    A row is an observation and what followed it. An episode ends with a FINAL row that holds only its last
    observation, and the row after the newest one already holds the observation that is being acted on.
    """

    journaled = True

    def __init__(self, capacity: int, spec: EnvSpec, num_envs: int, needs: BatchSpec, seed: int) -> None:
        self.needs = needs
        self._journal: Journal | None = None
        self._rows = capacity // num_envs
        self._rng = stream(seed, "replay")
        lead = (num_envs, self._rows)
        self._obs = np.zeros((*lead, *spec.obs_shape), dtype=spec.obs_dtype)
        self._action = np.zeros((*lead, spec.action_dim), dtype=np.float32)
        self._reward = np.zeros(lead, dtype=np.float32)
        self._flags = np.zeros(lead, dtype=np.uint8)
        self._age = np.zeros(lead, dtype=np.int32)  # steps since the episode began
        self._head = np.zeros(num_envs, dtype=np.int64)  # rows ever written, per environment
        self._saved = np.zeros(num_envs, dtype=np.int64)  # rows already in the journal
        self._env_index = np.arange(num_envs)
        self._batch = self._allocate(spec)
        self._shifts = Shifts(self._batch.obs, spec, needs.shift_px)

    def _allocate(self, spec: EnvSpec) -> Batch:
        n, stack = self.needs.size, self.needs.frame_stack
        shape = (n, stack, *spec.obs_shape) if stack > 1 else (n, *spec.obs_shape)
        obs, next_obs = np.zeros(shape, spec.obs_dtype), np.zeros(shape, spec.obs_dtype)
        one = np.zeros(n, np.float32)
        return Batch(obs, np.zeros((n, spec.action_dim), np.float32), one, next_obs, one.copy())

    def __len__(self) -> int:
        """Rows that can be reached."""
        return int((self._head - self._tail()).sum())

    def _tail(self) -> Array:
        """Oldest row per environment that has not been overwritten (one slot is the successor's)."""
        tail: Array = np.maximum(0, self._head - self._rows + 1)
        return tail

    def add(self, rollout: Rollout) -> None:
        """Append T steps of the rollout's environments."""
        steps, count = rollout.reward.shape
        env = self._env_index[rollout.first_env : rollout.first_env + count]
        for lost in rollout.cut:
            self._cut(lost)
        ends: dict[int, list[EpisodeEnd]] = {}
        for end in rollout.episodes:
            ends.setdefault(end.t, []).append(end)
        for t in range(steps):
            idle = [end.env - rollout.first_env for end in ends.get(t, ()) if not end.length]
            self._add_step(rollout, t, env, np.delete(np.arange(count), idle) if idle else slice(None))
            for end in ends.get(t, ()):
                if end.length:
                    self._close_episode(end.env, end.last_obs)
                self._obs[end.env, self._head[end.env] % self._rows] = rollout.obs[t + 1, end.env - rollout.first_env]
        if self._journal is not None and (self._head - self._saved).max() >= self._rows // 2:
            self._spill()  # before the ring overwrites what the journal has not seen

    def _add_step(self, rollout: Rollout, t: int, envs: Array, columns: Array | slice) -> None:
        """Append a row of some columns of a rollout of these environments."""
        env = envs[columns]
        slot = self._head[env] % self._rows
        self._obs[env, slot] = rollout.obs[t, columns]
        self._action[env, slot] = rollout.action[t, columns]
        self._reward[env, slot] = rollout.reward[t, columns]
        self._flags[env, slot] = TERMINATED * rollout.terminated[t, columns] + TRUNCATED * rollout.truncated[t, columns]
        after = (slot + 1) % self._rows
        self._obs[env, after] = rollout.obs[t + 1, columns]
        self._age[env, after] = self._age[env, slot] + 1
        self._head[env] += 1

    def _close_episode(self, env: int, last_obs: Array) -> None:
        """Turn the newest row into a FINAL one, so that the next episode begins behind it."""
        slot = self._head[env] % self._rows
        self._obs[env, slot] = last_obs
        self._flags[env, slot] = FINAL
        self._action[env, slot] = 0
        self._reward[env, slot] = 0
        self._age[env, (slot + 1) % self._rows] = 0
        self._head[env] += 1

    def _cut(self, env: int) -> None:
        """Close an episode that was lost while it ran, at the observation that was seen last."""
        slot = self._head[env] % self._rows
        if self._age[env, slot] > 0:
            self._flags[env, slot - 1] |= TRUNCATED
            self._close_episode(env, self._obs[env, slot].copy())

    def sample(self) -> Batch:
        """Draw transitions uniformly, of each task as many; the arrays are reused by the next call."""
        env, row = self._draw()
        last, discount, reward = self._window(env, row)
        batch = self._batch
        start = env * self._rows
        slot = start + row % self._rows
        np.take(self._action.reshape(-1, self._action.shape[2]), slot, axis=0, out=batch.action, mode="clip")
        batch.reward[:] = reward
        batch.discount[:] = discount
        self._gather(env, row, self._age.reshape(-1)[slot], batch.obs)
        self._gather(env, last + 1, self._age.reshape(-1)[start + last % self._rows] + 1, batch.next_obs)
        return batch

    def _gather(self, env: Array, row: Array, age: Array, obs: Array) -> None:
        """Copy the observations of rows out of the ring, stacked and shifted as needed."""
        inlet = self._shifts.inlet(obs)
        if self.needs.frame_stack == 1:
            flat_obs = self._obs.reshape(-1, *self._obs.shape[2:])
            np.take(flat_obs, env * self._rows + row % self._rows, axis=0, out=inlet, mode="clip")
        else:
            self._stack(env, row, age, inlet)
        self._shifts.finish(obs, self._rng)

    def newest(self, env: int, steps: int) -> Batch:
        """Return the last steps of the last episode that ended in an environment, one by one in their order."""
        row = self._head[env] - 1 - np.arange(steps, 0, -1)
        slot, after = row % self._rows, (row + 1) % self._rows
        discount = np.where(self._flags[env, slot] & TERMINATED, 0.0, self.needs.gamma).astype(np.float32)
        columns = self._obs[env, slot], self._action[env, slot], self._reward[env, slot], self._obs[env, after]
        return Batch(*columns, discount)

    def _draw(self) -> tuple[Array, Array]:
        """Return environments and rows of steps, drawn uniformly and equally many of each task."""
        tasks = self.needs.num_tasks
        parts = [self._draw_among(self._env_index[k::tasks], self.needs.size // tasks) for k in range(tasks)]
        return np.concatenate([env for env, _ in parts]), np.concatenate([row for _, row in parts])

    def _draw_among(self, envs: Array, count: int) -> tuple[Array, Array]:
        """Return some of these environments and rows of steps in them (FINAL rows are drawn again)."""
        head, tail = self._head[envs], self._tail()[envs]
        # once the ring has wrapped, the oldest rows no longer have their whole stack behind them
        oldest = tail + np.where(head >= self._rows, self.needs.frame_stack - 1, 0)
        ends = np.cumsum(head - oldest)
        begins = ends - (head - oldest)
        env, row = np.empty(count, np.int64), np.empty(count, np.int64)
        todo = np.arange(count)
        while todo.size:
            draw = self._rng.integers(ends[-1], size=todo.size)
            e = np.searchsorted(ends, draw, side="right") if len(ends) > 1 else np.zeros(todo.size, np.int64)
            env[todo], row[todo] = envs[e], oldest[e] + draw - begins[e]
            todo = todo[self._flags[env[todo], row[todo] % self._rows] == FINAL]
        return env, row

    def _window(self, env: Array, row: Array) -> tuple[Array, Array, Array]:
        """Return the last row, the bootstrap discount and the discounted reward of each n-step window."""
        gamma, start = self.needs.gamma, env * self._rows
        flat_reward, flat_flags = self._reward.reshape(-1), self._flags.reshape(-1)
        slot = start + row % self._rows
        reward, flags = flat_reward[slot], flat_flags[slot]
        last, power = row, np.full(len(row), gamma, np.float32)
        for _ in range(self.needs.n_step - 1):
            # a window stops at an episode's end, and at the newest row as if it were truncated there
            more = (flags == 0) & (last + 1 < self._head[env])
            last = last + more
            slot = start + last % self._rows
            flags = flat_flags[slot]
            reward = reward + np.where(more, power * flat_reward[slot], np.float32(0))
            power = np.where(more, power * np.float32(gamma), power)
        return last, power * ((flags & TERMINATED) == 0), reward

    def _stack(self, env: Array, row: Array, age: Array, out: Array) -> None:
        """Gather the last k observations of each row, repeating the first one of its episode."""
        flat_obs = self._obs.reshape(-1, *self._obs.shape[2:])
        stack = self.needs.frame_stack
        for k in range(stack):
            back = np.minimum(stack - 1 - k, age)
            out[:, k] = flat_obs[env * self._rows + (row - back) % self._rows]

    def attach(self, journal: Journal) -> None:
        """Keep all rows from now on in a journal that already holds the rows there are."""
        self._journal = journal

    def commit(self) -> Frontier:
        """Make all rows durable and return where the journal ends."""
        assert self._journal is not None, "attach a journal first"
        self._spill()
        return self._journal.commit()

    def _spill(self) -> None:
        assert self._journal is not None
        counts = self._head - self._saved
        if not counts.any():
            return
        at = np.concatenate([e * self._rows + np.arange(s, h) % self._rows for e, s, h in self._spans()])
        columns = {name: column.reshape(-1, *column.shape[2:])[at] for name, column in self._columns().items()}
        self._journal.append(columns, {"rows_per_env": counts.tolist()})
        self._saved = self._head.copy()

    def _spans(self) -> list[tuple[int, int, int]]:
        return [(e, int(s), int(h)) for e, (s, h) in enumerate(zip(self._saved, self._head, strict=True))]

    def _columns(self) -> dict[str, Array]:
        return {name: getattr(self, f"_{name}") for name in _COLUMNS}

    def state(self) -> State:
        """Return what the journal does not hold: the draws, and the observations being acted on."""
        slot = self._head % self._rows
        return {
            "rng": get_rng_state(self._rng),
            "head": self._head.tolist(),
            "next_obs": self._obs[self._env_index, slot],
            "next_age": self._age[self._env_index, slot],
        }

    def load(self, state: State, records: Iterable[Record]) -> None:
        """Fill the ring from a journal's records, then restore the rest."""
        self._head[:] = 0
        for columns, info in records:
            begin = 0
            for env, count in enumerate(info["rows_per_env"]):
                self._restore(env, {k: v[begin : begin + count] for k, v in columns.items()}, count)
                begin += count
        if self._head.tolist() != state["head"]:
            raise DataError(f"the journal holds {self._head.tolist()} rows, the checkpoint expects {state['head']}")
        # an episode that was lost after its last row had been kept is closed by the FINAL row behind it
        lost = (self._flags == 0) & (np.roll(self._flags, -1, axis=1) == FINAL)
        slot = self._head % self._rows
        lost[self._env_index, slot] = lost[self._env_index, slot - 1] = False  # what follows these is not a row yet
        self._flags[lost] = TRUNCATED
        self._saved = self._head.copy()
        self._obs[self._env_index, slot] = state["next_obs"]
        self._age[self._env_index, slot] = state["next_age"]
        set_rng_state(self._rng, state["rng"])

    def _restore(self, env: int, rows: dict[str, Array], count: int) -> None:
        keep = min(count, self._rows)
        slots = np.arange(self._head[env] + count - keep, self._head[env] + count) % self._rows
        for name, column in self._columns().items():
            column[env, slots] = rows[name][count - keep :]
        self._head[env] += count
