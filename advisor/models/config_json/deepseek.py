"""DeepSeek's families and those of its router in a Hugging Face config.json: V2, V3, Kimi K2, GLM.

Source: transformers 4.57.1, models/deepseek_v2, deepseek_v3 and glm4_moe; 5.23.0, models/
glm4_moe_lite (GLM-4.7-Flash: latent attention under GLM's router), deepseek_v32 and glm_moe_dsa
(GLM-5: with an indexer); config.json of deepseek-ai/DeepSeek-V3 and moonshotai/Kimi-K2-Base. Shapes
are required: no value is assumed.
"""

from typing import Any

from advisor.models import options
from advisor.models.config_json.keys import SHAPE_KEYS, HuggingFaceConfig, keys
from advisor.models.config_json.mixtral import AS_BRIDGE_RUNS_EXPERTS, group_fields
from advisor.models.layer_pattern import LayerPattern
from advisor.models.options import Activation, LoadBalancing, RouterDType, ScoreFunction
from advisor.models.spec import ModelSpec

_READ = SHAPE_KEYS | keys(
    """
    hidden_act attention_bias num_nextn_predict_layers
    n_routed_experts num_experts_per_tok moe_intermediate_size n_shared_experts
    first_k_dense_replace moe_layer_freq n_group topk_group topk_method scoring_func norm_topk_prob
    routed_scaling_factor aux_loss_alpha seq_aux ep_size mlp_layer_types
    rope_parameters
    """
)
_LATENT = keys(
    """
    q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim qk_head_dim
    rope_interleave
    """
)
_INDEXER = keys(
    "index_n_heads index_head_dim index_topk index_topk_freq index_skip_topk_offset indexer_types"
    " indexer_rope_interleave layer_types mlp_bias"
)
_GLM = keys("partial_rotary_factor use_qk_norm")
# Checkpoints of these models come with their own code and in 8 bits; training is in 16 bits.
_AS_PUBLISHED = keys("auto_map quantization_config router_aux_loss_coef")

SPARSE_TYPES = ("deepseek_v32", "glm_moe_dsa")
LATENT_TYPES = ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", *SPARSE_TYPES)
DEEPSEEK_TYPES = (*LATENT_TYPES, "glm4_moe")


def read_deepseek(config: HuggingFaceConfig) -> ModelSpec:
    """The shape of one of DEEPSEEK_TYPES, with experts, and multi-token prediction where it has."""
    latent = config.values["model_type"] in LATENT_TYPES
    sparse = config.values["model_type"] in SPARSE_TYPES
    own = (_LATENT if latent else _GLM) | (_INDEXER if sparse else set())
    config.check_keys(_READ | own | _AS_PUBLISHED)
    bias = config.get("attention_bias", bool, False)
    if latent and bias:
        raise config.refuse("attention_bias", "latent attention has no biases in Megatron")
    config.check_activation("hidden_act", "silu", "is not a modelled activation")
    return ModelSpec(
        **config.shape(),
        num_layers=config.positive("num_hidden_layers"),
        activation=Activation.SWIGLU,
        mtp_num_layers=config.get("num_nextn_predict_layers", int, 0) or None,
        **(_latent_fields(config) if latent else _glm_fields(config, bias)),
        **_expert_fields(config),
        **(_indexer_fields(config) if sparse else {}),
    )


def _indexer_fields(config: HuggingFaceConfig) -> dict[str, Any]:
    """Every layer has an indexer of its own; Megatron's rotary kernel does not go with it."""
    config.check_fixed({"mlp_bias": False, "index_topk_freq": 1}, "no other is modelled")
    for key, kind in (("layer_types", "indexed_attention"), ("indexer_types", "full")):
        if set(config.get(key, tuple[str, ...], ())) - {kind}:
            raise config.refuse(key, f"must be {kind} in every layer: no other is modelled")
    return {
        "experimental_attention_variant": options.AttentionVariant.DSA,
        "apply_rope_fusion": False,
        "dsa_indexer_n_heads": config.positive("index_n_heads"),
        "dsa_indexer_head_dim": config.positive("index_head_dim"),
        "dsa_indexer_topk": config.positive("index_topk"),
    }


