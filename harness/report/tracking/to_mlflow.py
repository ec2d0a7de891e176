"""MLflow: an experiment for each run of ours, a run in it for each trial.

Where MLFLOW_TRACKING_URI says, else where MLflow keeps it by default.
"""

import logging
from typing import Final

from harness.report.tracking.tracked_trial import TrackedTrial

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
        run = self._client.create_run(
            self._experiment, start_time=began, run_name=trial.name
        ).info.run_id
        single = [(name, value, 0) for name, value in trial.metrics.items()]
        steps = [
            (name, value, step)
            for name, values in trial.series.items()
            for step, value in enumerate(values, start=1)
        ]
        params = [Param(key, str(text)) for key, text in trial.parameters.items()]
        metrics = [Metric(key, value, ended, step) for key, value, step in single + steps]
        tags = [RunTag(key, text[:_LONGEST]) for key, text in trial.tags.items()]
        for first in range(0, max(len(params), len(metrics), len(tags)), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            self._client.log_batch(run, metrics[part], params[part], tags[part])
        self._client.set_terminated(run, "FINISHED" if trial.ok else "FAILED", end_time=ended)
        return str(run)
