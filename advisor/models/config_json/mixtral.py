"""Mixture of experts in a Hugging Face config.json: Mixtral's and Qwen3's keys.

Source: transformers 4.57.1, models/mixtral and models/qwen3_moe (configuration and modeling).
"""

from typing import Any

from msgspec import Struct

from advisor.models.config_json.keys import HuggingFaceConfig
from advisor.models.layer_pattern import EVERY_LAYER, LayerPattern
from advisor.models.options import TokenDispatcher


class ExpertKeys(Struct, frozen=True, kw_only=True):
    """Names of one family's keys, and its classes' values where they are absent.

    width: the key of an expert's width; None where experts are as wide as intermediate_size.
    sparse_steps: decoder_sparse_step and mlp_only_layers say which layers have experts.
    normalized: what an absent norm_topk_prob means.
    always_normalized: the chosen probabilities sum to one whatever norm_topk_prob says.
    """

    number: str
    default_number: int
    topk: int
    width: str | None = None
    default_width: int = 0
    aux_loss: float
    sparse_steps: bool = False
    normalized: bool = False
    always_normalized: bool = False

    @property
    def keys(self) -> frozenset[str]:
        """Every key that is read."""
        named = {self.number, "num_experts_per_tok", "router_aux_loss_coef"}
        named |= {self.width} if self.width else set()
        named |= {"decoder_sparse_step", "mlp_only_layers"} if self.sparse_steps else set()
        return frozenset(named if self.always_normalized else named | {"norm_topk_prob"})


EXPERT_KEYS = {
    "mixtral": ExpertKeys(
        number="num_local_experts", default_number=8, topk=2, aux_loss=0.001, always_normalized=True
    ),
    "qwen3_moe": ExpertKeys(
        number="num_experts",
        default_number=128,
        topk=8,
        width="moe_intermediate_size",
        default_width=768,
        aux_loss=0.001,
        sparse_steps=True,
    ),
}


AS_BRIDGE_RUNS_EXPERTS: dict[str, Any] = {
    "moe_token_dispatcher_type": TokenDispatcher.ALLTOALL,
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
}
"""What is not in the file: how Megatron Bridge runs the experts of its models."""


def expert_fields(config: HuggingFaceConfig, names: ExpertKeys) -> dict[str, Any]:
    """Fields of ModelSpec about experts."""
    width = "intermediate_size" if names.width is None else names.width
    normalized = names.always_normalized or config.get("norm_topk_prob", bool, names.normalized)
    return {
        "num_moe_experts": config.positive(names.number, names.default_number),
        "moe_router_topk": config.positive("num_experts_per_tok", names.topk),
        "moe_ffn_hidden_size": config.positive(width, names.default_width or None),
        "moe_layer_freq": _layer_pattern(config) if names.sparse_steps else EVERY_LAYER,
        "moe_router_pre_softmax": not normalized,
        "moe_aux_loss_coeff": config.get("router_aux_loss_coef", float, names.aux_loss),
        **AS_BRIDGE_RUNS_EXPERTS,
    }


def group_fields(
    config: HuggingFaceConfig, groups: int, default_topk: int | None = None
) -> dict[str, Any]:
    """Groups of experts limit the choice where there are several."""
    if groups <= 1:
        return {}
    return {
        "moe_router_num_groups": groups,
        "moe_router_group_topk": config.positive("topk_group", default_topk),
    }


def _layer_pattern(config: HuggingFaceConfig) -> LayerPattern:
    """Layer i has experts where (i + 1) is a multiple of the step, and i is no dense layer."""
    step = config.positive("decoder_sparse_step", 1)
    dense = config.get("mlp_only_layers", tuple[int, ...], ())
    if step == 1 and not dense:
        return EVERY_LAYER
    layers = range(config.positive("num_hidden_layers"))
    return LayerPattern.read(
        [int((i + 1) % step == 0 and i not in dense) for i in layers], "moe_layer_freq"
    )
