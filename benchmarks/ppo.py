"""Environment steps per second of whole PPO training: ours beside SB3 and a CleanRL-style loop, block by block.

All: 8 environments, 128 steps each per iteration, 10 epochs of 4 minibatches (256 rows), two tanh nets of 64x64, from
the same environments (peers get ours through a thin bridge, so a slow simulator is nobody's excuse). The CleanRL-style
loop is ours, after CleanRL's description: one file, eager torch, SyncVectorEnv.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from _contender import PEERS, Contender, Run, interleave, median_ratio, medians, serve

ENVS = {"HalfCheetah-v5": "gym/HalfCheetah-v5", "CartPole-v1": "gym/CartPole-v1"}
NUM_ENVS, STEPS, EPOCHS, MINIBATCHES = 8, 128, 10, 4
ITERATION = NUM_ENVS * STEPS


MODES: dict[str, dict[str, Any]] = {
    "roboloop": {},
    "roboloop-2-workers": {"sample": {"groups": 2, "workers": 2}},
    "roboloop-free-running": {
        "sample": {"groups": 2, "workers": 2, "free_running": True},
        "algo": {"vtrace": True, "batch_envs": NUM_ENVS, "shards": 1, "processes": 1},
    },
}


def make_ours(env_id: str, mode: str) -> Run:
    """Our parts in our loop."""
    from roboloop.core.config import override
    from roboloop.run.build import build
    from roboloop.run.config import Experiment

    algo = {"name": "ppo", "rollout_steps": STEPS, "epochs": EPOCHS, "minibatches": MINIBATCHES}
    cfg = override(Experiment(), {"env": {"id": env_id, "num_envs": NUM_ENVS}, "algo": algo})
    sampler, store, ppo, *_ = build(override(cfg, MODES[mode]))

    def run(steps: int) -> None:
        for _ in range(steps // ITERATION):
            while not store.is_full:
                store.add(sampler.collect(ppo.policy))
            ppo.update(store.sample())

    run(2 * ITERATION)
    ppo.wait_until_ready()
    return run


def make_sb3(env_id: str) -> Run:
    """SB3's ``learn``."""
    from _gym_bridge import Bridge
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    from roboloop.envs.config import EnvConfig

    envs = DummyVecEnv([lambda i=i: Bridge(EnvConfig(id=env_id), 0, i) for i in range(NUM_ENVS)])
    batch = ITERATION // MINIBATCHES
    model = PPO("MlpPolicy", envs, n_steps=STEPS, batch_size=batch, n_epochs=EPOCHS, device="cpu", verbose=0)

    def run(steps: int) -> None:
        model.learn(steps, reset_num_timesteps=False)

    run(2 * ITERATION)
    return run


