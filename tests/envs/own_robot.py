"""A robot of a user: what ``env.panda.driver`` may name."""

from roboloop.envs.panda.virtual import VirtualPanda


def make(task, config):
    """Return the simulated rig on simulated time, as a driver of one's own may be."""
    return VirtualPanda(task, config.faults)


def nothing(task, config):
    """Return no robot."""
    return object()
