"""Models with linear attention in a Hugging Face config.json: Qwen3-Next and Nemotron-H.

Source: transformers 5.23.0, models/qwen3_next and models/nemotron_h (configuration and modeling),
whose defaults stand for keys that are absent.
"""

from typing import Any

from advisor.models.expert_options import RouterDType, ScoreFunction, TokenDispatcher
from advisor.models.huggingface.keys import HuggingFaceConfig
from advisor.models.huggingface.mixtral import ExpertKeys, expert_fields
from advisor.models.layer_pattern import LayerPattern
from advisor.models.mixers import AttentionVariant
from advisor.models.spec import Activation, ModelSpec, PositionEmbedding

HYBRID_TYPES = ("qwen3_next", "nemotron_h")

_SHAPE = frozenset(
    {
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
        "tie_word_embeddings",
        "attention_dropout",
        "num_experts_per_tok",
        "norm_topk_prob",
        "moe_intermediate_size",
    }
)
_LINEAR = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_QWEN3_NEXT_EXPERTS = ExpertKeys(
    number="num_experts",
    default_number=512,
    topk=10,
    width="moe_intermediate_size",
    default_width=512,
    aux_loss=0.001,
    sparse_steps=True,
    normalized=True,
)
_QWEN3_NEXT = (
    _SHAPE
    | _QWEN3_NEXT_EXPERTS.keys
    | set(_LINEAR)
    | {
        "hidden_act",
        "shared_expert_intermediate_size",
        "layer_types",
        "full_attention_interval",
        "partial_rotary_factor",
        "rope_parameters",
    }
)
_NEMOTRON_H = _SHAPE | {
    "hidden_dropout",
    "mlp_hidden_act",
    "hybrid_override_pattern",
    "layers_block_type",
    "ssm_state_size",
    "mamba_num_heads",
    "mamba_head_dim",
    "n_groups",
    "n_routed_experts",
    "moe_shared_expert_intermediate_size",
    "n_shared_experts",
    "n_group",
    "topk_group",
    "routed_scaling_factor",
    # how the reference code runs, or how weights are initialized
    "auto_map",
    "use_mamba_kernels",
    "mamba_ssm_cache_dtype",
    "num_logits_to_keep",
    "expand",
    "time_step_min",
    "time_step_max",
    "time_step_limit",
    "time_step_floor",
    "rescale_prenorm_residual",
    "moe_shared_expert_overlap",
    "mtp_layers_block_type",
    "mtp_hybrid_override_pattern",
}
_FIXED_IN_MEGATRON = {
    "conv_kernel": 4,
    "chunk_size": 128,
    "use_conv_bias": True,
    "use_bias": False,
    "mamba_proj_bias": False,
    "mamba_hidden_act": "silu",
    "residual_in_fp32": False,
    "moe_latent_size": None,
    "num_nextn_predict_layers": 0,
}
"""What Megatron's Mamba stack, or our model of it, has no other value of."""

_LETTERS = {
    "linear_attention": "M",
    "mamba": "M",
    "full_attention": "*",
    "attention": "*",
    "mlp": "-",
    "moe": "E",
}


def read_hybrid(config: HuggingFaceConfig) -> ModelSpec:
    """The shape of one of HYBRID_TYPES."""
    qwen = config.values["model_type"] == "qwen3_next"
    return _read_qwen3_next(config) if qwen else _read_nemotron_h(config)


def _read_qwen3_next(config: HuggingFaceConfig) -> ModelSpec:
    """Multi-token prediction is in the checkpoint and neither in its config nor in the class."""
    config.check_keys(_QWEN3_NEXT)
    if config.get("hidden_act", str, "silu") != "silu":
        raise config.refuse("hidden_act", "is not an activation that is modelled here", "silu")
    heads = config.positive("num_attention_heads", 16)
    shared = config.get("shared_expert_intermediate_size", int, 512)
    linear: dict[str, Any] = {
        name: config.positive(name, default) for name, default in _LINEAR.items()
    }
    return ModelSpec(
        **_common(config, heads, num_key_value_heads=2, head_dim=256),
        ffn_hidden_size=config.positive("intermediate_size", 5632),
        num_layers=config.positive("num_hidden_layers"),
        activation=Activation.SWIGLU,
        qk_layernorm=True,
        rotary_percent=_rotary_percent(config),
        attention_output_gate=True,
        experimental_attention_variant=AttentionVariant.GATED_DELTA_NET,
        linear_attention_freq=_linear_layers(config),
        moe_shared_expert_intermediate_size=shared,
        moe_shared_expert_gate=True,
        **linear,
        **expert_fields(config, _QWEN3_NEXT_EXPERTS),
    )


