"""What the native backend does not run, said before anything is built."""

from typing import Any, Final

from advisor.base.errors import nearest_divisors
from advisor.base.rule import refuse
from advisor.base.units import counted
from advisor.job.layout import check_model_fits_layout
from advisor.job.pipeline_split import pipeline_stages
from advisor.models.options import Activation, PositionEmbedding
from harness.backends.native.setting import parse_native_setting
from harness.backends.workload_rule import Conditions, backend_rules
from harness.trial.trial import Device, Workload


def check(workload: Workload) -> None:
    """Raise UserError for a workload that this backend does not run."""
    parse_native_setting(workload.recompute)
    check_model_fits_layout(workload.model, workload.layout)
    refuse(_RULES["layout"], workload)
    piped = workload.layout.pipeline_model_parallel_size > 1
    if workload.num_microbatches and piped:  # itself a UserError on a batch that does not divide
        refuse(_RULES["pipeline"], workload)
    if is_fully_sharded(workload):
        refuse(_RULES["shards"], workload)
    refuse(_RULES["model"], workload)
    if workload.model.multi_latent_attention:
        refuse(_RULES["latent_attention"], workload)
    if workload.model.num_moe_experts is not None:
        refuse(_RULES["experts"], workload)


def is_fully_sharded(workload: Workload) -> bool:
    """Whether FSDP2 shards parameters, gradients and optimizer over the data-parallel ranks."""
    layout = workload.layout
    return layout.use_distributed_optimizer and layout.data_parallel_size > 1


def _policy(w: Workload) -> Any:
    return parse_native_setting(w.recompute).policy


def _gathers_twice(w: Workload) -> bool:
    setting = parse_native_setting(w.recompute).megatron
    return setting.method == "uniform" and (setting.num_layers or 1) > 1


def _uneven_groups(w: Workload) -> object:
    groups, degree = w.model.num_query_groups, w.layout.tensor_model_parallel_size
    return groups % degree and nearest_divisors(groups, degree)


def _few_microbatches(w: Workload) -> object:
    few = w.num_microbatches < w.layout.pipeline_model_parallel_size
    return few and counted(w.num_microbatches, "microbatch")


def _beyond_positions(w: Workload) -> bool:
    learned = w.model.position_embedding_type is PositionEmbedding.LEARNED
    return learned and w.seq_length > w.model.max_position_embeddings


def _unlike_stages(w: Workload) -> bool:
    return len({c.layers for stage in pipeline_stages(w.model, w.layout) for c in stage}) > 1


_CONDITIONS: Final[Conditions] = {
    "cut": lambda w: w.layout.tensor_model_parallel_size > 1,
    "sequence_parallel": lambda w: w.layout.sequence_parallel,
    "uneven_sequence": lambda w: w.seq_length % w.layout.tensor_model_parallel_size,
    "uneven_groups": _uneven_groups,
    "fully_sharded": is_fully_sharded,
    "few_microbatches": _few_microbatches,
    "policy": _policy,
    "policy_or_offload": lambda w: (
        _policy(w) or parse_native_setting(w.recompute).megatron.offload_modules
    ),
    "gathers_twice": _gathers_twice,
    # A replay that keeps attention does not run its kernel, which on a GPU is what moves the random
    # state on: every later dropout of the replay would draw another mask.
    "keeps_attention": lambda w: _policy(w) and _policy(w).keeps_attention,
    "dropout_on_gpu": lambda w: w.model.attention_dropout > 0 and w.device is Device.CUDA,
    "beyond_positions": _beyond_positions,
    "quick_geglu": lambda w: w.model.activation is Activation.QUICK_GEGLU,
    "no_expert_bias": lambda w: not w.model.moe_router_enable_expert_bias,
    "unlike_stages": _unlike_stages,
}
_TABLES: Final = ("layout", "pipeline", "shards", "model", "latent_attention", "experts")
_RULES: Final = {name: backend_rules(name, _CONDITIONS) for name in _TABLES}
