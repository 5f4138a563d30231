"""Task names, kept as plain data so that checking one imports no simulator."""

from __future__ import annotations

MT10 = (
    "reach-v3",
    "push-v3",
    "pick-place-v3",
    "door-open-v3",
    "drawer-open-v3",
    "drawer-close-v3",
    "button-press-topdown-v3",
    "peg-insert-side-v3",
    "window-open-v3",
    "window-close-v3",
)
"""Meta-World's ten-task benchmark; ``metaworld/0`` is its first task."""

MT25 = (
    *MT10,
    "coffee-pull-v3",
    "pick-out-of-hole-v3",
    "disassemble-v3",
    "pick-place-wall-v3",
    "basketball-v3",
    "stick-pull-v3",
    "button-press-wall-v3",
    "faucet-open-v3",
    "door-lock-v3",
    "lever-pull-v3",
    "sweep-into-v3",
    "faucet-close-v3",
    "coffee-button-v3",
    "button-press-topdown-wall-v3",
    "dial-turn-v3",
)
"""Its benchmark of 25 tasks."""

METAWORLD = (
    "assembly-v3",
    "basketball-v3",
    "bin-picking-v3",
    "box-close-v3",
    "button-press-topdown-v3",
    "button-press-topdown-wall-v3",
    "button-press-v3",
    "button-press-wall-v3",
    "coffee-button-v3",
    "coffee-pull-v3",
    "coffee-push-v3",
    "dial-turn-v3",
    "disassemble-v3",
    "door-close-v3",
    "door-lock-v3",
    "door-open-v3",
    "door-unlock-v3",
    "drawer-close-v3",
    "drawer-open-v3",
    "faucet-close-v3",
    "faucet-open-v3",
    "hammer-v3",
    "hand-insert-v3",
    "handle-press-side-v3",
    "handle-press-v3",
    "handle-pull-side-v3",
    "handle-pull-v3",
    "lever-pull-v3",
    "peg-insert-side-v3",
    "peg-unplug-side-v3",
    "pick-out-of-hole-v3",
    "pick-place-v3",
    "pick-place-wall-v3",
    "plate-slide-back-side-v3",
    "plate-slide-back-v3",
    "plate-slide-side-v3",
    "plate-slide-v3",
    "push-back-v3",
    "push-v3",
    "push-wall-v3",
    "reach-v3",
    "reach-wall-v3",
    "shelf-place-v3",
    "soccer-v3",
    "stick-pull-v3",
    "stick-push-v3",
    "sweep-into-v3",
    "sweep-v3",
    "window-close-v3",
    "window-open-v3",
)
"""All tasks of Meta-World v3."""

METAWORLD_SETS = {
    "mt3": ("reach-v3", "window-open-v3", "drawer-close-v3"),
    "mt10": MT10,
    "mt25": MT25,
    "mt50": METAWORLD,
}
"""Sets of tasks by name; the first is ours, the others are Meta-World's benchmarks."""

GYM = (
    "HalfCheetah-v5",
    "Hopper-v5",
    "Walker2d-v5",
    "Ant-v5",
    "Humanoid-v5",
    "HumanoidStandup-v5",
    "Swimmer-v5",
    "Reacher-v5",
    "Pusher-v5",
    "InvertedPendulum-v5",
    "InvertedDoublePendulum-v5",
    "Pendulum-v1",
    "MountainCarContinuous-v0",
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "Taxi-v4",
    "LunarLander-v3",
    "LunarLanderContinuous-v3",
    "BipedalWalker-v3",
    "CarRacing-v3",
    "ALE/BeamRider-v5",
    "ALE/Breakout-v5",
    "ALE/Enduro-v5",
    "ALE/MsPacman-v5",
    "ALE/Pong-v5",
    "ALE/Qbert-v5",
    "ALE/Seaquest-v5",
    "ALE/SpaceInvaders-v5",
)
"""Gymnasium's common tasks; the lander, the walker and the car need the extra box2d, ALE's games atari."""

GYMVEC = ("CartPole-v1",)
"""Those of them that come with a vector environment."""

