"""Models with linear attention in a Hugging Face config.json: Qwen3-Next, Qwen3.5, Nemotron-H.

Source: transformers 5.23.0, models/qwen3_next, qwen3_5, qwen3_5_moe and nemotron_h (configuration
and modeling), whose defaults stand for keys that are absent.
"""

from typing import Any

from msgspec.structs import replace

from advisor.models import options
from advisor.models.config_json import mixtral
from advisor.models.config_json.keys import SHAPE_KEYS, HuggingFaceConfig, keys
from advisor.models.layer_pattern import LayerPattern
from advisor.models.spec import ModelSpec

HYBRID_TYPES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "nemotron_h")

_SHAPE = SHAPE_KEYS | keys("num_experts_per_tok norm_topk_prob moe_intermediate_size")
_LINEAR = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
"""Keys that ModelSpec calls alike, and transformers' defaults."""
_QWEN3_NEXT_EXPERTS = mixtral.ExpertKeys(
    number="num_experts",
    default_number=512,
    topk=10,
    width="moe_intermediate_size",
    default_width=512,
    aux_loss=0.001,
    sparse_steps=True,
    normalized=True,
)
_QWEN3_NEXT = keys(
    """
    hidden_act shared_expert_intermediate_size layer_types full_attention_interval
    partial_rotary_factor rope_parameters
    """
).union(_SHAPE, _QWEN3_NEXT_EXPERTS.keys, _LINEAR)
_QWEN3_5_EXPERTS = replace(_QWEN3_NEXT_EXPERTS, default_number=256, topk=8, always_normalized=True)
# How states are kept, and how much is predicted; the class has no such layers.
_QWEN3_5 = keys(
    "attn_output_gate mtp_num_hidden_layers mtp_use_dedicated_embeddings mamba_ssm_dtype"
)
_NEMOTRON_H = _SHAPE | keys(
    """
    hidden_dropout mlp_hidden_act hybrid_override_pattern layers_block_type ssm_state_size
    mamba_num_heads mamba_head_dim n_groups n_routed_experts moe_shared_expert_intermediate_size
    n_shared_experts n_group topk_group routed_scaling_factor moe_latent_size
    """
)
# how the reference code runs, or how weights are initialized; multi-token prediction, which the
# checkpoint has and the class has not
_NEMOTRON_H_RUNS = keys(
    """
    auto_map use_mamba_kernels mamba_ssm_cache_dtype num_logits_to_keep expand time_step_min
    time_step_max time_step_limit time_step_floor rescale_prenorm_residual
    moe_shared_expert_overlap mtp_layers_block_type mtp_hybrid_override_pattern
    num_nextn_predict_layers mtp_use_repeated_layer keep_mtp_spec_in_bf16 mtp_loss_scaling_factor
    """
)
_FIXED_IN_MEGATRON = {
    "conv_kernel": 4,
    "chunk_size": 128,
    "use_conv_bias": True,
    "use_bias": False,
    "mamba_proj_bias": False,
    "mamba_hidden_act": "silu",
    "residual_in_fp32": False,
}
"""What Megatron's Mamba stack, or our model of it, has no other value of."""

_LETTERS = {
    **dict.fromkeys(("linear_attention", "mamba"), "M"),
    **dict.fromkeys(("full_attention", "attention"), "*"),
    **{"mlp": "-", "moe": "E"},
}


def read_hybrid(config: HuggingFaceConfig) -> ModelSpec:
    """The shape of one of HYBRID_TYPES."""
    if config.values["model_type"] == "nemotron_h":
        return _read_nemotron_h(config)
    return _read_qwen(config)


