"""Megatron Bridge's mixed_precision, which overwrites the types of model, gradients and optimizer.

Sources: Megatron Bridge 0.6.0 training/mixed_precision.py (MixedPrecisionConfig, its named forms,
setup), perf_recipes/_common.py (_perf_precision: a configuration, with gradients in 16 bits),
recipes/common.py (a name), training/utils/omegaconf_utils.py.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from advisor.base.dtypes import DType, Precision
from advisor.frameworks.megatron.options.values import MIXED_PRECISION
from advisor.job.job import RECIPES_OF_PRECISIONS, Fp8Recipe, Job

_SECTION: Final = "mixed_precision"
OPTIMIZER_RECIPE: Final = f"{_SECTION}.fp8_recipe"
"""Which Bridge copies over the optimizer's configuration before it finalizes that."""
NEEDS_CONFIGURATION: Final = (
    f"the {_SECTION}.… overrides work only in recipes (perf_recipes) that set {_SECTION} to a "
    "configuration object, not to a name"
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
"""What the named forms have beside `_PLAIN`."""
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
        types["first_last_layers_bf16"] = job.model.first_last_layers_bf16
        if job.model.first_last_layers_bf16:
            types |= {name: getattr(job.model, name) for name in _ENDS}
    elif config.use_precision_aware_optimizer:
        types["fp8_recipe"] = config.fp8_recipe or Fp8Recipe.TENSORWISE
    types["grad_reduce_in_fp32"] = config.main_grads_dtype is DType.FP32
    return types
