"""Whole episodes out of packets: pieces are joined across rollouts; what has no beginning or no end is dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from roboloop.core.types import Array, EnvSpec, Rollout
from roboloop.data.episodes import COLUMNS, Episode, Facts, retention_key, row_bytes
from roboloop.data.ring import END, STEP_COLUMNS, Packet, end_row


class Assembler:
    """Holds the running episodes of all environments; each is copied out of the ring exactly once."""

    def __init__(self) -> None:
        self._open: dict[int, list[dict[str, Array]]] = {}
        self.counts: Counter[str] = Counter()

    def add(self, packet: Packet) -> Iterator[tuple[Episode, Any]]:
        """Take over a packet; yield the episodes that it completes, each with its row of ``packet.ends``."""
        steps = len(packet.reward)
        ends_of: dict[int, list[int]] = {}
        for row, column in enumerate(packet.ends["column"].tolist()):
            ends_of.setdefault(column, []).append(row)
        for column, env in enumerate(packet.env.tolist()):
            begin, is_on = 0, bool(packet.is_on[column])
            if packet.is_fresh[column]:
                self._open.pop(env, None)
            for row in ends_of.get(column, ()):
                end = packet.ends[row]
                if is_on:
                    self._extend(env, packet, column, begin, int(end["t"]) + 1)
                    yield from self._close(env, end, packet.last_obs[row : row + 1])
                self._open.pop(env, None)
                begin, is_on = int(end["t"]) + 1, bool(end["goes_on"])
            if is_on and begin < steps:
                self._extend(env, packet, column, begin, steps)

    def _extend(self, env: int, packet: Packet, column: int, begin: int, end: int) -> None:
        piece = {name: getattr(packet, name)[begin:end, column].copy() for name in ("obs", *STEP_COLUMNS)}
        piece["version"] = np.full(end - begin, packet.version[column], np.int64)
        self._open.setdefault(env, []).append(piece)

    def _close(self, env: int, end: Any, last_obs: Array) -> Iterator[tuple[Episode, Any]]:
        if end["is_lost"]:
            self.counts["lost"] += int(end["length"] > 0)  # else it is no episode, only the row of a reset
            return
        pieces = self._open.pop(env)
        if sum(len(piece["reward"]) for piece in pieces) != end["length"]:  # never seen, but a hole must not be stored
            self.counts["torn"] += 1
            return
        pieces.append({"obs": last_obs})
        columns = {name: np.concatenate([p[name] for p in pieces if name in p]) for name in pieces[0]}
        yield Episode(**columns), end


def packet_of(rollout: Rollout, step: int) -> Packet:
    """Return a rollout of single observations as a packet in which every episode is wanted; columns are not copied."""
    steps, count = rollout.reward.shape
    envs = rollout.first_env + np.arange(count)
    episodes = sorted(rollout.episodes, key=lambda end: end.t)
    ends = np.zeros(len(episodes), END)
    last_obs = np.zeros((len(episodes), *rollout.obs.shape[2:]), rollout.obs.dtype)
    for row, end in enumerate(episodes):
        ends[row] = end_row(end, rollout, step, is_expert=False, goes_on=True)
        last_obs[row] = end.last_obs
    columns = {name: getattr(rollout, name)[:steps] for name in ("obs", *STEP_COLUMNS)}
    return Packet(
        env=envs, is_on=np.ones(count, bool), is_fresh=np.isin(envs, rollout.cut), version=rollout.version,
        ends=ends, last_obs=last_obs, **columns,
    )  # fmt: skip


def facts_at(episode: Episode, end: Any, task: str, segment: int, seed: int) -> Facts:
    """Return what the index is to know of an episode that ended with a row of ``END``."""
    env, number = int(end["env"]), int(end["episode"])
    return Facts(
        env=env, episode=number, length=int(end["length"]), episode_return=float(end["episode_return"]),
        shaped_return=float(end["shaped_return"]), success=float(end["success"]),
        version_first=int(episode.version[0]), version_last=int(episode.version[-1]), step=int(end["step"]),
        task=task, segment=segment,
        key=retention_key(seed, env, number),
    )  # fmt: skip


def raw_bytes(spec: EnvSpec, length: Any) -> Any:
    """Return the bytes of episodes of these lengths before compression."""
    columns = sum(kind.itemsize for kind in COLUMNS.values()) + COLUMNS["action"].itemsize * (spec.action_dim - 1)
    return (length + 1) * row_bytes(spec) + length * columns
