"""What Megatron-FSDP cannot be combined with."""

from functools import partial
from typing import Final

from advisor.frameworks.megatron.rules.stated import Authority, Rule, arguments, clash, noted

_refused = partial(clash, "use_megatron_fsdp", authority=Authority.LAUNCHER)

_overlapped = partial(
    clash,
    "overlap_moe_expert_parallel_comm",
    given=lambda raw, revision: raw.use_megatron_fsdp and revision.at_least(0, 18),
    source="megatron-core 0.19.2 distributed/fsdp/mcore_fsdp_adapter.py:168",
    authority=Authority.LAUNCHER,
)
_BOTH: Final = "use_megatron_fsdp=true overlap_moe_expert_parallel_comm=true"

RULES: Final[dict[str, Rule]] = {
    "fsdp_checkpoint": _refused(
        "ckpt_format!=fsdp_dtensor", "[ckpt_format=fsdp_dtensor]", source=arguments(971, 1142, 1146)
    ),
    "fsdp_optimizer": _refused(
        "optimizer=muon|dist_muon|lion|soap|adaptive_muon",
        "[optimizer=adam], or [use_megatron_fsdp]",
        source=arguments(1492, 1123, 1120),
    ),
    "fsdp_overlap_graphs": _overlapped(
        "cuda_graph_impl!=none|full_iteration",
        "[cuda_graph_impl], [overlap_moe_expert_parallel_comm] or [use_megatron_fsdp]",
        example=f"{_BOTH} cuda_graph_impl=local",
    ),
    "fsdp_overlap_double_buffer": _overlapped(
        "fsdp_double_buffer",
        "[fsdp_double_buffer], or [overlap_moe_expert_parallel_comm]",
        example=f"{_BOTH} fsdp_double_buffer=true",
    ),
    "fsdp_host_optimizer": noted(
        when=lambda raw, _: raw.use_megatron_fsdp and raw.optimizer_cpu_offload,
        reason="optimizer_cpu_offload is predicted without effect on memory with use_megatron_fsdp",
        fix="nothing to change",
        source="advisor",
        example="use_megatron_fsdp=true use_precision_aware_optimizer=true "
        "optimizer_cpu_offload=true",
    ),
}
