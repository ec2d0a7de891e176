"""What to paste after a Megatron Bridge script: overrides of its ConfigContainer.

Source: Megatron Bridge main 067f987 (Hydra/OmegaConf dot lists over ConfigContainer), fields of
model providers, ddp, train and mixed_precision. Every override is quoted for the shell: brackets
are patterns there.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from advisor.base.dtypes import DType, Precision
from advisor.frameworks.megatron.flags import RECOMPUTE, Sections, Values, override, recipe_values
from advisor.frameworks.megatron.options.table import sections
from advisor.frameworks.megatron.options.values import MIXED_PRECISION
from advisor.frameworks.megatron.raw import job_values, setting_values
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.setting import Granularity, RecomputeSetting
from advisor.job.job import RECIPES_OF_PRECISIONS, CudaGraphImpl, Fp8Recipe, Job
from advisor.job.tuning import ALL_LINEAR, FULL, Adapter
from advisor.layers.megatron.adapters import CANONICAL, PEFT_SWITCHES, linear_name
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.models.options import CrossEntropyFusion

_SECTION: Final = "mixed_precision"
OPTIMIZER_RECIPE: Final = f"{_SECTION}.fp8_recipe"
"""Which Bridge copies over the optimizer's configuration before it finalizes that."""
NEEDS_CONFIGURATION: Final = (
    f"the {_SECTION}.… overrides work only in recipes (perf_recipes) that set {_SECTION} to a "
    "configuration object, not to a name"
)
_NEEDS_OVERLAP: Final = (
    "the comm_overlap.… overrides work only in recipes whose comm_overlap is set"
)
_HALF: Final = "torch.float16"
_ENDS: Final = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
_NAMED: Final[Mapping[Precision, Mapping[str, Any]]] = {
    Precision.FP16: {"grad_reduce_in_fp32": False},
    Precision.FP8_DELAYED: {"fp8_param_gather": True},
    Precision.FP8_CURRENT: {
        "fp8_param_gather": True,
        "first_last_layers_bf16": True,
        **dict.fromkeys(_ENDS, 1),
    },
    Precision.MXFP8: {"fp8_param_gather": True},
}
"""What the named forms have in addition to `_PLAIN`."""
_PLAIN: Final[Mapping[str, Any]] = {
    "grad_reduce_in_fp32": True,
    "fp8_param_gather": False,
    "first_last_layers_bf16": False,
}


def is_named(job: Job) -> bool:
    """Whether the job's types are those of the named form of its precision."""
    precision = job.config.precision
    recipe = RECIPES_OF_PRECISIONS.get(precision, Fp8Recipe.TENSORWISE)
    named = {**_PLAIN, "fp8_recipe": recipe, **_NAMED.get(precision, {})}
    types = _types(job)
    return all(types[name] == value for name, value in named.items() if name in types)


def precision_overrides(job: Job) -> Iterator[str]:
    """The name of the job's precision, or its types one by one where that form has others."""
    if is_named(job):
        yield f"{_SECTION}={MIXED_PRECISION[job.config.precision]}"
        return
    for name, value in _types(job).items():
        yield f"{_SECTION}.{name}={'null' if value is None else _spelled(value)}"


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _types(job: Job) -> dict[str, Any]:
    """Fields of MixedPrecisionConfig that follow from the job; the recipe without FP8 where its
    optimizer reads it."""
    config, precision = job.config, job.config.precision
    types: dict[str, Any] = {"fp8": None}
    if precision is Precision.FP16:
        types |= {"fp16": True, "bf16": False, "params_dtype": _HALF, "pipeline_dtype": _HALF}
    if precision is Precision.NVFP4:
        types |= {"fp4": "e2m1", "fp4_param_gather": True}
    if precision.is_fp8:
        types["fp8"] = "e4m3" if precision is Precision.MXFP8 else "hybrid"
        types["fp8_recipe"] = RECIPES_OF_PRECISIONS[precision]
        types["fp8_param_gather"] = config.fp8_param_gather
        if precision is Precision.MXFP8:  # which ConfigContainer.validate asks for
            types["reuse_grad_buf_for_mxfp8_param_ag"] = config.fp8_param_gather
        types["first_last_layers_bf16"] = job.model.first_last_layers_bf16
        if job.model.first_last_layers_bf16:
            types |= {name: getattr(job.model, name) for name in _ENDS}
    elif config.use_precision_aware_optimizer:
        types["fp8_recipe"] = config.fp8_recipe or Fp8Recipe.TENSORWISE
    types["grad_reduce_in_fp32"] = config.main_grads_dtype is DType.FP32
    return types


MODEL_AND_DATA: Final = sections(
    "Parallelism Experts Attention CudaGraphs Communication Batch DataParallel"
)
RUN: Final = sections("Precision Implementation Loss")
"""What a recipe is given of a job, after MODEL_AND_DATA."""


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
    return shlex.join(_overrides(RECOMPUTE, values, job, revision))


