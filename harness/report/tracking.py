"""Results of a run handed to experiment trackers, each once, through the tracker's own client."""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any, Final, Protocol

from msgspec import Struct

from advisor.base.documents import read_json
from advisor.base.errors import missing_package
from advisor.base.fields import convert
from advisor.base.grouping import grouped
from advisor.base.units import counted
from harness.base.collections import dotted
from harness.report.export import trial_rows
from harness.report.facts import Facts, load_facts
from harness.trial.files import in_turn, write_atomic
from harness.trial.result import TrialResult


class TrackerName(StrEnum):
    """The trackers that are known, by the name of their Python package."""

    MLFLOW = "mlflow"
    WANDB = "wandb"
    TENSORBOARD = "tensorboard"


def parse_trackers(names: Sequence[str], field: str) -> tuple[TrackerName, ...]:
    """The trackers named; UserError for one that is not known or not installed."""
    found = tuple(dict.fromkeys(convert(name, TrackerName, "", field) for name in names))
    for name in found:
        if find_spec(name) is None:
            package = "mlflow-skinny" if name is TrackerName.MLFLOW else str(name)
            raise missing_package(f"{field} {name}", package, str(name))
    return found


_STATE: Final = ("trial", "label", "device", "clock", "status", "reason", "concerns")
_TEXTS: Final = (*_STATE, "skipped_by", "predicted_calibration", "command")
"""Columns of a trial's row that say what it was; numbers among the others are metrics."""
_PARAMETERS: Final = ("recompute", "repeat", "advisor_rank")


class TrackedTrial(Struct, frozen=True, kw_only=True):
    """One trial, of the run `group`. parameters: workload and measurement, dotted names. metrics:
    as in trials.csv, the predicted ones next to the measured; seconds, bytes, TFLOP/s. series: step
    time and loss of each measured step. tags: how it ended, and software and GPUs of its machine.
    began, seconds: when it started (since 1970), and how long it took."""

    name: str
    group: str
    parameters: Mapping[str, str | int | float | bool]
    metrics: Mapping[str, float]
    series: Mapping[str, tuple[float, ...]]
    tags: Mapping[str, str]
    began: float
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it was measured."""
        return self.tags["status"] in ("ok", "unstable")

    def numbers(self) -> Iterator[tuple[str, float, int]]:
        """Name, value and step of everything that is a number; 0: of the whole trial."""
        yield from ((name, value, 0) for name, value in self.metrics.items())
        for name, values in self.series.items():
            yield from ((name, value, step) for step, value in enumerate(values, start=1))


class Tracker(Protocol):
    """Where trials go."""

    def add(self, trial: TrackedTrial) -> str:
        """Keep a trial; its id there."""


def tracked_trials(facts: Facts) -> Iterator[TrackedTrial]:
    """Every trial of a run that has its result, in the plan's order."""
    rows = {row["trial"]: row for row in trial_rows(facts)}
    for result in facts.results.values():
        if result.started_at:
            yield _tracked(facts, result, rows[result.name])


def _tracked(facts: Facts, result: TrialResult, row: Mapping[str, Any]) -> TrackedTrial:
    given = {name: row[name] for name in _PARAMETERS if row[name] is not None}
    planned = {"workload": result.trial["workload"], "measure": result.trial.get("measurement", {})}
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
    texts = {name: str(row[name]) for name in _TEXTS if row[name] is not None}
    steps = result.times.seconds if result.times else ()
    series = {"measured_step_seconds": steps, "loss": result.loss}
    return TrackedTrial(
        name=f"{row['label']} r{row['repeat']}",
        group=facts.path.resolve().name,
        parameters=given | dotted(planned),
        metrics={name: float(value) for name, value in numbers.items() if name not in given},
        series={name: values for name, values in series.items() if values},
        tags=texts
        | {"experiment": facts.plan.experiment, "gpu": facts.plan.device_name}
        | {name: str(value) for name, value in dotted(result.environment).items()},
        began=datetime.fromisoformat(result.started_at).timestamp(),
        seconds=result.wall_seconds,
    )


