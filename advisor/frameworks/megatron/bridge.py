"""What to paste after a Megatron Bridge script: overrides of its ConfigContainer.

Source: Megatron Bridge main 067f987 (Hydra/OmegaConf dot lists over ConfigContainer), fields of
model providers, ddp, train and mixed_precision. Every override is quoted for the shell: brackets
are patterns there.
"""

import shlex
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, Final

from advisor.base.dtypes import DType, Precision
from advisor.frameworks.megatron.lowering import job_values, setting_values
from advisor.frameworks.megatron.muon import muon_overrides
from advisor.frameworks.megatron.options.attention import Attention
from advisor.frameworks.megatron.options.communication import Communication
from advisor.frameworks.megatron.options.experts import Experts
from advisor.frameworks.megatron.options.graphs import CudaGraphs
from advisor.frameworks.megatron.options.implementation import Implementation, Loss
from advisor.frameworks.megatron.options.optimizer import DataParallel
from advisor.frameworks.megatron.options.parallelism import Parallelism
from advisor.frameworks.megatron.options.precision import Precision as NumberTypes
from advisor.frameworks.megatron.options.recompute import Recompute
from advisor.frameworks.megatron.options.training import Batch
from advisor.frameworks.megatron.options.values import keeps_precision
from advisor.frameworks.megatron.printing import Values, override, told
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.setting import Granularity, RecomputeSetting
from advisor.job.job import Job

_MODEL_AND_DATA: Final = (
    Parallelism,
    Experts,
    Attention,
    CudaGraphs,
    Communication,
    Batch,
    DataParallel,
)
_RUN: Final = (NumberTypes, Implementation, Loss)
TOLD_SECTIONS: Final = (*_MODEL_AND_DATA, *_RUN)
"""What a recipe is told of a job, in order."""
OPTIMIZER_RECIPE: Final = "mixed_precision.fp8_recipe"
"""Which Bridge copies over the optimizer's configuration before it finalizes that
(training/mixed_precision.py, setup; v0.2 to v0.6.2)."""


def bridge_overrides(setting: RecomputeSetting, job: Job, revision: Revision) -> str:
    """Overrides that give exactly `setting`, whatever the recipe had set before.

    A recipe's method and number of layers left in place would be refused under selective
    ("recompute_num_layers must be None"), so they are cleared; no recompute clears everything.

    >>> bridge_overrides(NONE, job, revision).split()[0]
    'model.recompute_granularity=null'
    """
    values = setting_values(setting)
    if setting.granularity is Granularity.FULL:  # which reads no modules
        del values["recompute_modules"]
    return shlex.join(_overrides((Recompute,), values, job, revision))


def _overrides(
    sections: tuple[type[Any], ...], values: Values, job: Job, revision: Revision
) -> Iterator[str]:
    for row, value in told(sections, values, attrgetter("told")):
        if row.told_when is None or row.told_when(job):
            path = row.bridge.removesuffix(row.name) + row.name_in(revision)
            yield override(path, row, row.recipe_value(job) if row.recipe_value else value)


def _recipe_override(job: Job) -> Iterator[str]:
    if keeps_precision(job):
        yield f"{OPTIMIZER_RECIPE}={job.config.fp8_recipe}"


def _repeats(job: Job) -> Iterator[str]:
    """What a recipe may have on that no step which repeats to the bit goes with."""
    if job.config.deterministic_mode:
        yield "model.cross_entropy_loss_fusion=false"
        if job.layout.tensor_model_parallel_size > 1:
            yield "comm_overlap.tp_comm_overlap=false"


def bridge_layout_overrides(job: Job, revision: Revision) -> str:
    """Overrides for the layout, batch, precision and CUDA graphs of the job.

    Two things are left to the recipe: the sequence length, which stands in the model and in the
    data set, whose field differs by recipe; and the type of the gradient buffer, which the named
    mixed_precision overwrites at validation.
    """
    values = job_values(job, revision)
    return shlex.join(
        (
            *_overrides(_MODEL_AND_DATA, values, job, revision),
            *muon_overrides(job),
            *_recipe_override(job),
            *_overrides(_RUN, values, job, revision),
            *_repeats(job),
        )
    )


def assumed_overrides(job: Job, revision: Revision) -> str:
    """What a prediction rests on beside degrees and batch. The type of the gradients is not among
    them: Bridge takes it from the recipe's mixed_precision when it validates."""
    values = job_values(job, revision)
    types = () if job.config.precision is Precision.BF16 else (NumberTypes,)
    return shlex.join(
        (
            *_overrides(types, values, job, revision),
            *muon_overrides(job),
            *_recipe_override(job),
            *_overrides((Implementation, Loss), values, job, revision),
            *_repeats(job),
        )
    )


def left_to_recipe(job: Job, *, precision: bool) -> tuple[str, ...]:
    """What of a job the overrides of Bridge and NeMo do not say: data sets have the sequence length
    as well, and a named precision overwrites the types. precision: whether that is left out too."""
    config = job.config
    said = {
        f"precision {config.precision}": precision,
        f"sequence {config.seq_length}": True,
        f"gradients in {config.main_grads_dtype}": config.main_grads_dtype is not DType.FP32,
        f"precision-aware optimizer with moments in {config.exp_avg_dtype}": (
            config.use_precision_aware_optimizer
        ),
        "weights in 8 bits alone (fp8_param_gather)": config.fp8_param_gather,
        "optimizer on the host": config.optimizer_cpu_offload,
    }
    return tuple(words for words, is_so in said.items() if is_so)
