"""One shard's part of a SAC update: four phases over shared parameters, batch and gradients."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from roboloop.algos.learner.adam import Adam
from roboloop.algos.learner.gradient_step import GradientStep
from roboloop.algos.learner.shards import stretch
from roboloop.algos.mtsac.config import MTSACConfig
from roboloop.algos.mtsac.losses import TensorMetrics, actor_loss, actor_loss_gradient
from roboloop.algos.mtsac.objectives import NO_EXAMPLES, Bounded, Classifier, ExampleTerms, Objective, SoftBellman
from roboloop.algos.sac.config import SACConfig, SACSettings
from roboloop.core.config import override, to_dict
from roboloop.nets.actors import PLAIN, ActorKind, ActorSpec, JointActor
from roboloop.nets.conv import Convolutions, ConvSpec, conv_from_data
from roboloop.nets.flat import ALIGN, BYTES, Layout, Views, aligned, bytes_of, under
from roboloop.nets.layers import Scratch
from roboloop.nets.mlp import MLPSpec, NetSpec, Shapes
from roboloop.nets.soft_modules import SoftModules, SoftSpec, evenness
from roboloop.nets.trunk import TrunkSpec, build_critics, critic_shapes
from roboloop.nets.vision import conv_name, conv_shapes, num_features, pixel_norm


@dataclass(frozen=True)
class SACShape:
    """All sizes of an update: what every process must know to lay out the shared memory alike."""

    cfg: SACSettings
    obs_dim: int
    """Numbers of an observation that are not pixels."""
    action_dim: int
    num_tasks: int = 1
    """Parts of a shard's rows, one after another and equally large; of a set, observations end with the task."""
    examples: ExampleTerms = NO_EXAMPLES
    convs: tuple[ConvSpec, ...] = ()
    """What reads the pictures of an observation."""
    actor_kind: ActorKind = PLAIN
    """How actions come about."""

    @property
    def features(self) -> int:
        """Numbers that the convolutions make of all pictures."""
        return num_features(self.convs)

    @property
    def seen_dim(self) -> int:
        """Numbers that actor and critics see of an observation: features of the pictures, then all others."""
        return self.features + self.obs_dim

    @property
    def rows(self) -> int:
        """Transitions per shard, of all tasks."""
        return self.cfg.batch_size // self.cfg.shards

    @property
    def actor_rows(self) -> int:
        """Those of them that actors learn from: all but examples."""
        return self.rows - self.num_tasks * self.examples.rows

    @property
    def actor_spec(self) -> ActorSpec:
        """Observation to action; the plain one by mean and log std."""
        kind, action_dim = self.actor_kind, self.action_dim
        net = self._net(0, kind.head(action_dim).outputs)
        place = self._net(kind.pick_dim, kind.place_head(action_dim).outputs) if kind.in_turn else None
        return ActorSpec(kind, action_dim, net, place)

    @property
    def critic_spec(self) -> NetSpec:
        """Observation and action to value."""
        return self._net(self.action_dim, 1)

    def _net(self, action_dim: int, outputs: int) -> NetSpec:
        """Return the network from observation and action to some numbers."""
        cfg, inputs, tasks = self.cfg, self.obs_dim + action_dim, self.num_tasks
        if self.convs:
            assert isinstance(cfg, SACConfig)
            head = MLPSpec((cfg.feature_dim + inputs, *cfg.hidden, outputs), cfg.layer_norm)
            return TrunkSpec(self.features, cfg.feature_dim, head)
        if not isinstance(cfg, MTSACConfig) or cfg.net == "plain":
            return MLPSpec((inputs, *cfg.hidden, outputs), cfg.layer_norm)
        if cfg.net == "heads":
            widths = (inputs, *cfg.hidden, *cfg.head_hidden, outputs)
            return MLPSpec(widths, cfg.layer_norm, groups=tasks, num_shared=len(cfg.hidden))
        return SoftSpec(
            self.obs_dim - tasks, tasks, action_dim, outputs, cfg.modules, cfg.module_layers, cfg.module_width,
            cfg.hidden, cfg.gate_hidden, cfg.routing == "hard",
        )  # fmt: skip

    @property
    def actor(self) -> Layout:
        """The actor's parameters."""
        return Layout(self.actor_spec.shapes())

    @property
    def critics(self) -> Layout:
        """All critics' parameters, and behind them the convolutions, which they train."""
        return Layout(critic_shapes(self.critic_spec, self.cfg.num_critics) | self.conv_shapes)

    @property
    def conv_shapes(self) -> Shapes:
        """Names and shapes of the convolutions' parameters, among those of the critics."""
        return conv_shapes(self.convs)

    @property
    def picture_names(self) -> tuple[str, ...]:
        """Names of the shared arrays that hold pictures."""
        return tuple(f"picture_pair{i}" for i in range(len(self.convs)))

    @property
    def targets(self) -> Layout:
        """The target critics': they look through the critics' convolutions."""
        return Layout(critic_shapes(self.critic_spec, self.cfg.num_critics))

    def to_data(self) -> dict[str, Any]:
        """Return the shape as plain data."""
        sizes = {"obs_dim": self.obs_dim, "action_dim": self.action_dim, "num_tasks": self.num_tasks}
        convs = [asdict(conv) for conv in self.convs]
        more = {"examples": asdict(self.examples), "convs": convs, "actor_kind": asdict(self.actor_kind)}
        return {"cfg": to_dict(self.cfg), **sizes, **more}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> SACShape:
        """Return the shape that ``to_data`` described."""
        kinds: dict[str, SACSettings] = {"sac": SACConfig(), "mtsac": MTSACConfig()}
        cfg = override(kinds[data["cfg"]["name"]], data["cfg"])
        convs = tuple(map(conv_from_data, data["convs"]))
        more: dict[str, Any] = {
            "examples": ExampleTerms(**data["examples"]),
            "actor_kind": ActorKind(**data["actor_kind"]),
        }
        return cls(**{**data, "cfg": cfg, "convs": convs, **more})

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what is said of an update; of soft modules also how evenly they are mixed."""
        net = self.actor_spec.net
        layers = net.layers if isinstance(net, SoftSpec) else 0
        more = (*(f"evenness/layer{i}" for i in range(layers)), *["value_penalty"] * bool(self.examples.penalty))
        return ("critic_loss", "q_mean", "actor_loss", "entropy", *more)

    @property
    def phases(self) -> tuple[str, ...]:
        """What an update is made of."""
        limited = "critic_gradients", "critic_sum", "critic_step", "actor_gradients", "actor_sum", "actor_step"
        return limited if self.cfg.max_grad_norm else SACShard.PHASES[:4]

    def make_shard(self, memory: Tensor, index: int) -> SACShard:
        """Build one shard over the shared memory."""
        return SACShard(self, memory, index)

    def memory(self) -> Layout:
        """Everything the processes share; batch leaves are ``[shard, row, ...]``."""
        shards, rows, actor, critics = self.cfg.shards, self.rows, self.actor.size, self.critics.size
        pictures = {
            name: (-(-2 * self.cfg.batch_size * conv.block_bytes // BYTES),)
            for name, conv in zip(self.picture_names, self.convs, strict=True)
        }
        return Layout({
            "actor": (actor,), "actor_m": (actor,), "actor_v": (actor,), "actor_grad": (shards, actor),
            "critics": (critics,), "critics_m": (critics,), "critics_v": (critics,), "critics_grad": (shards, critics),
            "targets": (self.targets.size,), **pictures,
            "seen_pair": (shards, 2, rows, self.seen_dim if self.convs else 0),
            "obs_pair": (shards, 2, rows, self.obs_dim), "noise_pair": (shards, 2, rows, self.action_dim),
            "action": (shards, rows, self.action_dim), "reward": (shards, rows), "discount": (shards, rows),
            "alpha": (self.num_tasks,), "weight": (self.num_tasks,), "value_cap": (self.num_tasks,), "step": (1,),
            "lr_scale": (1,),
            "metrics": (shards, aligned(len(self.metrics))),
            "entropy": (shards, self.num_tasks), "example_value": (shards, self.num_tasks),
            "actor_squares": (shards, ALIGN), "critics_squares": (shards, ALIGN),
        })  # fmt: skip

    def views(self, memory: Tensor) -> Views:
        """Return the shared arrays; pictures as the bytes of their blocks ``[shard, 2, row, ...]``."""
        views = self.memory().views(memory)
        for name, conv in zip(self.picture_names, self.convs, strict=True):
            size, width = 2 * self.cfg.batch_size, conv.block_bytes
            views[name] = bytes_of(views[name], size, width).view(self.cfg.shards, 2, -1, width)
        return views


class SACShard:
    """Computes its rows' gradients and moves its stretch of the parameters; keeps nothing between updates."""

    PHASES: ClassVar[tuple[str, ...]] = (
        "critic_gradients", "critic_step", "actor_gradients", "actor_step", "critic_sum", "actor_sum",
    )  # fmt: skip

    def __init__(self, shape: SACShape, memory: Tensor, index: int) -> None:
        self._shape, self._cfg, self._rows = shape, shape.cfg, shape.rows
        mem = shape.views(memory)
        self._build_nets(mem, index)
        self._build_steps(mem, index)
        self._build_sight(mem, index)
        device, width = memory.device, shape.seen_dim + shape.action_dim
        self._both_noise = mem["noise_pair"][index].flatten(0, 1)
        self._action, self._metrics = mem["action"][index], mem["metrics"][index]
        self._entropy, self._example_value = mem["entropy"][index], mem["example_value"][index]
        self._alpha, self._weight, self._names = mem["alpha"], mem["weight"], shape.metrics
        self._has_weights = isinstance(self._cfg, MTSACConfig) and self._cfg.task_weights != "equal"
        # critic inputs [obs | action]: of the batch, of the successor with a fresh action, of the state with one
        self._x, self._x_next = (torch.empty(self._rows, width, device=device) for _ in range(2))
        self._x_fresh = torch.empty(shape.actor_rows, width, device=device)
        self._objective = self._make_objective(mem, index)

    def _build_nets(self, mem: Views, index: int) -> None:
        shape, rows, size = self._shape, self._rows, self._cfg.num_critics
        scratch = Scratch(mem["actor"].device)
        critics = shape.critics.views(mem["critics"])
        critics_grad = shape.critics.views(mem["critics_grad"][index])
        actor_grad = shape.actor.views(mem["actor_grad"][index])
        actor = shape.actor.views(mem["actor"])
        self._actor = shape.actor_spec.build(actor, actor_grad, 2 * rows, scratch, "actor", blocks=2)
        self._critics = build_critics(shape.critic_spec, size, critics, critics_grad, rows, scratch)
        self._frozen_critics = build_critics(shape.critic_spec, size, critics, None, shape.actor_rows, scratch)
        targets = shape.targets.views(mem["targets"])
        self._targets = build_critics(shape.critic_spec, size, targets, None, rows, scratch)

    def _build_sight(self, mem: Views, index: int) -> None:
        """Prepare what actor and critics see of both states: the observations, or what convolutions make of them."""
        shape, both = self._shape, mem["obs_pair"][index]
        self._convs: list[Convolutions] = []
        if shape.convs:
            self._vectors = both.flatten(0, 1)
            self._blocks = [mem[name][index].flatten(0, 1) for name in shape.picture_names]
            self._features = [conv.layers()[-1].size for conv in shape.convs]
            weights, grads = (shape.critics.views(m) for m in (mem["critics"], mem["critics_grad"][index]))
            # nothing is learned from how the second state is seen
            self._convs = [
                Convolutions(
                    conv, under(conv_name(i), weights), under(conv_name(i), grads), pixel_norm(conv, both.device),
                    2 * self._rows, self._rows,
                )
                for i, conv in enumerate(shape.convs)
            ]  # fmt: skip
            both = mem["seen_pair"][index]  # shared: it cannot be seen again once the convolutions have moved
        self._both_obs, self._obs_pair = both.flatten(0, 1), both.unbind(0)

    def _build_steps(self, mem: Views, index: int) -> None:
        cfg = self._cfg
        critics = stretch(mem["critics"].numel(), cfg.shards, index)
        self._target_part = mem["targets"][critics]  # shorter where convolutions, which have no target, lie behind
        self._critic_part = mem["critics"][critics][: len(self._target_part)]
        self._critic_move = make_step(mem, "critics", index, cfg.critic_lr, cfg.max_grad_norm)
        self._actor_move = make_step(mem, "actor", index, cfg.actor_lr, cfg.max_grad_norm)

    def _make_objective(self, mem: Views, index: int) -> Objective:
        cfg, terms = self._cfg, self._shape.examples
        reward, discount, size = mem["reward"][index], mem["discount"][index], cfg.batch_size
        is_example = torch.zeros(self._rows, dtype=torch.bool, device=reward.device)
        self._by_task(is_example)[:, : terms.rows] = True
        if terms.loss == "classifier":
            return Classifier(discount, size, is_example, cfg.gamma)
        if terms.penalty:
            top = cfg.reward_scale / (1.0 - cfg.gamma)
            return Bounded(reward, discount, size, is_example, mem["value_cap"], top, terms.penalty)
        return SoftBellman(reward, discount, size)

    def run(self, phase: str) -> None:
        """Run one of PHASES."""
        getattr(self, phase)()

    def changes(self, phase: str) -> list[Tensor]:
        """Return what a phase changes in place."""
        if phase == "critic_step":
            return [*self._critic_move.changes, self._target_part]
        return self._actor_move.changes if phase == "actor_step" else []

    def catch_up(self, phase: str) -> None:
        """Compute what this phase and later ones need of earlier ones."""
        if phase in ("critic_sum", "critic_step", "actor_gradients"):
            self._draw()
        for step, move in (("critic_step", self._critic_move), ("actor_step", self._actor_move)):
            if phase == step:
                move.sum()

    def _draw(self) -> None:
        """Draw fresh actions in both states, in one pass: the actor does not change before its own step."""
        rows, obs = self._rows, self._obs_pair[0]
        self._drawn = drawn = self._actor.draw(self._both_obs, self._both_noise)
        torch.cat((self._of_actor(obs), self._of_actor(drawn.action[:rows])), 1, out=self._x_fresh)

    def critic_gradients(self) -> None:
        """Draw fresh actions in both states, then the gradient of the critics' loss."""
        rows, num_examples = self._rows, self._shape.examples.rows
        obs, next_obs = self._obs_pair
        if self._convs:
            features = [conv.forward(blocks) for conv, blocks in zip(self._convs, self._blocks, strict=True)]
            torch.cat((*features, self._vectors), 1, out=self._both_obs)
        self._draw()
        drawn = self._drawn
        torch.cat((next_obs, drawn.action[rows:]), 1, out=self._x_next)
        torch.cat((obs, self._action), 1, out=self._x)
        if num_examples:
            fresh = self._by_task(drawn.action[:rows])[:, :num_examples]
            self._by_task(self._x)[:, :num_examples, self._shape.seen_dim :] = fresh
        next_q = self._targets.forward(self._x_next)
        q = self._critics.forward(self._x)
        d_q, metrics = self._objective.critic(q, next_q, drawn.log_prob[rows:], self._alphas(rows))
        d_seen = self._critics.backward(self._weighed(d_q), need_dx=bool(self._convs))
        if d_seen is not None:
            # activations go back in place: each picture's convolutions need rows of their own
            for conv, d_features in zip(self._convs, torch.split(d_seen, self._features, dim=1), strict=True):
                conv.backward(d_features.contiguous())
        self._report(metrics)
        if num_examples:
            of_examples = self._by_task(self._objective.values(q[0]))[:, :num_examples]
            self._example_value[:] = of_examples.sum(1) * (1.0 / (num_examples * self._cfg.shards))

    def critic_step(self) -> None:
        """Move this stretch of critics and targets by the sum of all shards' gradients."""
        self._critic_move.move()
        self._target_part.lerp_(self._critic_part, self._cfg.tau)

    def actor_gradients(self) -> None:
        """Follow the moved critics' gradient into the actions drawn before, and on into the actor."""
        rows = self._shape.actor_rows
        alpha, batch_size = self._alphas(rows), rows * self._cfg.shards
        log_prob = self._of_actor(self._drawn.log_prob[: self._rows])
        q = self._objective.values(self._frozen_critics.forward(self._x_fresh))
        d_q, d_log_prob = actor_loss_gradient(q, alpha, batch_size)
        d_q = self._weighed(self._objective.vjp(q, d_q))
        d_action = self._frozen_critics.backward_inputs_from(d_q, self._shape.seen_dim)
        if isinstance(d_log_prob, Tensor):
            d_log_prob = self._weighed(d_log_prob)
        if self._shape.examples.rows:
            each = d_log_prob if isinstance(d_log_prob, Tensor) else torch.full_like(log_prob, d_log_prob)
            d_action, d_log_prob = self._among_all(d_action), self._among_all(each.unsqueeze(1)).squeeze(1)
        self._actor.backward(d_action, d_log_prob)
        self._report(actor_loss(q, log_prob, alpha, batch_size)[1])
        if isinstance(self._actor, JointActor) and isinstance(net := self._actor.net, SoftModules):
            even = [evenness(p[: self._rows]).sum() * (1.0 / self._cfg.batch_size) for p in net.chances]
            self._report({f"evenness/layer{i}": value for i, value in enumerate(even)})
        self._entropy[:] = log_prob.view(self._shape.num_tasks, -1).sum(1) * (-1.0 / batch_size)

    def actor_step(self) -> None:
        """Move this stretch of the actor by the sum of all shards' gradients."""
        self._actor_move.move()

    def critic_sum(self) -> None:
        """Sum this stretch of the critics' gradients, where its length must be known before they move."""
        self._critic_move.sum()

    def actor_sum(self) -> None:
        """Sum this stretch of the actor's gradient, where its length must be known before it moves."""
        self._actor_move.sum()

    def _by_task(self, x: Tensor) -> Tensor:
        """Return rows as ``[K, n, ...]``."""
        return x.view(self._shape.num_tasks, -1, *x.shape[1:])

    def _of_actor(self, x: Tensor) -> Tensor:
        """Return the rows that actors learn from."""
        num_examples = self._shape.examples.rows
        return self._by_task(x)[:, num_examples:].flatten(0, 1) if num_examples else x

    def _among_all(self, x: Tensor) -> Tensor:
        """Return the actor's rows ``[n, m]`` in their places among all; examples are zero."""
        return pad(self._by_task(x), (0, 0, self._shape.examples.rows, 0)).flatten(0, 1)

    def _alphas(self, rows: int) -> float | Tensor:
        """Return the temperature, or each row's where there are several tasks."""
        return float(self._alpha) if self._shape.num_tasks == 1 else self._by_row(self._alpha, rows)

    def _by_row(self, by_task: Tensor, rows: int) -> Tensor:
        return by_task.repeat_interleave(rows // self._shape.num_tasks)

    def _weighed(self, gradient: Tensor) -> Tensor:
        """Multiply a gradient ``[..., rows]`` by the weight of each row's task, in place."""
        return gradient.mul_(self._by_row(self._weight, gradient.shape[-1])) if self._has_weights else gradient

    def _report(self, metrics: TensorMetrics) -> None:
        for name, value in metrics.items():
            self._metrics[self._names.index(name)] = value


def make_step(mem: Views, net: str, index: int, lr: float, max_grad_norm: float) -> GradientStep:
    """Return how a shard moves its stretch of a network."""
    own = {name: mem[f"{net}_{name}"] for name in ("grad", "m", "v", "squares")}
    own |= {"step": mem["step"], "lr": mem["lr_scale"]}
    return GradientStep(own, mem[net], index, Adam(lr, max_grad_norm=max_grad_norm))
