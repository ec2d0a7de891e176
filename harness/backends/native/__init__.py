"""The native backend: training steps of GPT-style models, dense or with experts, in plain torch.
`build` makes a step (loads torch); `predict` says from the advisor's operators what a layer keeps
and replays (loads none). modules/ holds the model, named as Megatron's."""

from typing import TYPE_CHECKING

from harness.trial.trial import Workload

if TYPE_CHECKING:
    from harness.measure.training_step import TrainingStep


def build(workload: Workload, seed: int) -> "TrainingStep":
    """This rank's step of `workload`; UserError for what this backend does not run."""
    from harness.backends.native.step import build_step

    return build_step(workload, seed)
