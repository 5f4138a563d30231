"""``tiny/<task>``: small environments of our own, for tests and examples."""

from __future__ import annotations

from roboloop.envs.suite import Suite

CARTS = ("cart", "weak-cart", "hybrid-cart")
PEGS = ("pegs", "pegs-corner", "pegs-seen")
TASKS = ("point", "mirror", "recall", *CARTS, *PEGS)
"""Our own: a point to steer, one that moves the other way, a cue to remember, carts with a gap between them, and pegs
of which one must be picked and put back."""

SUITE = Suite("tiny", "roboloop.envs.tiny.world:make", TASKS)