_LONGEST: Final = 5000
"""Characters of a tag, and of a parameter 6,000 (MLflow 3 entities' limits)."""
_MILLISECONDS: Final = 1000
_AT_ONCE: Final = 100
"""Parameters, and tags, of one call (MLflow 3 REST API, runs/log-batch)."""


class MlflowTracker:
    """Through `MlflowClient` alone: no state of MLflow's own is begun or changed."""

    def __init__(self, group: str) -> None:
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        known = self._client.get_experiment_by_name(group)
        self._experiment = known.experiment_id if known else self._client.create_experiment(group)

    def add(self, trial: TrackedTrial) -> str:
        """Parameters, metrics, steps and tags of a finished run; its id."""
        from mlflow.entities import Metric, Param, RunTag

        began = int(trial.began * _MILLISECONDS)
        ended = int((trial.began + trial.seconds) * _MILLISECONDS)
        made = self._client.create_run(self._experiment, start_time=began, run_name=trial.name)
        run = made.info.run_id
        params = [Param(key, str(text)) for key, text in trial.parameters.items()]
        metrics = [Metric(name, value, ended, step) for name, value, step in trial.numbers()]
        tags = [RunTag(key, text[:_LONGEST]) for key, text in trial.tags.items()]
        for first in range(0, max(len(params), len(metrics), len(tags)), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            self._client.log_batch(run, metrics[part], params[part], tags[part])
        self._client.set_terminated(run, "FINISHED" if trial.ok else "FAILED", end_time=ended)
        return str(run)


class WandbTracker:
    """Into `folder`/wandb; project and entity by WANDB_PROJECT and WANDB_ENTITY."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, trial: TrackedTrial) -> str:
        """Configuration, summary and steps of a finished run; its id."""
        import wandb

        off: dict[str, Any] = dict.fromkeys(
            ["disable_git", "disable_code", "x_disable_stats"], True
        )
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "recompute-advisor"),
            group=trial.group,
            name=trial.name,
            tags=[trial.tags["status"]],
            dir=str(self._folder),
            mode=None if "WANDB_MODE" in os.environ else "offline",
            config={**trial.parameters, **{f"tag.{k}": text for k, text in trial.tags.items()}},
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", **off),
        )
        rows = grouped((step, (name, value)) for name, value, step in trial.numbers() if step)
        for step in sorted(rows):
            run.log(dict(rows[step]), step=step)
        run.summary.update(dict(trial.metrics))
        run.finish(exit_code=0 if trial.ok else 1)
        return str(run.id)


FOLDER: Final = "tensorboard"


class TensorboardTracker:
    """Into `folder`/tensorboard, by TensorBoard's own writer: no torch and no TensorFlow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER

    def add(self, trial: TrackedTrial) -> str:
        """Scalars, texts and a row of the HPARAMS page; the folder's name."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        name = trial.tags["trial"]
        writer = EventFileWriter(str(self._folder / name))

        def write(summary: Any, step: int) -> None:
            at = trial.began + trial.seconds
            writer.add_event(Event(wall_time=at, step=step, summary=summary))

        write(hparams_pb(dict(trial.parameters), trial_id=name, start_time_secs=trial.began), 0)
        for tag, value, step in trial.numbers():
            write(scalar_pb(tag, value), step)
        for tag, text in trial.tags.items():
            write(text_pb(f"tag/{tag}", text), 0)
        writer.close()
        return name


def track_run(run: Path, name: TrackerName) -> int:
    """Hand over what has a result and was not handed over before; how many trials that were. What
    was is in tracked.json: tracker -> trial and its start -> id there. UserError where the folder
    holds no run; otherwise what the tracker's client raises."""
    trials = tracked_trials(load_facts(run))
    path, count = run / "tracked.json", 0
    with in_turn(run / "tracked.lock"):
        known: dict[str, dict[str, str]] = read_json(path) if path.exists() else {}
        tracker, there = _TRACKERS[name](run), known.setdefault(name, {})
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
            say(f"sent {counted(count, 'trial')} to {name}")


_TRACKERS: Final[dict[TrackerName, Callable[[Path], Tracker]]] = {
    TrackerName.MLFLOW: lambda run: MlflowTracker(run.resolve().name),
    TrackerName.WANDB: WandbTracker,
    TrackerName.TENSORBOARD: TensorboardTracker,
}
