"""Samplers: envs and a policy in, rollouts out; nothing of learning."""
