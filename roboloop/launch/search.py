"""A search for good settings: Optuna says what to try, the launcher tries it, and what is seen on the way is judged.

A trial is a variant on all seeds of the sweep, with runs as any sweep has them. Optuna's journal is in the sweep's
folder: a search that was killed goes on, its running trials too.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roboloop.core.config import flatten, to_dict
from roboloop.core.errors import ConfigError, DataError, nearest, needs_extra
from roboloop.core.rng import derive
from roboloop.launch import plan
from roboloop.launch.engine import JobEngine
from roboloop.launch.job import Job
from roboloop.launch.journal import journal_storage, mend
from roboloop.launch.launcher import Launcher, Rules, conclude
from roboloop.launch.slots import Slot
from roboloop.launch.sweep import SCORE, Planned, Sweep, check_asked, check_existing, of_seed, planned
from roboloop.track.metrics import score
from roboloop.track.read import SWEEP, read_jsonl
from roboloop.track.terminal import number

if TYPE_CHECKING:
    import optuna

EXTRA = "search"
JOURNAL = "optuna.jsonl"
RANDOM_TRIALS = 8
"""Before the first guess that learns from what was tried."""
UNPRUNED_TRIALS = 4
"""That are seen to their end, so that there is something to compare with."""
UNPRUNED_SHARE = 0.2
"""Of its steps that every trial may make."""
_LOOK_EVERY_S = 1.0
_RANGE = ("low", "high", "log", "step")
_FARTHEST = 1e18
"""From zero that a range may end: whole numbers have 64 bits where they are drawn."""


class Trials:
    """The supply of a search: asks for settings when there is room for them, tells how they did."""

    def __init__(
        self, sweep: Sweep, study: optuna.Study, trials: int, args: Sequence[str], say: Callable[[str], None]
    ) -> None:
        self.sweep, self._study, self._wanted, self._args, self._say = sweep, study, trials, args, say
        self._distributions = distributions(sweep)
        self._numbers: dict[Path, int] = {}
        """The trial of each run."""
        self._values: dict[int, dict[int, float]] = {}
        """What the runs of a trial reached, by seed."""
        self._waiting: deque[Job] = deque()
        self._looked_s: dict[Path, float] = {}
        self._seen: dict[Path, int] = {}
        self._runs: list[Planned] = []
        """Of all trials so far."""
        plan.write(sweep.directory, [], ["sweep", *args])

    def resume(self) -> list[Job]:
        """Take up the trials of a search that was interrupted; return the runs that still run, of whichever trial."""
        live = []
        for trial in self._study.get_trials(deepcopy=False):
            for job in self._jobs(trial.number, trial.params):
                if job.is_live():
                    live.append(job)
                elif self._state(job).is_finished():
                    continue
                elif job.is_done():
                    self.ended(job, "done")
                else:
                    self._waiting.append(job)
        return live

    def next(self) -> Job | None:
        """Return the next seed of a trial, or the first of a new one."""
        while not self._waiting and len(self._study.get_trials(deepcopy=False)) < self._wanted:
            self._study.sampler = sampler(self.sweep, len(self._study.get_trials(deepcopy=False)))
            trial = self._study.ask(self._distributions)
            self._waiting += self._jobs(trial.number, trial.params)
        return self._waiting.popleft() if self._waiting else None

    def unwanted(self, job: Job) -> bool:
        """Report what the first seed of a trial reaches; say whether half of the others were better, or all is over."""
        if time.monotonic() - self._looked_s.get(job.path, 0.0) < _LOOK_EVERY_S:
            return False
        self._looked_s[job.path] = time.monotonic()
        state = self._state(job)
        if state.is_finished():  # pruned or failed by another seed; a run of a complete one is the user's
            return state.name != "COMPLETE"
        if job.planned is None or job.planned.seed != self.sweep.seeds[0]:
            return False
        trial = self._trial(job)
        return self._report(job, trial) and bool(trial.should_prune())

    def _report(self, job: Job, trial: optuna.Trial) -> bool:
        """Pass on what the first seed of a trial has reached by now; say whether there was anything new."""
        rows, seen = curve(job.path, self.sweep.metric), self._seen.get(job.path, 0)
        with warnings.catch_warnings():  # a resumed run says again what it said before it was killed
            warnings.simplefilter("ignore")
            for step, value in rows[seen:]:
                trial.report(value, step)
        self._seen[job.path] = max(seen, len(rows))
        return len(rows) > seen

    def ended(self, job: Job, state: str) -> None:
        """Tell how a trial did, once it has; one that was stopped goes on another time."""
        import optuna

        trial = self._trial(job)
        if state in ("stopped", "held") or self._state(job).is_finished():
            return
        rows = curve(job.path, self.sweep.metric)
        if state == "done" and not rows:
            _check_metric(job.path, self.sweep.metric)
        if state == "done" and rows:
            assert job.planned is not None
            if job.planned.seed == self.sweep.seeds[0]:
                self._report(job, trial)  # for the others to be compared with
            values = self._values.setdefault(trial.number, {})
            values[job.planned.seed] = rows[-1][1]
            if len(values) == len(self.sweep.seeds):
                self._study.tell(trial.number, sum(values.values()) / len(values))
            return
        self._waiting = deque(j for j in self._waiting if self._numbers[j.path] != trial.number)
        states = optuna.trial.TrialState
        self._study.tell(trial.number, state=states.PRUNED if state == "pruned" else states.FAIL)

    def _jobs(self, number: int, params: Mapping[str, Any]) -> list[Job]:
        """Return the runs of a trial, and write down that there are such; settings that contradict each other fail."""
        settings = {key: json.loads(value) if key in self.sweep.axes else value for key, value in params.items()}
        try:
            first = planned(self.sweep, settings, self.sweep.seeds[0], _variant(number))
        except ConfigError as error:
            import optuna

            if not self._frozen(number).state.is_finished():
                self._say(f"failed   {error}")
                self._study.tell(number, state=optuna.trial.TrialState.FAIL)
            return []
        runs = [of_seed(first, seed) for seed in self.sweep.seeds]
        for run in runs:
            check_existing(run)
            self._numbers[run.path] = number
        self._runs += runs
        plan.write(self.sweep.directory, self._runs, ["sweep", *self._args])
        return [Job(run.path, run) for run in runs]

    def _trial(self, job: Job) -> optuna.Trial:
        import optuna

        return optuna.Trial(self._study, self._frozen(self._numbers[job.path])._trial_id)

    def _state(self, job: Job) -> optuna.trial.TrialState:
        return self._frozen(self._numbers[job.path]).state

    def _frozen(self, number: int) -> optuna.trial.FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]


def search(
    sweep: Sweep,
    trials: int,
    slots: Sequence[Slot],
    rules: Rules,
    args: Sequence[str],
    say: Callable[[str], None],
    engine: JobEngine | None = None,
) -> int:
    """Search, or go on with a search."""
    study = open_study(sweep)
    supply = Trials(sweep, study, trials, args, say)
    live = supply.resume()
    before = Counter(_STATES[t.state.name] for t in study.get_trials(deepcopy=False) if t.state.is_finished())
    if before.total():
        say(f"the search goes on after {before.total()} of {trials} trials")
    code = conclude(Launcher(supply, slots, rules, say, before, engine), live)
    say(best(sweep, study))
    return code


_STATES = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed"}


def best(sweep: Sweep, study: optuna.Study) -> str:
    """Return the best trial in one line."""
    done = [t for t in study.get_trials(deepcopy=False) if t.value is not None and t.state.name == "COMPLETE"]
    if not done:
        return "no trial was seen to its end"
    sign = 1.0 if sweep.goal == "max" else -1.0
    top = max(done, key=lambda trial: sign * (trial.value or 0.0))
    assert top.value is not None
    settings = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in top.params.items())
    return f"best: {_variant(top.number)}, {sweep.metric} {number(top.value)}: {settings}"


def open_study(sweep: Sweep) -> optuna.Study:
    """Open the journal of a search, or begin one; one with another question is refused."""
    with needs_extra("a search", ("optuna",), EXTRA):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal = sweep.directory / SWEEP / JOURNAL
    mend(journal)
    study = optuna.create_study(
        study_name=sweep.name,
        storage=journal_storage(journal),
        direction="maximize" if sweep.goal == "max" else "minimize",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(UNPRUNED_TRIALS, int(UNPRUNED_SHARE * sweep.base.steps)),
    )
    about = _about(sweep)
    free = () if _has_values(study) else ("metric",)  # a misspelt one can be mended: nothing was judged by it
    for key, value in study.user_attrs.get("about", {}).items():
        if about.get(key) != value and key not in free:
            raise ConfigError(f"{journal} is a search with another {key}: give another --name")
    study.set_user_attr("about", about)
    return study


def finished_trials(sweep: Path) -> set[str]:
    """Return the variants of a search that are judged, or failed; none where a sweep is no search."""
    journal = sweep / SWEEP / JOURNAL
    if not os.path.lexists(journal):
        return set()
    with needs_extra("a search", ("optuna",), EXTRA):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = journal_storage(journal)
    try:
        study = optuna.load_study(study_name=sweep.resolve().name, storage=storage)
    except KeyError:  # killed before it had begun
        return set()
    return {_variant(trial.number) for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()}


def _variant(trial: int) -> str:
    return f"trial-{trial:04}"


def _has_values(study: optuna.Study) -> bool:
    return any(trial.value is not None or trial.intermediate_values for trial in study.get_trials(deepcopy=False))


def sampler(sweep: Sweep, trial: int) -> optuna.samplers.BaseSampler:
    """Return who makes up a trial: it follows from what was tried before and the number alone, however often killed."""
    import optuna

    seed = derive(sweep.base.seed, "search", trial) % 2**32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant_liar is called experimental
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS, constant_liar=True)


def check_space(sweep: Sweep, trials: int | None) -> None:
    """Refuse what cannot be searched, before anything is started; ends of ranges and choices must all be possible."""
    if trials is None or trials < 1:
        raise ConfigError("--search needs --trials N, at least 1")
    if not sweep.space and not sweep.axes:
        raise ConfigError("a search needs 'space', ranges of config keys, or axes to choose from")
    if sweep.zips or sweep.exclude:
        raise ConfigError("'zip' and 'exclude' are for sweeps that try everything, not for a search")
    if sweep.metric == SCORE and not sweep.base.eval.episodes:
        raise ConfigError("a search looks at evaluations: eval.episodes is 0; or name another metric")
    check_asked(sweep)
    ends = {key: _ends(sweep, key, wanted) for key, wanted in sweep.space.items()}
    first, last = ({key: values[index] for key, values in {**sweep.axes, **ends}.items()} for index in (0, -1))
    choices = [{**first, key: value} for key, values in sweep.axes.items() for value in values]
    for settings in (first, *choices, last):
        planned(sweep, settings, sweep.seeds[0])
    with needs_extra("a search", ("optuna",), EXTRA):
        import optuna  # noqa: F401
    distributions(sweep)


def distributions(sweep: Sweep) -> dict[str, optuna.distributions.BaseDistribution]:
    """Return what may be tried: ranges of the space, choices of the axes."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, optuna.distributions.BaseDistribution] = {}
    for key, values in sweep.axes.items():
        found[key] = CategoricalDistribution([json.dumps(value) for value in values])
    for key, wanted in sweep.space.items():
        low, high = _ends(sweep, key, wanted)
        log, step = wanted.get("log", False), _step(key, wanted.get("step"), low, high)
        try:
            if isinstance(low, int):
                found[key] = IntDistribution(low, high, log, int(step or 1))
            else:
                found[key] = FloatDistribution(low, high, log, step)
        except ValueError as error:
            raise ConfigError(f"space of '{key}': {error}") from None
    return found


