"""The Megatron Core backend: its own GPTModel, schedules, DDP and distributed optimizer. `build`
makes a step (loads torch and megatron-core); `translate` says as what a workload is run."""

from typing import TYPE_CHECKING

from harness.backends.megatron_core.installed import use_named
from harness.trial.trial import Workload

if TYPE_CHECKING:
    from harness.measure.training_step import TrainingStep

use_named()


def build(workload: Workload, seed: int) -> "TrainingStep":
    """This rank's step of `workload`; UserError for what this backend does not run."""
    from harness.backends.megatron_core.installed import require_megatron

    require_megatron()
    from harness.backends.megatron_core.step import build_step

    return build_step(workload, seed)