def _read_qwen(config: HuggingFaceConfig) -> ModelSpec:
    """Qwen3-Next has experts, Qwen3.5 has them or not. Qwen3-Next's multi-token prediction is in
    the checkpoint and neither in its config nor in the class."""
    of_next, dense = (config.values["model_type"] == f"qwen3_{x}" for x in ("next", "5_text"))
    config.check_keys(_QWEN3_NEXT if of_next else _QWEN3_NEXT | _QWEN3_5)
    config.check_fixed(
        {"attn_output_gate": True, "mtp_use_dedicated_embeddings": False},
        "other values are not modelled",
    )
    config.check_activation("hidden_act", "silu", "is not a modelled activation")
    linear: dict[str, Any] = {name: config.positive(name, at) for name, at in _LINEAR.items()}
    return ModelSpec(
        **config.shape(num_attention_heads=16, intermediate_size=None if dense else 5632),
        num_query_groups=config.positive("num_key_value_heads", 4 if dense else 2),
        kv_channels=config.positive("head_dim", 256),
        num_layers=config.positive("num_hidden_layers"),
        activation=options.Activation.SWIGLU,
        qk_layernorm=True,
        rotary_percent=config.rotary_percent(0.25),
        attention_output_gate=True,
        experimental_attention_variant=options.AttentionVariant.GATED_DELTA_NET,
        linear_attention_freq=_linear_layers(config),
        mtp_num_layers=config.get("mtp_num_hidden_layers", int, 0) or None,
        **linear,
        **({} if dense else _qwen_experts(config, of_next=of_next)),
    )


def _qwen_experts(config: HuggingFaceConfig, *, of_next: bool) -> dict[str, Any]:
    names = _QWEN3_NEXT_EXPERTS if of_next else _QWEN3_5_EXPERTS
    return {
        "moe_shared_expert_intermediate_size": config.get(
            "shared_expert_intermediate_size", int, 512
        ),
        "moe_shared_expert_gate": True,
        **mixtral.expert_fields(config, names),
    }


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
        raise config.refuse("layer_types", "may hold only full_attention and linear_attention")
    return LayerPattern.read([int(kind == "linear_attention") for kind in kinds], "layer_types")


def _read_nemotron_h(config: HuggingFaceConfig) -> ModelSpec:
    """Nemotron-H and Nemotron 3: one letter, or one name, a layer."""
    config.check_keys(_NEMOTRON_H | _NEMOTRON_H_RUNS | set(_FIXED_IN_MEGATRON))
    config.check_fixed(
        _FIXED_IN_MEGATRON, "other values do not exist in Megatron or are not modelled"
    )
    config.check_activation("mlp_hidden_act", "relu2", "is not a modelled activation")
    pattern = _pattern(config)
    return ModelSpec(
        **config.shape(num_attention_heads=32, intermediate_size=21504),
        num_query_groups=config.positive("num_key_value_heads", 8),
        kv_channels=config.positive("head_dim", 128),
        num_layers=len(pattern),
        activation=options.Activation.SQUARED_RELU,
        position_embedding_type=options.PositionEmbedding.NONE,
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
            "use linear_attention, full_attention, mlp or moe",
        )
    default = "".join(_LETTERS[name] for name in names) or None
    pattern: str | None = config.get("hybrid_override_pattern", str, default)
    if not pattern:
        raise config.refuse("hybrid_override_pattern", "is missing")
    return pattern


def _nemotron_experts(config: HuggingFaceConfig) -> dict[str, Any]:
    """A sigmoid router with a bias of every expert; run as Megatron Bridge runs it."""
    latent = config.get("moe_latent_size", int, None)
    return {
        "moe_latent_size": latent if latent is None else config.positive("moe_latent_size"),
        "num_moe_experts": config.positive("n_routed_experts", 8),
        "moe_ffn_hidden_size": config.positive("moe_intermediate_size", 7688),
        "moe_router_topk": config.positive("num_experts_per_tok", 2),
        "moe_shared_expert_intermediate_size": config.positive(
            "moe_shared_expert_intermediate_size", 7688
        ),
        **mixtral.group_fields(config, config.get("n_group", int, 1), 1),
        "moe_router_score_function": options.ScoreFunction.SIGMOID,
        "moe_router_enable_expert_bias": True,
        "moe_router_dtype": options.RouterDType.FP32,
        **mixtral.AS_BRIDGE_RUNS_EXPERTS,
        "use_fused_weighted_squared_relu": True,
    }
