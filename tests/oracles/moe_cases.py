"""Models with experts that the oracles' tests share."""

from typing import Any

from harness.backends.megatron_core.case import MegatronCase as OracleCase

from .prediction import shaped, tensor_parallel

MIXTRAL = shaped(
    "mixtral_8x7b",
    vocab_size=32000,
    num_moe_experts=8,
    moe_ffn_hidden_size=14336,
    moe_token_dispatcher_type="alltoall",
)
QWEN3_MOE = shaped(
    "qwen3_30b_a3b",
    qk_layernorm=True,
    vocab_size=151936,
    num_moe_experts=128,
    moe_ffn_hidden_size=768,
    moe_router_topk=8,
    moe_aux_loss_coeff=0.001,
    moe_token_dispatcher_type="alltoall",
    expert_model_parallel_size=16,
)
TP = tensor_parallel(2, True)
SHARED: dict[str, Any] = {
    "moe_shared_expert_intermediate_size": 4096,
    "moe_shared_expert_gate": True,
}
OVERLAP: dict[str, Any] = SHARED | {
    "moe_shared_expert_overlap": True,
    "expert_model_parallel_size": 4,
}


def with_experts(case: OracleCase, **changes: Any) -> OracleCase:
    """`case`, which has experts, with other options of theirs."""
    assert case.has_experts
    return case.changed(**changes)
