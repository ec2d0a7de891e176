"""Layers with experts of MiniMax-M2, ERNIE 4.5 and gpt-oss in a Hugging Face config.json.

Source: transformers 5.23.0, models/minimax_m2, ernie4_5_moe and gpt_oss (configuration and
modeling); keys that only the published files have. What is not in the file is as Megatron Bridge
0.6.2 runs it (the bridges of these names; ERNIE's router, whose scores are a softmax's in
transformers, has a sigmoid there).
"""

from typing import Any

from advisor.models import options
from advisor.models.config_json.gemma import Variant
from advisor.models.config_json.keys import HuggingFaceConfig, keys
from advisor.models.config_json.mixtral import AS_BRIDGE_RUNS_EXPERTS, ExpertKeys
from advisor.models.layer_pattern import EVERY_LAYER, LayerPattern

MINIMAX_EXPERTS = ExpertKeys(
    number="num_local_experts", default_number=256, topk=8, aux_loss=0.001, always_normalized=True
)
GPT_OSS_EXPERTS = ExpertKeys(
    number="num_local_experts", default_number=128, topk=4, aux_loss=0.0, always_normalized=True
)
_BIASED_SIGMOID = {
    "moe_router_score_function": options.ScoreFunction.SIGMOID,
    "moe_router_enable_expert_bias": True,
}
_ONE_KIND = "other values are not modelled"


def _minimax(config: HuggingFaceConfig) -> dict[str, Any]:
    """One norm over all heads of q and of k. Multi-token prediction is in the checkpoint and not in
    the class."""
    layers = config.positive("num_hidden_layers")
    config.check_fixed(_MINIMAX_FIXED | {"attn_type_list": [1] * layers}, _ONE_KIND)
    head, rotary = config.positive("head_dim", 128), config.get("rotary_dim", int, None)
    return {
        **({} if rotary is None else {"rotary_percent": rotary / head}),
        **_BIASED_SIGMOID,
        "qk_layernorm_across_heads": True,
        "transformer_impl": options.TransformerImpl.TRANSFORMERS,
    }


def _ernie(config: HuggingFaceConfig) -> dict[str, Any]:
    """Experts next to shared ones, from one layer to another, in each Nth layer."""
    config.check_fixed({"use_bias": False}, _ONE_KIND)
    width = config.positive("moe_intermediate_size", 1536)
    return {
        "num_moe_experts": config.positive("moe_num_experts", 64),
        "moe_layer_freq": _ernie_layers(config),
        "moe_ffn_hidden_size": width,
        "moe_router_topk": config.positive("moe_k", 6),
        "moe_shared_expert_intermediate_size": (
            width * config.get("moe_num_shared_experts", int, 2) or None
        ),
        "moe_router_dtype": options.RouterDType.FP32,
        "rotary_interleaved": True,
        "moe_aux_loss_coeff": config.get("router_aux_loss_coef", float, 0.001),
        **_BIASED_SIGMOID,
        **AS_BRIDGE_RUNS_EXPERTS,
    }


def _ernie_layers(config: HuggingFaceConfig) -> LayerPattern:
    layers = config.positive("num_hidden_layers")
    first = config.get("moe_layer_start_index", int, 1)
    last = config.get("moe_layer_end_index", int, -1)
    last = layers - 1 if last == -1 else last
    every = config.positive("moe_layer_interval", 1)
    experts = [first <= i <= last and (i + 1) % every == 0 for i in range(layers)]
    if all(experts):
        return EVERY_LAYER
    return LayerPattern.read([int(has) for has in experts], "moe_layer_freq")


def _gpt_oss(config: HuggingFaceConfig) -> dict[str, Any]:
    """Biases everywhere, a learnt sink of every head, and a gate of its own; no loss balances the
    experts."""
    config.check_fixed({"attention_bias": True}, _ONE_KIND)
    return {
        "activation": options.Activation.QUICK_GEGLU,
        "add_bias_linear": True,
        "add_qkv_bias": True,
        "softmax_type": options.SoftmaxType.LEARNABLE,
        "moe_aux_loss_coeff": 0.0,
    }


_MINIMAX_FIXED: dict[str, object] = {
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
    "shared_intermediate_size": 0,
}
# Checkpoints come with code of their own and in few bits; training is in 16 bits.
_AS_PUBLISHED = keys("auto_map quantization_config")
_MINIMAX_KEYS = keys(
    "attn_type_list rotary_dim use_mtp num_mtp_modules mtp_transformer_layers"
).union(_MINIMAX_FIXED, _AS_PUBLISHED)
_ERNIE_KEYS = _AS_PUBLISHED | keys(
    """
    use_bias moe_k moe_num_experts moe_intermediate_size moe_num_shared_experts moe_norm_min
    moe_layer_start_index moe_layer_end_index moe_layer_interval router_aux_loss_coef
    moe_capacity moe_gate moe_use_aux_free num_nextn_predict_layers
    """
)
_GPT_OSS_KEYS = _AS_PUBLISHED | keys(
    "attention_bias swiglu_alpha swiglu_limit experts_per_token initial_context_length"
)
MINIMAX = Variant(_MINIMAX_KEYS, _minimax)
ERNIE = Variant(_ERNIE_KEYS, _ernie)
GPT_OSS = Variant(_GPT_OSS_KEYS, _gpt_oss)
