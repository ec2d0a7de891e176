"""What to paste into Megatron-LM's command line for a setting and its job; and how rows of options
are emitted, there and as overrides of a recipe.

Option names and arities: megatron-core wheels 0.17.1, 0.18.2 and 0.19.2 training/arguments.py and
argument_utils.py (options made from TransformerConfig's fields), which agree on all options here
except those of CUDA graphs. What to put after a NeMo command, overrides of its recipe (NeMo 2) or
of its YAML (NeMo 1): NVIDIA/NeMo 8cfedd72 (2.5) nemo/collections/llm: recipe.model.config is a
Megatron TransformerConfig, and nemo-run reads each value as a Python literal or null; NeMo 1
nemo/collections/nlp/.../megatron_gpt_config.yaml (activations_checkpoint_*), read by Hydra.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from advisor.base.dtypes import DType, Precision
from advisor.frameworks.megatron.options.table import Section, sections
from advisor.frameworks.megatron.raw import job_values, setting_values
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.setting import Granularity, Method, RecomputeSetting
from advisor.frameworks.option import Described, Format, Option
from advisor.job.job import CudaGraphImpl, Job

Sections = Iterable[Section]
Values = Mapping[str, Any]
"""Values of options by name, those that apply (raw.job_values, raw.setting_values)."""
_STRATEGY: Final = "trainer.strategy"
"""Where NeMo 2 keeps degrees of parallelism: its MegatronStrategy."""


def flags_of(
    among: Sections, values: Values, job: Described, revision: Revision, *, layout: bool = True
) -> Iterator[str]:
    """Words of the rows of `among`, in order; layout: with those that the layout's command line
    always has."""
    for section in among:
        for row in section.rows:
            when = row.emitted.line
            if when is None or row.name not in values:
                continue
            value = values[row.name]
            if when.holds(value, row.omitted, job, layout=layout):
                yield from words(row, value, revision)


def words(row: Option, value: object, revision: Revision) -> tuple[str, ...]:
    """An option with its value, as Megatron-LM's command line reads it.

    >>> words(SETTINGS["recompute_modules"], ("mlp", "moe"), revision)
    ('--recompute-modules', 'mlp', 'moe')
    """
    if isinstance(value, bool):
        return (row.flag_in(revision) if value else row.off,)
    if isinstance(value, tuple):
        return (row.flag_in(revision), *value)
    short = row.emitted.format is Format.SHORT
    return (row.flag_in(revision), format(value, "g") if short else str(value))


def recipe_values(
    among: Sections, values: Values, job: Described, revision: Revision
) -> Iterator[tuple[Option, object]]:
    """Rows of `among` that a recipe is given, with their values; a section at a time, each in
    the order of Emitted.order."""
    for section in among:
        for row in sorted(section.rows, key=lambda row: row.emitted.order):
            when, other = row.emitted.recipe, row.emitted.recipe_value
            if when is None or row.name not in values:
                continue
            value = values[row.name]
            if when.holds(value, row.default, job):
                yield row, value if other is None else other(job, revision)


def override(path: str, row: Option, value: object, quote: str = "") -> str:
    """``PATH=VALUE`` for Hydra or nemo-run; `quote` stands around the names of a list.

    >>> override("model.recompute_modules", SETTINGS["recompute_modules"], ("mlp", "moe"))
    'model.recompute_modules=[mlp,moe]'
    """
    if value is None:
        return f"{path}=null"
    if isinstance(value, bool):
        return f"{path}={str(value).lower()}"
    if isinstance(value, tuple):
        if row.emitted.format is Format.SINGLE:
            return f"{path}={','.join(value)}"
        return f"{path}=[{','.join(f'{quote}{name}{quote}' for name in value)}]"
    return f'{path}="{value}"' if row.emitted.format is Format.QUOTED else f"{path}={value}"


LAYOUT_SECTIONS: Final = sections(
    "Parallelism Experts Attention Hybrid OptimizerStep DataParallel Communication Batch Loop "
    "Precision Implementation Dropout Loss CudaGraphs"
)
"""What a whole command line is given, in order."""
_ASSUMED: Final = sections("Precision Implementation OptimizerStep Loss Loop CudaGraphs")
RECOMPUTE: Final = sections("Recompute")


def megatron_lm_flags(setting: RecomputeSetting, job: Job, revision: Revision) -> str:
    """Recompute flags; empty where nothing is recomputed, which is Megatron-LM's default.

    An unset list of modules is written out as the core_attn that Megatron makes of it, so that the
    flags say what runs. An empty list gives no flags: --recompute-modules needs at least one.

    >>> megatron_lm_flags(selective("mlp"), job, revision)
    '--recompute-granularity selective --recompute-modules mlp'
    """
    values = setting_values(setting)
    # Each would be refused, or have no effect, with another granularity.
    unread = () if values["recompute_granularity"] == "full" else _OF_FULL
    values = {name: value for name, value in values.items() if value != () and name not in unread}
    return shlex.join(flags_of(RECOMPUTE, values, job, revision))


_OF_FULL: Final = ("recompute_method", "recompute_num_layers", "distribute_saved_activations")


def layout_flags(job: Job, revision: Revision) -> str:
    """Parallel degrees, batch, precision, implementation and CUDA graphs of the job.

    VPP is written as layers of a model chunk (--num-layers-per-virtual-pipeline-stage), the
    spelling that every release takes.
    """
    return shlex.join(flags_of(LAYOUT_SECTIONS, job_values(job, revision), job, revision))


def assumed_flags(job: Job, revision: Revision) -> str:
    """What a prediction rests on and Megatron-LM does not do by itself: without these flags the job
    is another one. Degrees and batch are not among them (layout_flags has everything)."""
    config = job.config
    plain = config.precision is Precision.BF16 and config.main_grads_dtype is DType.FP32
    needless = plain and not config.use_precision_aware_optimizer
    among = _ASSUMED[1:] if needless else _ASSUMED
    return shlex.join(flags_of(among, job_values(job, revision), job, revision, layout=False))


_DETERMINISTIC: Final = (
    "NCCL_ALGO=Ring",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO=0",
    "CUBLAS_WORKSPACE_CONFIG=:4096:8",
)
"""Source: megatron-core 0.19.2 training/determinism.py."""


def environment(setting: RecomputeSetting, job: Job, revision: Revision) -> tuple[str, ...]:
    """Environment variables, ``NAME=value``, without which the job is refused or runs otherwise.

    Source: megatron-core 0.19.2 training/arguments.py:1854-1887; Transformer Engine 2.20
    pytorch/module/base.py initialize_ub.
    """
    expandable = job.config.expandable_segments
    engine_graphs = job.config.cuda_graph_impl is CudaGraphImpl.TRANSFORMER_ENGINE
    variables = {
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True": expandable,
        "NCCL_GRAPH_REGISTER=0": expandable and engine_graphs,
        "UB_SKIPMC=1": job.layout.tp_comm_overlap and not job.gpu.has_multicast,
        **dict.fromkeys(_DETERMINISTIC, job.config.deterministic_mode),
        "NVTE_CPU_OFFLOAD_V1=1": setting.offload_modules,
    }
    return tuple(variable for variable, holds in variables.items() if holds)


NEMO_SECTIONS: Final = sections(
    "Parallelism Experts CudaGraphs Communication Batch Implementation Loss"
)
"""What a recipe is given of a job."""


def nemo_overrides(setting: RecomputeSetting, job: Job, revision: Revision) -> str:
    """Overrides that give exactly `setting`, whatever the recipe or the YAML had set before.

    Selective needs a method in NeMo 1's own transformer, which then forces all layers, and may have
    no number of layers in Megatron Core's. Neither NeMo's core offloads single modules.

    >>> nemo_overrides(full(Method.BLOCK, 2), job, resolve_revision(Framework.NEMO, "1"))
    'model.activations_checkpoint_granularity=full ...'
    """
    values = setting_values(setting)
    if is_first(revision) and values["recompute_granularity"] == Granularity.SELECTIVE:
        values["recompute_method"] = str(Method.UNIFORM)
    return shlex.join(text for _, text in _overrides(RECOMPUTE, values, job, revision))


def is_first(revision: Revision) -> bool:
    """Whether this is NeMo 1, with its own YAML keys."""
    return revision.version == "1"


def _overrides(
    among: Sections, values: Values, job: Job, revision: Revision
) -> Iterator[tuple[Option, str]]:
    for row, value in recipe_values(among, values, job, revision):
        path = row.nemo_1 if is_first(revision) else row.nemo
        if path and row.emitted.in_nemo and row.in_release(revision):
            if row.name_in(revision) != row.name:
                path = path.removesuffix(row.name) + row.was
            yield row, override(path, row, value, quote='"')


def nemo_layout_overrides(job: Job, revision: Revision) -> str:
    """Degrees of parallelism, batch, dispatcher, CUDA graphs, overlap and loss; precision and
    sequence length are left to the recipe.

    The fields of an uneven split are those of MegatronStrategy (nemo_toolkit 2.5.3,
    lightning/pytorch/strategies/megatron_strategy.py).
    """
    found = list(_overrides(NEMO_SECTIONS, job_values(job, revision), job, revision))
    found.sort(key=lambda part: part[0].emitted.order)
    # the strategy's fields first, the data's last
    found.sort(
        key=lambda part: part[0].nemo.startswith("data") - part[0].nemo.startswith(_STRATEGY)
    )
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