def _latent_fields(config: HuggingFaceConfig) -> dict[str, Any]:
    """Ranks and head dimensions; every query head has a key and a value of its own."""
    value = config.positive("v_head_dim")
    rank = config.get("q_lora_rank", int, None)
    return {
        "num_query_groups": config.positive("num_attention_heads"),
        "kv_channels": value,
        "multi_latent_attention": True,
        "qk_layernorm": True,
        "q_lora_rank": None if rank is None else config.positive("q_lora_rank"),
        "kv_lora_rank": config.positive("kv_lora_rank"),
        "qk_head_dim": config.positive("qk_nope_head_dim"),
        "qk_pos_emb_head_dim": config.positive("qk_rope_head_dim"),
        "v_head_dim": value,
    }


def _glm_fields(config: HuggingFaceConfig, bias: bool) -> dict[str, Any]:
    return {
        "num_query_groups": config.positive("num_key_value_heads"),
        "kv_channels": config.positive("head_dim"),
        "add_qkv_bias": bias,
        "qk_layernorm": config.get("use_qk_norm", bool, False),
        "rotary_percent": config.rotary_percent(0.5),
    }


def _expert_fields(config: HuggingFaceConfig) -> dict[str, Any]:
    """The router, and experts run as Megatron Bridge runs them.

    GLM, noaux_tc and models with an indexer have sigmoid scores and a bias of every expert; groups
    limit the choice where there are several.
    """
    width, shared = config.positive("moe_intermediate_size"), config.get("n_shared_experts", int, 0)
    method = config.get("topk_method", str, None)
    router = ("glm4_moe", "glm4_moe_lite", *SPARSE_TYPES)
    biased = config.values["model_type"] in router or method == "noaux_tc"
    scores = ScoreFunction.SIGMOID if biased else ScoreFunction.SOFTMAX
    sigmoid = config.get("scoring_func", str, str(scores)) == "sigmoid"
    by_sequence = config.get("seq_aux", bool, False)
    return {
        "num_moe_experts": config.positive("n_routed_experts"),
        "moe_layer_freq": _expert_layers(config),
        "moe_ffn_hidden_size": width,
        "moe_router_topk": config.positive("num_experts_per_tok"),
        "moe_shared_expert_intermediate_size": shared * width or None,
        **group_fields(config, 1 if method == "greedy" else config.get("n_group", int, 1)),
        "moe_router_score_function": ScoreFunction.SIGMOID if sigmoid else ScoreFunction.SOFTMAX,
        "moe_router_pre_softmax": not sigmoid,
        "moe_router_enable_expert_bias": biased,
        "moe_router_dtype": RouterDType.FP32 if biased else None,
        "moe_router_load_balancing_type": (
            LoadBalancing.SEQ_AUX_LOSS if by_sequence else LoadBalancing.AUX_LOSS
        ),
        "moe_aux_loss_coeff": config.get("aux_loss_alpha", float, 0.0),
        **AS_BRIDGE_RUNS_EXPERTS,
    }


def _expert_layers(config: HuggingFaceConfig) -> LayerPattern:
    """All layers but the first_k_dense_replace, or those that mlp_layer_types calls dense."""
    layers = config.positive("num_hidden_layers")
    kinds = config.get("mlp_layer_types", tuple[str, ...], ())
    dense = config.get("first_k_dense_replace", int, kinds.count("dense"))
    if kinds and kinds != ("dense",) * dense + ("sparse",) * (layers - dense):
        raise config.refuse(
            "mlp_layer_types", "must be dense in the first layers, and sparse in all others"
        )
    if config.get("moe_layer_freq", int, 1) != 1 or not 0 <= dense <= layers:
        raise config.refuse(
            "moe_layer_freq",
            "must be 1, with first_k_dense_replace between 0 and num_hidden_layers",
        )
    return LayerPattern(f"[0]*{dense}+[1]*{layers - dense}" if dense else "1")
