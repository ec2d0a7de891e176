"""What to paste after a Megatron Bridge script: overrides of its ConfigContainer.

Source: Megatron Bridge main 067f987 (Hydra/OmegaConf dot lists over ConfigContainer), fields of
model providers, ddp, train and mixed_precision. Every override is quoted for the shell: brackets
are patterns there.
"""

import shlex
from collections.abc import Iterator
from typing import Any, Final

from advisor.base.dtypes import Precision
from advisor.frameworks.megatron.bridge_precision import (
    NEEDS_CONFIGURATION,
    is_named,
    precision_overrides,
)
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
from advisor.frameworks.megatron.printing import Values, override, recipe_values
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.setting import Granularity, RecomputeSetting
from advisor.job.job import Job
from advisor.models.options import CrossEntropyFusion

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
EMITTED_SECTIONS: Final = (*_MODEL_AND_DATA, *_RUN)
"""What a recipe is given of a job, in order."""


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
    for row, value in recipe_values(sections, values, job, revision):
        path = row.bridge.removesuffix(row.name) + row.name_in(revision)
        yield override(path, row, value)


def _repeats(job: Job) -> Iterator[str]:
    """What a recipe may have on that no step which repeats to the bit goes with."""
    if job.config.deterministic_mode and job.layout.tensor_model_parallel_size > 1:
        yield "comm_overlap.tp_comm_overlap=false"


def bridge_layout_overrides(job: Job, revision: Revision) -> str:
    """Overrides for the layout, batch, precision and CUDA graphs of the job.

    The sequence length is set in the recipe: it stands in the model and in the data set, whose
    field differs by recipe.
    """
    values = job_values(job, revision)
    return shlex.join(
        (
            *_overrides(_MODEL_AND_DATA, values, job, revision),
            *muon_overrides(job),
            *precision_overrides(job),
            *_overrides(_RUN, values, job, revision),
            *_repeats(job),
        )
    )


def assumed_overrides(job: Job, revision: Revision) -> str:
    """What a prediction rests on except degrees and batch. The types of a recipe in bf16 are not
    among them, nor a loss that its recipe leaves unfused as well."""
    values = job_values(job, revision)
    in_bf16 = job.config.precision is Precision.BF16
    types = () if in_bf16 else (NumberTypes,)
    fused = job.model.cross_entropy_fusion is not CrossEntropyFusion.NONE
    loss = (Loss,) if fused or job.config.deterministic_mode else ()
    return shlex.join(
        (
            *(() if in_bf16 else precision_overrides(job)),
            *muon_overrides(job),
            *_overrides((*types, Implementation, *loss), values, job, revision),
            *_repeats(job),
        )
    )


def left_to_bridge(job: Job) -> str:
    """What of a job the overrides omit, and which recipe takes those of its types."""
    left = f"set this in the recipe: sequence length {job.config.seq_length}"
    return left if is_named(job) else f"{left} · {NEEDS_CONFIGURATION}"
