"""Hands the trials of a run to trackers, each trial once to each."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import Final

from advisor.base.documents import read_json
from harness.report.facts import load_facts
from harness.report.tracking.to_mlflow import MlflowTracker
from harness.report.tracking.to_tensorboard import TensorboardTracker
from harness.report.tracking.to_wandb import WandbTracker
from harness.report.tracking.tracked_trial import Tracker, tracked_trials
from harness.report.tracking.trackers import TrackerName
from harness.trial.files import in_turn, write_atomic

_TRACKED: Final = "tracked.json"
_LOCK: Final = "tracked.lock"


def track_run(run: Path, name: TrackerName) -> int:
    """Hand over what has a result and was not handed over before; how many trials that were.

    What was is in tracked.json: tracker -> trial and its start -> id there. UserError where the
    folder holds no run; otherwise what the tracker's client raises.
    """
    trials = tracked_trials(load_facts(run))
    path, count = run / _TRACKED, 0
    with in_turn(run / _LOCK):
        known: dict[str, dict[str, str]] = read_json(path) if path.exists() else {}
        tracker, there = _tracker(name, run), known.setdefault(name, {})
        for trial in trials:
            key = f"{trial.tags['trial']} {trial.began:.0f}"
            if key not in there:
                there[key] = tracker.add(trial)
                write_atomic(path, json.dumps(known, indent=1) + "\n")
                count += 1
    return count


def track_and_say(run: Path, names: Sequence[TrackerName], say: Callable[[str], None]) -> None:
    """The same at the end of a run, which stands whatever goes wrong here: told in one line."""
    for name in names:
        try:
            count = track_run(run, name)
        except Exception as error:
            words = " ".join(str(error).split())
            again = f"harness report {quote(str(run))} --track {name}"
            say(f"not sent to {name}: {type(error).__name__}: {words}; send again with: {again}")
        else:
            say(f"sent {count} {'trial' if count == 1 else 'trials'} to {name}")


def _tracker(name: TrackerName, run: Path) -> Tracker:
    if name is TrackerName.MLFLOW:
        return MlflowTracker(run.resolve().name)
    return WandbTracker(run) if name is TrackerName.WANDB else TensorboardTracker(run)
