"""Layouts and micro batches that cannot fit, known before a job of theirs is evaluated."""

from typing import Final

from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout, fits_layout
from advisor.memory.chunk import chunk_footprint
from advisor.plan.recompute_plan import RecomputePlan
from advisor.search.changed_options import Root
from advisor.search.evaluate import Evaluator
from advisor.search.floor import Floors
from advisor.search.layouts import micro_batches, of_group


class TooLarge:
    """What is known of the jobs of some roots: their weights, gradients and optimizer, which no
    recompute changes; the head of the model; micro batches that did not fit.

    floors: of the first root, whose shapes are those of all. smallest: jobs whose states are too
    large already, with their bytes.
    """

    def __init__(
        self, roots: tuple[Root, ...], floors: Floors, calibration: Calibration, budget_bytes: int
    ) -> None:
        self._roots, self._floors = roots, floors
        self._calibration, self._budget = calibration, budget_bytes
        self._framework = parts_of(roots[0].template.config.framework)
        self._options = [_optimizer_options(root.template) for root in roots]
        self._states: dict[object, int] = {}
        self._may_hold: dict[object, bool] = {}
        self._ends: dict[object, int] = {}
        self._unfit: dict[tuple[int, ParallelLayout], list[int]] = {}
        self.smallest: list[tuple[int, Job]] = []

    def did_not_fit(self, root: int, job: Job) -> None:
        """No setting of the job does; nor of its layout with a multiple of its micro batch."""
        sizes = self._unfit.setdefault((root, job.layout), [])
        sizes.append(job.config.micro_batch_size)

    def is_group(self, root: int, group: ParallelLayout) -> bool:
        """Whether all layouts of a group are, or illegal."""
        if not fits_layout(self._roots[root].resolution.model, group):
            return True
        names = (name for name in HOLDING if name != "pipeline_model_parallel_size")
        key = (self._options[root], *(getattr(group, name) for name in names))
        if key not in self._may_hold:
            resolution = self._roots[root].resolution
            self._may_hold[key] = any(
                not self._holds_too_much(root, layout, size)
                for layout in of_group(resolution, group)
                for size in micro_batches(resolution, layout)[:1]
            )
        return not self._may_hold[key]

    def is_micro_batch(self, group: ParallelLayout, size: int) -> bool:
        """Whether the head and the loss are, which all layouts of a group have."""
        tp, cp = group.tensor_model_parallel_size, group.context_parallel_size
        key = (tp, group.sequence_parallel, cp, size)
        if key not in self._ends:
            job = self._roots[0].template
            shape = self._framework.memory.shape(job, self._floors.shape_of(group, size))
            found = chunk_footprint(shape, _NO_LAYERS, False, True)
            self._ends[key] = max(found.forward.num_bytes, found.backward.num_bytes)
        return self._ends[key] > self._budget

    def is_layout(self, root: int, layout: ParallelLayout, size: int) -> bool:
        """Whether its states are, or a micro batch of which this one is a multiple did not fit."""
        unfit = self._unfit.get((root, layout), ())
        return any(size % small == 0 for small in unfit) or self._holds_too_much(root, layout, size)

    def _holds_too_much(self, root: int, layout: ParallelLayout, size: int) -> bool:
        key = (self._options[root], *(getattr(layout, name) for name in HOLDING))
        if key not in self._states:
            job = self._roots[root].job(layout, size)
            if job is None:
                return False
            held = self._states[key] = Evaluator(job, self._calibration).mean_static_bytes
            if held > self._budget and not self._framework.settings.check_job(job):
                self.smallest.append((held, job))
        return self._states[key] > self._budget


def _optimizer_options(job: Job) -> object:
    """A job's options but for those that decide nothing of what a rank holds of parameters."""
    layout, config = job.layout, job.config
    return (
        layout.use_distributed_optimizer,
        config.optimizer_cpu_offload,
        config.optimizer_offload_fraction,
        config.param_cpu_offload,
        config.use_precision_aware_optimizer,
        config.fp8_recipe,
    )


HOLDING: Final = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "data_parallel_sharding",
)
"""What of a layout decides how much of weights, gradients and optimizer its stages hold in the
mean."""
_NO_LAYERS: Final = RecomputePlan(())
