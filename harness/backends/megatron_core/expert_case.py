"""Mixture-of-experts options of one training configuration, under Megatron's own names."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Fields of TransformerConfig under their own names; their defaults are those of 0.16.1."""

    num_moe_experts: int
    moe_ffn_hidden_size: int
    moe_router_topk: int = 2
    moe_layer_freq: int | Sequence[int] = 1
    moe_router_num_groups: int | None = None
    moe_router_group_topk: int | None = None
    moe_router_score_function: str = "softmax"
    moe_router_pre_softmax: bool = False
    moe_router_dtype: str | None = None
    moe_router_enable_expert_bias: bool = False
    moe_router_load_balancing_type: str = "aux_loss"
    moe_aux_loss_coeff: float = 0.0
    moe_z_loss_coeff: float | None = None
    moe_token_dispatcher_type: str = "allgather"
    moe_expert_capacity_factor: float | None = None
    moe_pad_expert_input_to_capacity: bool = False
    moe_token_drop_policy: str = "probs"
    moe_apply_probs_on_input: bool = False
    moe_grouped_gemm: bool = False
    moe_use_legacy_grouped_gemm: bool = False
    moe_permute_fusion: bool = False
    moe_router_fusion: bool = False
    moe_shared_expert_intermediate_size: int | None = None
    moe_shared_expert_gate: bool = False
    moe_shared_expert_overlap: bool = False
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int = 1

    def arguments(self) -> dict[str, Any]:
        """All of it as keyword arguments of TransformerConfig."""
        freq = self.moe_layer_freq
        return asdict(self) | {"moe_layer_freq": freq if isinstance(freq, int) else list(freq)}

    @property
    def ranks(self) -> int:
        """Ranks over which experts are spread."""
        return self.expert_model_parallel_size * self.expert_tensor_parallel_size
