"""What is killed: configurations of every algorithm and sampler that train for seconds."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

COMMON = (
    "--trackers --log-every-steps 40 --eval.episodes 1 --checkpoint.every-s 0 --sample.restarts 1000"
    " --record.restarts 1000"
)
PENDULUM = "--env gym/Pendulum-v1 --env.max-episode-steps 40 --env.eval-max-episode-steps 40"
SAC = "--warmup-steps 60 --replay.capacity 2000 --algo.hidden 16 16 --algo.batch-size 16"
OF_SAC = "--warmup-steps 60 --replay.capacity 2000 --algo.sac.hidden 16 --algo.sac.batch-size 16"
OF_HEADS = f"{OF_SAC} --algo.sac.head-hidden 8"
OF_PPO = "--algo.ppo.hidden 16 --algo.ppo.rollout-steps 16 --algo.ppo.minibatches 2"
PLAY = "--env.num-envs 2 --env.max-episode-steps 30 --env.eval-max-episode-steps 30"
CART = "--env.num-envs 2 --env.max-episode-steps 20 --env.eval-max-episode-steps 20"
TWO_TASKS = "--env tiny/point+mirror --env.num-envs 4 --warmup-steps 60 --replay.capacity 2000 --algo.batch-size 16"
JUDGE = "--algo.discriminator.hidden 16 --algo.discriminator-updates 3 --algo.discriminator-batch 16"
TASKS = "--algo.expert.directory {demos} --algo.tasks place reach grasp"
KINDS = {
    "sac": f"--algo sac {PENDULUM} --env.num-envs 2 {SAC} --steps 1500",
    "pixel sac": "--algo sac --env dmc/cartpole-swingup --env.observe pixels --env.image-size 24 28 --env.num-envs 2"
    " --env.frame-stack 2 --env.action-repeat 8 --env.max-episode-steps 160 --env.eval-max-episode-steps 80"
    " --warmup-steps 60 --replay.capacity 400 --algo.hidden 16 --algo.batch-size 16 --algo.conv-channels 4 4"
    " --algo.conv-kernels 3 3 --algo.conv-strides 2 2 --algo.feature-dim 8 --steps 500",
    "mtsac": f"--algo mtsac {TWO_TASKS} --algo.hidden 12 --algo.head-hidden 8 --steps 2400",
    "mtsac soft": f"--algo mtsac {TWO_TASKS} --algo.net soft --algo.module-width 8 --algo.gate-hidden 8 8 --steps 1600",
    "dac": f"--algo dac --env play/place {PLAY} {OF_SAC} --algo.discriminator.hidden 16"
    " --algo.expert.directory {demos} --steps 800",
    "lfgp": f"--algo lfgp --env play/place {PLAY} {OF_HEADS} --algo.discriminator.hidden 16 {TASKS} --steps 600",
    "vpace": f"--algo vpace --env play/place {PLAY} {OF_HEADS} {TASKS} --steps 600",
    "sqil": f"--algo sqil --env play/place {PLAY} {OF_HEADS} {TASKS} --steps 600",
    "rce": f"--algo rce --env play/place {PLAY} {OF_HEADS} {TASKS} --steps 600",
    "ppo": f"--algo ppo {PENDULUM} --env.num-envs 4 --algo.rollout-steps 10 --algo.epochs 2 --algo.minibatches 2"
    " --algo.hidden 16 --steps 8000",
    "ppo gru": f"--algo ppo {PENDULUM} --env.num-envs 4 --algo.rollout-steps 10 --algo.epochs 2 --algo.minibatches 1"
    " --algo.hidden 16 --algo.core gru --algo.core-size 8 --algo.normalize-obs --steps 4000",
    "gail": f"--algo gail --env play/reach {CART} {OF_PPO} {JUDGE} --algo.expert.directory {{demos}}/reach"
    " --steps 2400",
    "dt": "--algo dt --dataset {data} --algo.context 4 --algo.width 16 --algo.layers 1 --algo.batch-size 8"
    " --steps 1500",
    "bc": "--algo bc --dataset {data} --algo.hidden 16 --algo.batch-size 8 --steps 2000",
    "dynamics": f"--algo dynamics --env tiny/hybrid-cart {CART} {OF_PPO} {JUDGE} --algo.target.directory {{target}}"
    " --steps 2400",
    "refine": f"--algo refine --env tiny/cart {CART} {OF_PPO} --algo.start {{start}} --steps 3000",
    "pick": "--algo pick --env tiny/pegs --env.num-envs 2 --env.max-episode-steps 6 --env.eval-max-episode-steps 6"
    f" {OF_SAC} --steps 1200",
    "panda": "--algo sac --env panda/reach --env.frame-stack 2 --env.panda.driver process --env.panda.hz 20"
    f" --env.panda.episode-s 1.5 --env.panda.address {{rig}} {SAC} --update.per-step 1 --checkpoint.every-episode"
    " --steps 180",
}
EVERY = {"pixel sac": 50, "panda": 0, "ppo": 400, "ppo gru": 200, "gail": 160, "dynamics": 160, "refine": 160}
"""Steps between checkpoints; 80 unless said."""
SAMPLERS = {
    "in the loop": "",
    "lock step": "--sample.groups 2 --sample.workers 2",
    "central": "--sample.inference central",
    "free-running": "--sample.groups 2 --sample.workers 2 --sample.free-running",
    "real time": "--sample.real-time process",
    "real time inline": "--sample.real-time inline --update.at episode",
    "ray": "--sample.groups 2 --sample.workers 2 --sample.free-running --sample.on ray --sample.worker-cpus 0.1"
    " --sample.address {ray}",
}
EXACT = ("in the loop", "lock step", "central")
WITH = {"recorder": "--record.keep all --record.min-free-mb 0", "evaluator": "--eval.background"}
MOST_IN_A_LIFE = {"helper": 6, "evaluator": 2}
"""Children of a kind that are killed before the training process is: more often than some limit ends a run, as said."""
SIMGAN = (
    "simgan hopper --target power --behaviour-steps 4096 --dynamics-steps 4000 --refine-steps 4000 --target-episodes 3"
    " --eval-episodes 2 --sysid-generations 1"
)


@dataclass(frozen=True)
class Row:
    """One configuration, and who of it is killed beside the training process and its group."""

    kind: str
    sampler: str = "in the loop"
    children: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}, {self.sampler}" + "".join(f" + {child}" for child in self.children)

    def words(self, places: dict[str, str], runs: Path) -> list[str]:
        """Return what a user would type."""
        if self.kind == "simgan":
            return [*SIMGAN.split(), "--runs-dir", str(runs)]
        every = EVERY.get(self.kind, 80)
        inner = next((part for part in ("sac.", "ppo.") if f"--algo.{part}" in KINDS[self.kind]), "")
        text = (
            f"train {KINDS[self.kind]} {COMMON} {SAMPLERS[self.sampler]} --checkpoint.every-steps {every}"
            f" --algo.{inner}processes {2 if 'helper' in self.children else 1} --eval.every-steps {5 * every}"
            f" {' '.join(WITH.get(child, '') for child in self.children)} --experiment run --runs-dir {runs} --resume"
        )
        if self.kind == "panda":
            text = text.replace("--eval.episodes 1", "--eval.episodes 0")
        return text.format(**places).split()


ALL3 = ("helper", "recorder", "evaluator")
ROWS = (
    Row("sac"), Row("sac", children=ALL3), Row("sac", "lock step", ("worker", "helper")),
    Row("sac", "central", ("worker",)), Row("sac", "free-running", ("worker", "recorder")), Row("sac", "ray"),
    Row("pixel sac", children=("helper",)), Row("pixel sac", "lock step", ("worker",)),
    Row("mtsac", children=("helper",)), Row("mtsac", "free-running", ("worker",)), Row("mtsac soft"),
    Row("dac", children=("helper",)), Row("lfgp"), Row("lfgp", "lock step", ("worker",)),
    Row("vpace", children=("helper", "evaluator")), Row("sqil", children=("helper",)),
    Row("rce", "lock step", ("worker", "helper")),
    Row("ppo"), Row("ppo", children=ALL3), Row("ppo gru", "lock step", ("worker", "helper")),
    Row("ppo", "free-running", ("worker", "evaluator")), Row("ppo", "ray"),
    Row("gail", children=("helper",)), Row("gail", "lock step", ("worker",)),
    Row("dt", children=("helper",)), Row("bc", children=("helper", "evaluator")),
    Row("dynamics", children=("helper",)), Row("dynamics", "lock step", ("worker",)),
    Row("refine", children=("helper",)), Row("pick", children=("helper", "recorder")), Row("pick", "free-running"),
    Row("panda", "real time", ("pilot",)), Row("panda", "real time inline", ("recorder",)), Row("simgan"),
)  # fmt: skip


def possible(row: Row) -> bool:
    """Say whether this machine has what a configuration needs."""
    needs = {"pixel sac": ["dm_control"], "panda": ["pybullet_data"], "simgan": ["pybullet"]}.get(row.kind, [])
    needs = [*needs, *(["ray"] if row.sampler == "ray" else [])]
    return all(importlib.util.find_spec(name) for name in needs)