def _common(
    config: HuggingFaceConfig, heads: int, num_key_value_heads: int, head_dim: int
) -> dict[str, Any]:
    return {
        "name": config.model_name,
        "hidden_size": config.positive("hidden_size"),
        "num_attention_heads": heads,
        "num_query_groups": config.positive("num_key_value_heads", num_key_value_heads),
        "kv_channels": config.positive("head_dim", head_dim),
        "vocab_size": config.positive("vocab_size"),
        "max_position_embeddings": config.positive("max_position_embeddings"),
        "share_embeddings_and_output_weights": config.get("tie_word_embeddings", bool, False),
        "attention_dropout": config.get("attention_dropout", float, 0.0),
    }


def _rotary_percent(config: HuggingFaceConfig) -> float:
    nested = config.values.get("rope_parameters")
    inside = nested.get("partial_rotary_factor") if isinstance(nested, dict) else None
    default = float(inside) if isinstance(inside, int | float) else 0.25
    return float(config.get("partial_rotary_factor", float, default))


def _linear_layers(config: HuggingFaceConfig) -> LayerPattern:
    """Ones where layer_types says linear_attention; of an interval N, all but every Nth layer."""
    kinds = config.get("layer_types", tuple[str, ...], None)
    interval = config.positive("full_attention_interval", 4)
    layers = range(1, config.positive("num_hidden_layers") + 1)
    if kinds is None or kinds == tuple(
        "full_attention" if layer % interval == 0 else "linear_attention" for layer in layers
    ):
        return LayerPattern(str(interval))
    if not set(kinds) <= {"full_attention", "linear_attention"}:
        raise config.refuse("layer_types", "may hold full_attention and linear_attention alone")
    return LayerPattern.read([int(kind == "linear_attention") for kind in kinds], "layer_types")


def _read_nemotron_h(config: HuggingFaceConfig) -> ModelSpec:
    """Nemotron-H and Nemotron 3: one letter, or one name, a layer."""
    config.check_keys(_NEMOTRON_H | set(_FIXED_IN_MEGATRON))
    for key, value in _FIXED_IN_MEGATRON.items():
        if config.values.get(key, value) != value:
            legal = "null" if value is None else str(value).lower()
            raise config.refuse(key, "has no other value in Megatron, or is not modelled", legal)
    if config.get("mlp_hidden_act", str, "relu2") != "relu2":
        raise config.refuse("mlp_hidden_act", "is not an activation that is modelled", "relu2")
    heads = config.positive("num_attention_heads", 32)
    pattern = _pattern(config)
    return ModelSpec(
        **_common(config, heads, num_key_value_heads=8, head_dim=128),
        ffn_hidden_size=config.positive("intermediate_size", 21504),
        num_layers=len(pattern),
        activation=Activation.SQUARED_RELU,
        position_embedding_type=PositionEmbedding.NONE,
        hidden_dropout=config.get("hidden_dropout", float, 0.0),
        hybrid_layer_pattern=pattern,
        mamba_state_dim=config.positive("ssm_state_size", 128),
        mamba_head_dim=config.positive("mamba_head_dim", 64),
        mamba_num_groups=config.positive("n_groups", 8),
        mamba_num_heads=config.positive("mamba_num_heads", 128),
        **(_nemotron_experts(config) if "E" in pattern else {}),
    )


def _pattern(config: HuggingFaceConfig) -> str:
    names = config.get("layers_block_type", tuple[str, ...], ())
    unknown = sorted(set(names) - set(_LETTERS))
    if unknown:
        raise config.refuse(
            "layers_block_type",
            f"has {unknown[0]}, which is not modelled",
            "linear_attention, full_attention, mlp or moe",
        )
    default = "".join(_LETTERS[name] for name in names) or None
    pattern: str | None = config.get("hybrid_override_pattern", str, default)
    if not pattern:
        raise config.refuse("hybrid_override_pattern", "is missing")
    return pattern


def _nemotron_experts(config: HuggingFaceConfig) -> dict[str, Any]:
    """A sigmoid router with a bias of every expert; run as Megatron Bridge runs it."""
    groups = config.get("n_group", int, 1)
    return {
        "num_moe_experts": config.positive("n_routed_experts", 8),
        "moe_ffn_hidden_size": config.positive("moe_intermediate_size", 7688),
        "moe_router_topk": config.positive("num_experts_per_tok", 2),
        "moe_shared_expert_intermediate_size": config.positive(
            "moe_shared_expert_intermediate_size", 7688
        ),
        "moe_router_num_groups": groups if groups > 1 else None,
        "moe_router_group_topk": config.positive("topk_group", 1) if groups > 1 else None,
        "moe_router_score_function": ScoreFunction.SIGMOID,
        "moe_router_enable_expert_bias": True,
        "moe_router_dtype": RouterDType.FP32,
        "moe_token_dispatcher_type": TokenDispatcher.ALLTOALL,
        "moe_grouped_gemm": True,
        "moe_permute_fusion": True,
    }