def make_cleanrl_style(env_id: str) -> Run:
    """One readable loop in eager torch."""
    import gymnasium
    import numpy as np
    import torch
    from _gym_bridge import Bridge
    from torch import nn

    from roboloop.envs.config import EnvConfig

    envs = gymnasium.vector.SyncVectorEnv(
        [lambda i=i: Bridge(EnvConfig(id=env_id), 0, i) for i in range(NUM_ENVS)],
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )
    obs_dim = envs.single_observation_space.shape[0]
    discrete = isinstance(envs.single_action_space, gymnasium.spaces.Discrete)
    num_out = int(envs.single_action_space.n) if discrete else envs.single_action_space.shape[0]

    def net(out: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(obs_dim, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out))

    actor, critic, log_std = net(num_out), net(1), nn.Parameter(torch.zeros(num_out))
    parameters = [*actor.parameters(), *critic.parameters(), *([] if discrete else [log_std])]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, eps=1e-5)

    def distribution(x: torch.Tensor) -> Any:
        out = actor(x)
        if discrete:
            return torch.distributions.Categorical(logits=out)
        return torch.distributions.Independent(torch.distributions.Normal(out, log_std.exp().expand_as(out)), 1)

    now = {"obs": torch.as_tensor(envs.reset(seed=0)[0])}
    obs = torch.zeros(STEPS, NUM_ENVS, obs_dim)
    actions = torch.zeros(STEPS, NUM_ENVS) if discrete else torch.zeros(STEPS, NUM_ENVS, num_out)
    log_probs, rewards, dones, values = (torch.zeros(STEPS, NUM_ENVS) for _ in range(4))

    def iteration() -> None:
        for t in range(STEPS):
            obs[t] = now["obs"]
            with torch.no_grad():
                dist = distribution(obs[t])
                actions[t] = dist.sample()
                log_probs[t], values[t] = dist.log_prob(actions[t]), critic(obs[t]).flatten()
            following, reward, terminated, truncated, _ = envs.step(
                actions[t].numpy().astype("int64" if discrete else "f4")
            )
            rewards[t], dones[t] = torch.as_tensor(reward), torch.as_tensor(np.logical_or(terminated, truncated))
            now["obs"] = torch.as_tensor(following)
        with torch.no_grad():
            advantage, carry, next_value = torch.zeros_like(rewards), 0.0, critic(now["obs"]).flatten()
            for t in reversed(range(STEPS)):
                delta = rewards[t] + 0.99 * next_value * (1 - dones[t]) - values[t]
                carry = advantage[t] = delta + 0.99 * 0.95 * (1 - dones[t]) * carry
                next_value = values[t]
        flat = [x.reshape(ITERATION, *x.shape[2:]) for x in (obs, actions, log_probs, advantage, advantage + values)]
        for _ in range(EPOCHS):
            for rows in torch.randperm(ITERATION).split(ITERATION // MINIBATCHES):
                b_obs, b_action, b_log_prob, b_advantage, b_return = (x[rows] for x in flat)
                dist = distribution(b_obs)
                ratio = (dist.log_prob(b_action) - b_log_prob).exp()
                b_advantage = (b_advantage - b_advantage.mean()) / (b_advantage.std() + 1e-8)
                policy = torch.max(-b_advantage * ratio, -b_advantage * ratio.clamp(0.8, 1.2)).mean()
                loss = (
                    policy
                    + 0.5 * 0.5 * (critic(b_obs).flatten() - b_return).square().mean()
                    - 0.0 * dist.entropy().mean()
                )
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()

    def run(steps: int) -> None:
        for _ in range(steps // ITERATION):
            iteration()

    run(2 * ITERATION)
    return run


def measure(env: str, blocks: int, block_s: float) -> dict[str, Any]:
    names = [*MODES, *(["sb3", "cleanrl-style"] if PEERS.exists() else [])]
    contenders = [
        Contender(n, __file__, [n, ENVS[env]], 2, in_peers_venv=not n.startswith("roboloop"), multiple=ITERATION)
        for n in names
    ]
    rates = interleave(contenders, blocks, block_s)
    ratios = {
        f"{mode} / {peer}": median_ratio(rates[mode], rates[peer]) for mode in MODES for peer in names[len(MODES) :]
    }
    return {"env": env, "median": medians(rates), "ratios": ratios, "blocks": rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--env", choices=list(ENVS), action="append")
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--block-s", type=float, default=4.0)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        name, env_id = args.serve
        makers = {"sb3": make_sb3, "cleanrl-style": make_cleanrl_style}
        serve(lambda: makers[name](env_id) if name in makers else make_ours(env_id, name))
        return
    results = [measure(env, args.blocks, args.block_s) for env in args.env or ENVS]
    for result in results:
        print(f"{result['env']}, steps/s: " + ", ".join(f"{n} {v:.0f}" for n, v in result["median"].items()))
        print("  " + ", ".join(f"{n} {v:.2f}x" for n, v in result["ratios"].items()))
    if args.out:
        args.out.write_text(json.dumps({"cpus": len(os.sched_getaffinity(0)), "results": results}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
