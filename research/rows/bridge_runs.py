"""Jobs of Megatron Bridge's own recipes, with what a published row says laid over them.

A recipe of configs/recipe (Bridge main) for the model, GPU, precision and task says what no row
does: the fused loss, gradients in 16 bits, the overlap of tensor parallel communication, fused
permutation, 8-bit parameters. Where there is none in that precision, the BF16 recipe says it.
Degrees, batch, recompute, CUDA graphs, dispatcher and overlap are the row's; what a row leaves out
its workload configuration leaves at Bridge's default: none.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from advisor.base.dtypes import Precision
from advisor.base.units import parse_gpus
from advisor.frameworks.names import Framework
from advisor.job.job import CudaGraphImpl
from advisor.job.layout import DataParallelSharding
from advisor.models.options import FlexBackend, TokenDispatcher
from advisor.models.presets import load_model
from advisor.request.recipes import Experiment, Recipe, load_recipes, preset_of
from research.rows.row import RowJob, resolved

Values = Mapping[str, Any]

_PRETRAINED: Final = "pretrain"
_DEEPSEEK_CHUNKS: Final = "Et*4|(t*4|)*14tmL"
"""Sixteen chunks, as Bridge's set_deepseek_v3_pipeline_model_parallel_layout cuts DeepSeek-V3 for
PP 16, PP 8 with VPP 2, and PP 4 with VPP 4 (models/deepseek, v0.2 to v0.6)."""
_SHARDED: Final = {"True": {"data_parallel_sharding": DataParallelSharding.FULL}}
"""Under Megatron-FSDP: optim_grads_params in all recipes."""
_SPLITS: Final = {"deepseek_v3": _DEEPSEEK_CHUNKS}


class BridgeRun(Struct, frozen=True, kw_only=True):
    """What a row says of a run. release: of Bridge. fields: by their names in a job, whichever of
    its parts has them. extras: the workload configuration, by Bridge's names."""

    model: str
    gpus: str
    release: str
    precision: Precision
    fields: Values
    extras: Values
    task: str = _PRETRAINED


def bridge_job(run: BridgeRun) -> RowJob:
    """The job of a run; UserError where it makes none."""
    extras = _of_extras(run.extras)
    values = {
        **run.fields,
        **extras,
        "moe_shared_expert_overlap": _shares_overlapped(run.model, extras),
        "precision": run.precision,
        "framework": Framework.MEGATRON_BRIDGE,
        "framework_version": run.release,
        "pipeline_model_parallel_layout": _layers(run),
    }
    return resolved(run.model, run.gpus, values, _recipe(run))


def _shares_overlapped(model: str, extras: Values) -> bool:
    """Whether shared experts run next to the exchange: the providers' default (0.3.1 models), which
    the flex dispatcher and the overlap of microbatches switch off."""
    exchanged = extras["moe_token_dispatcher_type"] is TokenDispatcher.ALLTOALL
    has_any = load_model(model).moe_shared_expert_intermediate_size is not None
    return has_any and exchanged and not extras["overlap_moe_expert_parallel_comm"]


def _layers(run: BridgeRun) -> str:
    """How layers are split, where PP does not divide them."""
    if run.fields.get("pipeline_model_parallel_size", 1) == 1:
        return ""
    return str(run.extras.get("pp_layout") or _SPLITS.get(run.model, ""))


def _recipe(run: BridgeRun) -> Experiment:
    """The recipe of the performance suite for the model on this GPU in this precision, on the
    nearest number of GPUs; the BF16 one where there is none in that precision."""
    count, kind = parse_gpus(run.gpus)
    rows = [
        recipe
        for recipe in load_recipes(run.model)
        if recipe.framework == Framework.MEGATRON_BRIDGE
        and kind in recipe.gpu_types
        and recipe.task == run.task
        and "perf_recipes" in recipe.source
        and not recipe.name.endswith("_dev")
    ]

    def distance(recipe: Recipe) -> tuple[bool, bool, int]:
        other = recipe.precision != run.precision
        return other, recipe.precision != Precision.BF16, abs(recipe.num_gpus - count)

    return preset_of(min(rows, key=distance))


def _of_extras(extras: Values) -> dict[str, Any]:
    """A workload configuration in the names of Megatron's own options.

    Overlap of expert parallel communication brings the delayed weight gradients along, if nothing
    else is said (Bridge scripts/performance/utils/overrides.py, moe_a2a_overlap). Graphs of a whole
    iteration were a scope of ``local`` before they were an implementation, and nothing where that
    is ``none``.
    """
    scope = _names(extras.get("cuda_graph_scope", ""))
    graphs = CudaGraphImpl(extras.get("cuda_graph_impl", "none"))
    if extras.get("cuda_graphs") == "True":
        graphs = CudaGraphImpl.LOCAL
    if graphs is CudaGraphImpl.LOCAL and "full_iteration" in scope:
        graphs = CudaGraphImpl.FULL_ITERATION
    partial = graphs is CudaGraphImpl.TRANSFORMER_ENGINE
    backend = extras.get("moe_flex_dispatcher_backend", "")
    overlap = extras.get("moe_a2a_overlap") == "True"
    return {
        "cuda_graph_impl": graphs,
        "cuda_graph_modules": scope if partial else (),
        "moe_token_dispatcher_type": TokenDispatcher.FLEX if backend else TokenDispatcher.ALLTOALL,
        "moe_flex_dispatcher_backend": FlexBackend(backend or FlexBackend.DEEPEP),
        "overlap_moe_expert_parallel_comm": overlap,
        "delay_wgrad_compute": extras.get("delay_wgrad_compute", str(overlap)) == "True",
        **_SHARDED.get(extras.get("use_megatron_fsdp", ""), {}),
    }


def _names(text: str) -> tuple[str, ...]:
    """``mlp`` or ``['attn', 'moe_router']``."""
    return tuple(re.findall(r"\w+", text))
