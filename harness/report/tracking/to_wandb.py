"""Weights & Biases: a run for each trial, in a group for each run of ours.

Offline unless WANDB_MODE says otherwise: `wandb sync` sends what lies in the run's folder.
"""

import os
from pathlib import Path
from typing import Final

from harness.report.tracking.tracked_trial import TrackedTrial

_PROJECT: Final = "recompute-advisor"


class WandbTracker:
    """Into `folder`/wandb; project and entity by WANDB_PROJECT and WANDB_ENTITY."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, trial: TrackedTrial) -> str:
        """Configuration, summary and steps of a finished run; its id."""
        import wandb

        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            group=trial.group,
            name=trial.name,
            tags=[trial.tags["status"]],
            dir=str(self._folder),
            mode=None if "WANDB_MODE" in os.environ else "offline",
            config={**trial.parameters, **{f"tag.{k}": text for k, text in trial.tags.items()}},
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
            ),
        )
        count = max((len(values) for values in trial.series.values()), default=0)
        for step in range(count):
            values = {n: series[step] for n, series in trial.series.items() if step < len(series)}
            run.log(values, step=step + 1)
        run.summary.update(dict(trial.metrics))
        run.finish(exit_code=0 if trial.ok else 1)
        return str(run.id)
