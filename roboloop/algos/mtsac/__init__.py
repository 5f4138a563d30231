"""Soft actor-critic for sets of tasks, from pictures, with examples of success and with picks."""