DMC = (
    "acrobot-swingup",
    "acrobot-swingup_sparse",
    "ball_in_cup-catch",
    "cartpole-balance",
    "cartpole-balance_sparse",
    "cartpole-swingup",
    "cartpole-swingup_sparse",
    "cartpole-two_poles",
    "cartpole-three_poles",
    "cheetah-run",
    "dog-stand",
    "dog-walk",
    "dog-trot",
    "dog-run",
    "dog-fetch",
    "finger-spin",
    "finger-turn_easy",
    "finger-turn_hard",
    "fish-upright",
    "fish-swim",
    "hopper-stand",
    "hopper-hop",
    "humanoid-stand",
    "humanoid-walk",
    "humanoid-run",
    "humanoid-run_pure_state",
    "humanoid_CMU-stand",
    "humanoid_CMU-walk",
    "humanoid_CMU-run",
    "lqr-lqr_2_1",
    "lqr-lqr_6_2",
    "manipulator-bring_ball",
    "manipulator-bring_peg",
    "manipulator-insert_ball",
    "manipulator-insert_peg",
    "pendulum-swingup",
    "point_mass-easy",
    "point_mass-hard",
    "quadruped-walk",
    "quadruped-run",
    "quadruped-escape",
    "quadruped-fetch",
    "reacher-easy",
    "reacher-hard",
    "stacker-stack_2",
    "stacker-stack_4",
    "swimmer-swimmer6",
    "swimmer-swimmer15",
    "walker-stand",
    "walker-walk",
    "walker-run",
)
"""The DM Control suite."""

DOOM = (
    "basic",
    "deadly-corridor",
    "deathmatch",
    "defend-the-center",
    "defend-the-line",
    "health-gathering",
    "health-gathering-supreme",
    "my-way-home",
    "predict-position",
    "take-cover",
)
"""The single-player scenarios that ViZDoom's wheel ships."""
TINY_CARTS = ("cart", "weak-cart", "hybrid-cart")
TINY_PEGS = ("pegs", "pegs-corner", "pegs-seen")
TINY = ("point", "mirror", "recall", *TINY_CARTS, *TINY_PEGS)
"""Our own: a point to steer, one that moves the other way, a cue to remember, carts with a gap between them, and pegs
of which one must be picked and put back."""

ENVPOOL = (
    *(f"metaworld/{task}" for task in MT10),
    *(f"gym/{task}" for task in GYM if task.endswith("-v5") and not task.startswith("ALE/")),
    *(f"dmc/{task}" for task in ("cheetah-run", "hopper-hop", "humanoid-walk", "reacher-easy", "walker-walk")),
)
"""Ids of ours for which EnvPool has a port, the common ones; it has one of every Meta-World and DM Control task."""

PLAY = ("place", "perch", "reach", "grasp", "move", "release")
"""Our play world's: each is the main task of an environment of its own, with all others but that of the other stand."""

PANDA = ("reach", "push", "drawer", "door")
"""The simulated Panda rig's."""

LEGGED_ENGINES = ("bullet", "dart", "mujoco")
"""Engines that a legged robot can be in."""

LEGGED_VARIANTS = ("soft", "deform", "heavy", "power", "emf", "latency", "slippery")
"""Ways in which a legged robot or its floor can be another one."""

LEGGED_IMPOSSIBLE = (("deform", "dart"), ("deform", "mujoco"), ("soft", "dart"))
"""Variants that an engine does not have: only Bullet has a deformable floor, and contacts of DART are rigid."""

LEGGED = (
    *LEGGED_ENGINES,
    *(
        f"{engine}-{variant}"
        for engine in LEGGED_ENGINES
        for variant in LEGGED_VARIANTS
        if (variant, engine) not in LEGGED_IMPOSSIBLE
    ),
)
"""Tasks of each legged robot: an engine, and how it differs."""

LEGGED_ROBOTS = ("hopper", "laikago", "a1")
"""Suites of legged robots."""

HYBRID = tuple(f"{robot}-{engine}" for robot in LEGGED_ROBOTS for engine in LEGGED_ENGINES)
"""A robot in an engine whose parameters are set at every step; a variant may follow."""

SOFT = (
    "rope-straighten",
    "cloth-corner",
    "cloth-spread",
    "cloth-two-hand",
    "cloth-goal",
    "cloth-fold",
    "seam-3",
    "seam-6",
    "seam-9",
)
"""Rope and cloth on a table."""