def curve(run: Path, metric: str) -> list[tuple[int, float]]:
    """Return what a run has reached so far, by steps."""
    try:
        rows = read_jsonl(run / "metrics.jsonl")
    except DataError:
        return []
    found = []
    for row in rows:
        value = row.get(metric)
        with contextlib.suppress(TypeError):
            if metric == SCORE and row.get("eval/return") is not None:
                value = score(row.get("eval/success"), row["eval/return"])
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):  # of a row that is none of ours
            found += [(int(row["step"]), float(value))] if value is not None else []
    return found


def _check_metric(run: Path, metric: str) -> None:
    """Refuse a metric that a finished run has no column of: no other trial would have it either."""
    try:
        columns = {key for row in read_jsonl(run / "metrics.jsonl") for key in row} - {"step"}
    except DataError:  # a damaged log is that run's own affair
        return
    if ("eval/return" if metric == SCORE else metric) not in columns:
        hint = nearest(metric, sorted(columns))
        raise ConfigError(f"the search looks at '{metric}', which {run / 'metrics.jsonl'} does not have{hint}")


def _check_end(key: str, name: str, value: Any) -> None:
    if isinstance(value, int | float) and not abs(value) <= _FARTHEST:
        raise ConfigError(f"space of '{key}': {name} must be within ±{_FARTHEST:.0e}")