def _overrides(among: Sections, values: Values, job: Job, revision: Revision) -> Iterator[str]:
    for row, value in recipe_values(among, values, job, revision):
        yield override(row.bridge.removesuffix(row.name) + row.name_in(revision), row, value)


def _switched_off(job: Job) -> Iterator[str]:
    """What a recipe may have on that no step which repeats to the bit or is one graph goes with."""
    if job.config.deterministic_mode and job.layout.tensor_model_parallel_size > 1:
        yield "comm_overlap.tp_comm_overlap=false"
    if job.config.cuda_graph_impl is CudaGraphImpl.FULL_ITERATION:
        yield "rerun_state_machine.check_for_nan_in_loss=false"


def bridge_layout_overrides(job: Job, revision: Revision) -> str:
    """Overrides for the layout, batch, precision and CUDA graphs of the job.

    The sequence length is set in the recipe: it stands in the model and in the data set, whose
    field differs by recipe.
    """
    values = job_values(job, revision)
    return shlex.join(
        (
            *_overrides(MODEL_AND_DATA, values, job, revision),
            *peft_overrides(job),
            *muon_overrides(job),
            *precision_overrides(job),
            *_overrides(RUN, values, job, revision),
            *_switched_off(job),
        )
    )


def assumed_overrides(job: Job, revision: Revision) -> str:
    """What a prediction rests on except degrees and batch. The types of a recipe in bf16 are not
    among them, nor a loss that its recipe leaves unfused as well."""
    values = job_values(job, revision)
    in_bf16 = job.config.precision is Precision.BF16
    fused = job.model.cross_entropy_fusion is not CrossEntropyFusion.NONE
    types = () if in_bf16 else sections("Precision")
    loss = sections("Loss") if fused or job.config.deterministic_mode else ()
    asked = (*types, *sections("Implementation"), *loss)
    return shlex.join(
        (
            *(() if in_bf16 else precision_overrides(job)),
            *peft_overrides(job),
            *muon_overrides(job),
            *_overrides(asked, values, job, revision),
            *_switched_off(job),
        )
    )


def left_to_bridge(job: Job) -> str:
    """What of a job the overrides omit, and which recipe takes those of its types."""
    left = [f"set this in the recipe: sequence length {job.config.seq_length}"]
    left += [] if is_named(job) else [NEEDS_CONFIGURATION]
    left += [_recipe_with(job)] if job.config.tuning.has_adapter else []
    overlaps = job.layout.tp_comm_overlap or job.layout.overlap_moe_expert_parallel_comm
    return " · ".join([*left, _NEEDS_OVERLAP] if overlaps else left)


def _recipe_with(job: Job) -> str:
    """Which recipe takes the overrides of its peft."""
    parts = {part for parts in CANONICAL.values() for part in parts} & {*target_names(job)}
    dora = job.config.tuning.adapter is Adapter.DORA
    kind = "DoRA" if dora else "CanonicalLoRA" if parts else "LoRA"
    return f"the peft.… overrides work only in recipes whose peft is {kind}(…), a …_peft_… one"


def peft_overrides(job: Job) -> Iterator[str]:
    """Fields of a recipe's peft (peft/lora.py); the last ones where they are not the default."""
    tuning = job.config.tuning
    if tuning.has_adapter:
        yield f"peft.dim={tuning.rank}"
        yield f"peft.dropout={tuning.dropout:g}"
        yield f"peft.target_modules=[{','.join(target_names(job))}]"
        for name in PEFT_SWITCHES:
            if getattr(tuning, name) != getattr(FULL, name):
                yield f"peft.{name}={_spelled(getattr(tuning, name))}"


def target_names(job: Job) -> tuple[str, ...]:
    """Linear layers with an adapter, by name: Bridge has no word for all of them."""
    targets = job.config.tuning.target_modules
    if ALL_LINEAR not in targets:
        return targets
    shape = RankShape(model=job.model, seq_length=1, micro_batch_size=1)
    layers = (transformer_layer(shape, kind) for kind in dict.fromkeys(job.model.layer_kinds))
    linear = (one for layer in layers for one in layer if one.weights and one.weights[0].in_linear)
    return tuple(dict.fromkeys(map(linear_name, linear)))


def muon_overrides(job: Job) -> Iterator[str]:
    """Bridge's: it switches on both of a pair of which a recipe has one on (training/config.py)."""
    if not job.config.optimizer.is_muon:
        return
    yield f"optimizer.optimizer={job.config.optimizer}"
    for option in ("use_distributed_optimizer", "overlap_param_gather"):
        yield f"ddp.{option}=false"
        yield f"optimizer.{option}=false"
