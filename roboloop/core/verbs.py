"""The verbs of the command line: the function of each, as ``module:attr``, and what it does."""

from __future__ import annotations

VERBS: dict[str, tuple[str, str]] = {
    "train": (
        "roboloop.run.commands:train",
        "train a recipe or a config file; --resume RUN goes on, --fork RUN --at STEP branches off",
    ),
    "eval": ("roboloop.run.commands:evaluate", "evaluate a run's checkpoint on held-out goals, or a scripted expert"),
    "runs": (
        "roboloop.launch.watch:runs",
        "list runs with state, steps, success, speed, ETA, slot and memory; --watch goes on",
    ),
    "sweep": (
        "roboloop.launch.commands:sweep",
        "train variants x seeds side by side; the same command goes on after any interruption",
    ),
    "stop": ("roboloop.launch.commands:stop", "let runs or a whole sweep save and end"),
    "requeue": ("roboloop.launch.commands:requeue", "let runs of a sweep be started again that were stopped or failed"),
    "tail": ("roboloop.launch.commands:tail", "print what a run of a sweep said last"),
    "dash": (
        "roboloop.dash.command:dash",
        "follow runs live in a browser: curves, evaluations, films, logs; stop them and go on",
    ),
    "plot": ("roboloop.track.commands:plot", "draw learning curves of one or more runs"),
    "report": (
        "roboloop.run.report:report",
        "write one page about many runs: curves, intervals, comparisons, settings, videos, origin",
    ),
    "record": (
        "roboloop.run.record:record",
        "make a dataset by acting: a run's policy, a scripted expert, or random actions",
    ),
    "dataset": (
        "roboloop.run.datasets:dataset",
        "look at, verify, repair, merge, filter, export or import recorded episodes",
    ),
    "export": (
        "roboloop.run.export:export",
        "write a run's policy as ONNX with a contract, proved equal to ours, or frozen for an environment",
    ),
    "predict": (
        "roboloop.run.predict:prediction",
        "say how true simulators are: how well they predict what was recorded elsewhere",
    ),
    "sysid": (
        "roboloop.run.sysid:sysid",
        "find the constant parameters with which a simulator predicts recorded episodes best",
    ),
    "rig": ("roboloop.run.rig:rig", "be a simulated robot for other processes to train on, until Ctrl-C"),
    "simgan": (
        "roboloop.run.simgan:simgan",
        "learn the gap between a simulator and a target, train in the tuned simulator, compare",
    ),
    "recipes": ("roboloop.run.recipes:show", "list the recipes, or print one"),
    "envs": (
        "roboloop.run.envs:envs",
        "list environment ids; envs check ID checks one; envs match ROBOT ENGINE... compares engines",
    ),
    "bench": ("roboloop.run.commands:bench", "run a benchmark of benchmarks/"),
    "completion": ("roboloop.run.completion:completion", "print a script for bash or zsh that completes what you type"),
    "doctor": ("roboloop.run.doctor:doctor", "say what this machine can do and what is missing"),
}


LISTS = ("runs", "tail", "dash", "rig", "recipes", "envs", "bench", "doctor", "plot", "completion")
"""Verbs that end when nobody reads what they print; all others do their work to its end."""
