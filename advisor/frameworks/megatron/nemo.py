"""What to put after a NeMo command: overrides of its recipe (NeMo 2) or of its YAML (NeMo 1).

Sources: NVIDIA/NeMo 8cfedd72 (2.5) nemo/collections/llm: recipe.model.config is a Megatron
TransformerConfig, and nemo-run reads each value as a Python literal or null; NeMo 1
nemo/collections/nlp/.../megatron_gpt_config.yaml (activations_checkpoint_*), read by Hydra.
"""

import shlex
from collections.abc import Iterator
from typing import Final

from advisor.base.dtypes import DType
from advisor.frameworks.megatron import flags, raw, revisions
from advisor.frameworks.megatron.options.experts import Experts
from advisor.frameworks.megatron.options.implementation import Batch, Implementation, Loss
from advisor.frameworks.megatron.options.parallelism import STRATEGY, Communication, Parallelism
from advisor.frameworks.megatron.options.recompute import CudaGraphs, Recompute
from advisor.frameworks.megatron.setting import Granularity, Method, RecomputeSetting
from advisor.frameworks.option import Option
from advisor.job.job import Job

EMITTED_SECTIONS: Final = (
    Parallelism,
    Experts,
    CudaGraphs,
    Communication,
    Batch,
    Implementation,
    Loss,
)
"""What a recipe is given of a job."""


def nemo_overrides(setting: RecomputeSetting, job: Job, revision: revisions.Revision) -> str:
    """Overrides that give exactly `setting`, whatever the recipe or the YAML had set before.

    Selective needs a method in NeMo 1's own transformer, which then forces all layers, and may have
    no number of layers in Megatron Core's. Neither NeMo's core offloads single modules.

    >>> nemo_overrides(full(Method.BLOCK, 2), job, resolve_revision(Framework.NEMO, "1"))
    'model.activations_checkpoint_granularity=full ...'
    """
    values = raw.setting_values(setting)
    if is_first(revision) and values["recompute_granularity"] == Granularity.SELECTIVE:
        values["recompute_method"] = str(Method.UNIFORM)
    return shlex.join(text for _, text in _overrides((Recompute,), values, job, revision))


def is_first(revision: revisions.Revision) -> bool:
    """Whether this is NeMo 1, with its own YAML keys."""
    return revision.version == "1"


def _overrides(
    sections: flags.Sections, values: flags.Values, job: Job, revision: revisions.Revision
) -> Iterator[tuple[Option, str]]:
    for row, value in flags.recipe_values(sections, values, job, revision):
        path = row.nemo_1 if is_first(revision) else row.nemo
        if path and row.emitted.in_nemo and row.in_release(revision):
            if row.name_in(revision) != row.name:
                path = path.removesuffix(row.name) + row.was
            yield row, flags.override(path, row, value, quote='"')


def nemo_layout_overrides(job: Job, revision: revisions.Revision) -> str:
    """Degrees of parallelism, batch, dispatcher, CUDA graphs, overlap and loss; precision and
    sequence length are left to the recipe.

    The fields of an uneven split are those of MegatronStrategy (nemo_toolkit 2.5.3,
    lightning/pytorch/strategies/megatron_strategy.py).
    """
    found = list(_overrides(EMITTED_SECTIONS, raw.job_values(job, revision), job, revision))
    found.sort(key=lambda part: part[0].emitted.order)
    # the strategy's fields first, the data's last
    found.sort(key=lambda part: part[0].nemo.startswith("data") - part[0].nemo.startswith(STRATEGY))
    return shlex.join(text for _, text in found)


def left_to_nemo(job: Job) -> str:
    """What of a job the overrides omit: data sets have the sequence length as well, and the
    recipe's precision overwrites the types."""
    config = job.config
    said = {
        f"precision {config.precision}": True,
        f"sequence length {config.seq_length}": True,
        f"gradients in {config.main_grads_dtype}": config.main_grads_dtype is not DType.FP32,
        f"precision-aware optimizer with moments in {config.exp_avg_dtype}": (
            config.use_precision_aware_optimizer
        ),
        "weights only in 8 bits (fp8_param_gather)": config.fp8_param_gather,
        "optimizer on the host": config.optimizer_cpu_offload,
    }
    return f"set this in the recipe: {', '.join(words for words, is_so in said.items() if is_so)}"