def _ends(sweep: Sweep, key: str, wanted: Any) -> tuple[Any, Any]:
    """Return a range's ends as the config has that key: whole numbers or not."""
    if not isinstance(wanted, Mapping) or not {"low", "high"} <= set(wanted):
        raise ConfigError(f"space of '{key}' must be {{low: A, high: B}}, with log: true or step: S if wanted")
    for name in wanted:
        if name not in _RANGE:
            raise ConfigError(f"space of '{key}': unknown key '{name}'{nearest(str(name), _RANGE)}")
    if not isinstance(wanted.get("log", False), bool):
        raise ConfigError(f"space of '{key}': log must be true or false, not {wanted['log']!r}")
    ends = []
    for name in ("low", "high"):
        _check_end(key, name, wanted[name])  # before the config refuses it in its own words
        value = planned(sweep, {key: wanted[name]}, sweep.seeds[0]).settings[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"space of '{key}': it is no number; under axes it can be a choice")
        _check_end(key, name, value)
        ends.append(value)
    if ends[0] >= ends[1]:
        raise ConfigError(f"space of '{key}': low {ends[0]} is not below high {ends[1]}")
    return ends[0], ends[1]


def _step(key: str, given: Any, low: float, high: float) -> float | None:
    """Return the step of a range; none if it has none. More steps than a float can count are too many."""
    if given is None:
        return None
    is_whole, width = isinstance(low, int), high - low
    least = 1.0 if is_whole else width / 2**53
    try:
        step = float(given)
    except (ValueError, TypeError, OverflowError):
        step = math.nan
    if isinstance(given, bool) or not least <= step <= width * (1 + 1e-9) or (is_whole and not step.is_integer()):
        kind = "whole number" if is_whole else "number"
        raise ConfigError(f"space of '{key}': step must be a {kind} from {least:.3g} to {width:.3g}, not {given!r}")
    return step


def _about(sweep: Sweep) -> dict[str, Any]:
    """Return all that the answers of a search depend on, as JSON values."""
    base = {key: value for key, value in flatten(to_dict(sweep.base)).items() if key not in ("experiment", "runs_dir")}
    about = {"space": dict(sweep.space), "axes": dict(sweep.axes), "metric": sweep.metric, "goal": sweep.goal,
             "seeds": list(sweep.seeds), "base": base}  # fmt: skip
    plain: dict[str, Any] = json.loads(json.dumps(about))
    return plain
