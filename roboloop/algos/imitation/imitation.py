"""Supervised learning of actions from windows of recorded episodes: what Decision Transformer and cloning share."""

from __future__ import annotations

import math

import numpy as np

from roboloop.algos.imitation.config import BCConfig, DTConfig
from roboloop.algos.imitation.policy import (
    DataScale,
    ImitationModel,
    ImitationPolicy,
    return_scale_of,
)
from roboloop.algos.imitation.shard import SEED_WORDS, ImitationShape, ImitationShard
from roboloop.algos.learner.adam import MAX_ADAM_STEP
from roboloop.algos.learner.shards import ShardPool
from roboloop.algos.learner.staging import Staging
from roboloop.algos.limits import check_task_rows
from roboloop.algos.policy import ActionScale, in_bounds
from roboloop.core.errors import ConfigError, DataError
from roboloop.core.rng import get_rng_state, set_rng_state, stream
from roboloop.core.types import Array, EnvSpec, Metrics, State, WindowBatch
from roboloop.nets.flat import clone, restore
from roboloop.nets.observations import action_mask

__all__ = ["DataScale", "Imitation", "ImitationPolicy", "behaviour_cloning", "decision_transformer", "return_scale_of"]


class Imitation:
    """The Algorithm: ``update`` takes one gradient step on a batch of windows."""

    def __init__(self, model: ImitationModel, scale: DataScale, target: float, seed: int, device: str = "cpu") -> None:
        self.cfg = cfg = model.cfg
        cfg.check()
        if isinstance(cfg, BCConfig):
            check_task_rows(cfg, model.num_tasks)
        if not scale.return_scale > 0:
            raise DataError(f"the scale of returns must be above 0, not {scale.return_scale}")
        self._model = model
        self._scale = ActionScale(model.spec)
        shape = ImitationShape(model)
        self._pool = ShardPool(shape, shape.memory().size, cfg.shards, cfg.processes, device)
        self._mem = shape.views(self._pool.memory)
        self._staging = Staging(self._mem)
        model.initialise(self._mem["policy"], stream(seed, f"{cfg.name}-init"), scale, target)
        self._views = model.layout.views(self._mem["policy"])
        self._rng = stream(seed, f"{cfg.name}-dropout")
        self._policy = ImitationPolicy(model, self._mem["policy"])
        self.num_updates = 0
        self.progress = 0.0  # nothing here depends on it

    @property
    def policy(self) -> ImitationPolicy:
        """The live policy: each update changes it."""
        return self._policy

    def update(self, batch: WindowBatch) -> Metrics:
        """Take one gradient step on windows ``[batch_size, context]``, which lie task by task."""
        cfg = self.cfg
        self._load_batch(batch)
        lr = cfg.lr * min(1.0, (self.num_updates + 1) / max(cfg.warmup_updates, 1))
        self._staging.put("lr", np.float32(lr))
        self._staging.put("step", np.float32(min(self.num_updates + 1, MAX_ADAM_STEP)))
        # shards draw from seeds that are drawn here, so that they are pure functions of what they are given
        self._staging.put("seed", self._rng.integers(0, 2**31, (cfg.shards, SEED_WORDS), dtype=np.int32))
        self._pool.run(ImitationShard.PHASES)
        self.num_updates += 1
        self._policy.version = self.num_updates
        sums = self._mem["metrics"].sum(0).tolist()
        norm = math.sqrt(float(self._mem["squares"][:, 0].sum()))
        return dict(zip(self._model.head.metrics, sums, strict=False)) | {"grad_norm": norm, "lr": lr}

    def _load_batch(self, batch: WindowBatch) -> None:
        """Write the windows to shared memory, with zeros where they are padded."""
        model, wanted = self._model, (self.cfg.batch_size, self.cfg.context)
        if batch.mask.shape != wanted:
            raise ConfigError(f"{self.cfg.name} was built for {wanted} windows and steps, not {batch.mask.shape}")
        if model.num_tasks > 1:
            batch = WindowBatch(*(self._by_shard(column) for column in batch))
        valid = np.ascontiguousarray(batch.mask, bool).reshape(-1)
        rows, count = len(valid), int(valid.sum())
        if not count:
            raise DataError("a batch of windows has no step that is not padding")
        padded = ~valid
        self._staging.put("valid", valid.astype(np.float32))
        self._staging.put("one_over_count", np.float32(1.0 / count))
        return_scale = self._policy.norm("return_norm")[0]
        self._staging.put("return_to_go", zeroed(batch.return_to_go.reshape(rows) / return_scale, padded))
        self._staging.put("t", np.clip(zeroed(batch.t.reshape(rows), padded), 0, model.times - 1))
        self._staging.put("action", self._units(zeroed(batch.action.reshape(rows, -1), padded)))
        self._load_obs(batch.obs, rows, padded)

    def _by_shard(self, windows: Array) -> Array:
        """Return windows, which lie task by task, shard by shard: each gets as many of each task."""
        parts = windows.reshape(self._model.num_tasks, self.cfg.shards, -1, *windows.shape[1:])
        return parts.swapaxes(0, 1).reshape(windows.shape)

    def _load_obs(self, obs: Array, rows: int, padded: Array) -> None:
        model = self._model
        if model.fields.vector_dim:
            self._staging.put("vector", zeroed(model.vector(obs, rows, self._policy.norm("vector_norm")), padded))
        if model.fields.mask_dim:
            self._staging.put("mask", np.asarray(action_mask(obs.reshape(rows), rows)) | padded[:, None])
        for i in range(len(model.state.convs)):
            blocks = self._staging.arrays[f"picture{i}"]
            model.write_blocks(obs, rows, i, blocks)
            blocks[padded] = 0
            self._staging.send(f"picture{i}")

    def _units(self, action: Array) -> Array:
        """Return the actions that the environment took, in units of its bounds."""
        spec = self._model.spec
        for column, n in enumerate(self._model.choices):
            number = action[:, column]
            if n and ((number < 0) | (number >= n)).any():
                raise DataError(f"action column {column} has {n} choices, but the data says {number.max():.0f}")
        return self._scale.to_unit(in_bounds(action, spec))

    def state(self) -> State:
        """Return everything the next update depends on, as copies."""
        layout = self._model.net_layout
        return {
            "policy": self._policy.state(),
            "adam": {name: clone(layout.views(self._mem[name])) for name in ("m", "v")},
            "dropout_rng": get_rng_state(self._rng),
            "num_updates": self.num_updates,
        }

    def load(self, state: State) -> None:
        """Restore what ``state`` returned: the next update is then the one that would have come."""
        self._policy.load(state["policy"])
        for name in ("m", "v"):
            restore(self._model.net_layout.views(self._mem[name]), state["adam"][name], name)
        set_rng_state(self._rng, state["dropout_rng"])
        self.num_updates = self._policy.version = int(state["num_updates"])

    def wait_until_ready(self) -> None:
        """Wait for the helper processes; for benchmarks, since training starts without them."""
        self._pool.wait_until_ready()

    def messages(self) -> list[str]:
        """Return what happened to helper processes, one line each."""
        return self._pool.messages()

    def close(self) -> None:
        """Stop the helper processes and release their memory."""
        self._pool.close()


def zeroed(rows: Array, padded: Array) -> Array:
    """Return rows with zeros where padded: whatever lies there, even what is not a number, has no effect."""
    if not padded.any():
        return rows
    rows = rows.copy()
    rows[padded] = 0
    return rows


def behaviour_cloning(cfg: BCConfig, spec: EnvSpec, scale: DataScale, seed: int, device: str = "cpu") -> Imitation:
    """Return the Algorithm; it learns from all valid steps of its windows, and returns mean nothing to it."""
    return Imitation(ImitationModel(cfg, spec), scale, 0.0, seed, device)


def decision_transformer(
    cfg: DTConfig, spec: EnvSpec, scale: DataScale, target: float, seed: int, device: str = "cpu"
) -> Imitation:
    """Return the Algorithm; its policy is told to reach the return ``target``, in raw reward."""
    return Imitation(ImitationModel(cfg, spec), scale, target, seed, device)
