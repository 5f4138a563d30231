"""The section about simulators: how well they predict a target, and what was set in them for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from roboloop.track.report.blocks import Section, Table
from roboloop.track.report.scores import NONE
from roboloop.track.summary import Prediction, RunSummary
from roboloop.track.terminal import number


def truth(groups: Mapping[str, Sequence[RunSummary]]) -> Section:
    """Return errors and parameters of simulators, two tables for each target, over the seeds of the runs."""
    runs = sorted((run for runs in groups.values() for run in runs), key=lambda run: run.seed or 0)
    found = [each for run in runs for each in run.predictions]
    blocks = []
    for target in dict.fromkeys(each.target for each in found):
        of_target = [each for each in found if each.target == target]
        names = dict.fromkeys(each.simulator for each in of_target)
        simulators = {name: [each for each in of_target if each.simulator == name] for name in names}
        blocks.append(_errors(target, simulators))
        tuned = {name: of_seeds for name, of_seeds in simulators.items() if any(each.parameters for each in of_seeds)}
        if tuned:
            blocks.append(_parameters(target, tuned))
    return Section("truth", "How true simulators are", tuple(blocks))


def _errors(target: str, simulators: Mapping[str, Sequence[Prediction]]) -> Table:
    steps = list(dict.fromkeys(k for of_seeds in simulators.values() for each in of_seeds for k in each.errors))
    rows = []
    for name, of_seeds in simulators.items():
        known = [[e for each in of_seeds if (e := each.errors.get(k)) is not None] for k in steps]
        rows.append((name, str(len(of_seeds)), *(number(float(np.mean(e))) if e else NONE for e in known)))
    caption = f"Errors of predicting held-out episodes of {target}, in deviations of the data, mean over seeds."
    header = ("simulator", "seeds", *(f"{k} step{'' if k == '1' else 's'}" for k in steps))
    return Table(caption, header, tuple(rows))


def _parameters(target: str, simulators: Mapping[str, Sequence[Prediction]]) -> Table:
    names = dict.fromkeys(name for of_seeds in simulators.values() for each in of_seeds for name in each.parameters)
    rows = tuple(
        (name, *(", ".join(number(each.parameters[name]) for each in of_seeds if name in each.parameters) or NONE
                 for of_seeds in simulators.values()))
        for name in names
    )  # fmt: skip
    caption = f"What was set in the source to be like {target}, on average over held-out episodes, each seed."
    return Table(caption, ("parameter", *simulators), rows)
