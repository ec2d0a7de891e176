"""TensorBoard: event files below the run's folder, one for each trial, with its hyperparameters."""

from pathlib import Path
from typing import Any, Final

from harness.report.tracking.tracked_trial import TrackedTrial

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
        for tag, value in trial.metrics.items():
            write(scalar_pb(tag, value), 0)
        for tag, values in trial.series.items():
            for step, value in enumerate(values, start=1):
                write(scalar_pb(tag, value), step)
        for tag, text in trial.tags.items():
            write(text_pb(f"tag/{tag}", text), 0)
        writer.close()
        return name
