"""What to put behind a NeMo command: overrides of its recipe (NeMo 2) or of its YAML (NeMo 1).

Sources: NVIDIA/NeMo 8cfedd72 (2.5) nemo/collections/llm: recipe.model.config is a Megatron
TransformerConfig, and nemo-run reads each value as a Python literal or null; NeMo 1
nemo/collections/nlp/.../megatron_gpt_config.yaml (activations_checkpoint_*), read by Hydra.
"""

import shlex
from collections.abc import Iterator

from advisor.frameworks.megatron.bridge import uneven_split
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.setting import Granularity, Method, RecomputeSetting
from advisor.job.job import Job


def nemo_overrides(setting: RecomputeSetting, job: Job, revision: Revision) -> str:
    """Overrides that give exactly `setting`, whatever the recipe or the YAML had set before.

    >>> nemo_overrides(full(Method.BLOCK, 2), job, resolve_revision(Framework.NEMO, "1"))
    'model.activations_checkpoint_granularity=full ...'
    """
    parts = _checkpoint(setting) if is_first(revision) else _config(setting)
    return shlex.join(parts)


def is_first(revision: Revision) -> bool:
    """Whether this is NeMo 1, with its own YAML keys."""
    return revision.version == "1"


def _checkpoint(setting: RecomputeSetting) -> Iterator[str]:
    """NeMo 1. Selective needs a method in its own transformer, which then forces all layers, and
    may have no number of layers in Megatron Core's."""
    granularity, method, number = "null", "null", "null"
    if setting.granularity is Granularity.FULL:
        granularity, method = "full", str(setting.method)
        number = str(setting.num_layers)
    elif setting.effective_modules:
        granularity, method = "selective", str(Method.UNIFORM)
    for name, value in (("granularity", granularity), ("method", method), ("num_layers", number)):
        yield f"model.activations_checkpoint_{name}={value}"
    yield from _offload(setting, "model")


def _config(setting: RecomputeSetting) -> Iterator[str]:
    """NeMo 2: fields of TransformerConfig."""
    modules = ",".join(f'"{module}"' for module in setting.effective_modules)
    values = {
        "recompute_granularity": "selective" if modules else "null",
        "recompute_modules": f"[{modules}]",
        "recompute_method": "null",
        "recompute_num_layers": "null",
    }
    if setting.granularity is Granularity.FULL:
        values |= {
            "recompute_granularity": "full",
            "recompute_method": str(setting.method),
            "recompute_num_layers": str(setting.num_layers),
        }
    if setting.distribute_saved_activations:
        values["distribute_saved_activations"] = "true"
    for name, value in values.items():
        yield f"model.config.{name}={value}"
    yield from _offload(setting, "model.config")


def _offload(setting: RecomputeSetting, section: str) -> Iterator[str]:
    """Whole layers; neither NeMo's core offloads single modules."""
    if setting.cpu_offloading_num_layers:
        yield f"{section}.cpu_offloading=true"
        yield f"{section}.cpu_offloading_weights=false"
        yield f"{section}.cpu_offloading_num_layers={setting.cpu_offloading_num_layers}"


def nemo_layout_overrides(job: Job, revision: Revision) -> str:
    """Degrees of parallelism and batch; precision and sequence length are left to the recipe.

    The fields of an uneven split are those of MegatronStrategy (nemo_toolkit 2.5.3,
    lightning/pytorch/strategies/megatron_strategy.py).
    """
    layout, config = job.layout, job.config
    first = is_first(revision)
    strategy, data = ("model", "model") if first else ("trainer.strategy", "data")
    vpp = layout.virtual_pipeline_model_parallel_size
    degrees = {
        "tensor_model_parallel_size": layout.tensor_model_parallel_size,
        "sequence_parallel": str(layout.sequence_parallel).lower(),
        "context_parallel_size": layout.context_parallel_size,
        "pipeline_model_parallel_size": layout.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": vpp if vpp > 1 else "null",
        "expert_model_parallel_size": layout.expert_model_parallel_size,
        **uneven_split(layout),
    }
    batch = {
        "micro_batch_size": config.micro_batch_size,
        "global_batch_size": config.global_batch_size,
    }
    parts = [f"{strategy}.{name}={value}" for name, value in degrees.items()]
    if layout.context_parallel_size > 1 and not first:
        parts.append(f"model.config.cp_comm_type={layout.cp_comm_type}")
    return shlex.join([*parts, *(f"{data}.{name}={value}" for name, value in batch.items())])
