"""Model shapes from a Hugging Face config.json, read strictly.

Source of names, and of values where a key is absent: transformers 4.57.1,
models/<type>/configuration_<type>.py and modeling_<type>.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.units import nearest_divisors, nearest_names
from advisor.models.config_json.deepseek import DEEPSEEK_TYPES, read_deepseek
from advisor.models.config_json.gemma import GEMMA2, GEMMA3, LLAMA4, OLMO2, SEED_OSS, Variant
from advisor.models.config_json.gemma4 import GEMMA4
from advisor.models.config_json.keys import SHAPE_KEYS, HuggingFaceConfig, keys, read_config
from advisor.models.config_json.linear_attention import HYBRID_TYPES, read_hybrid
from advisor.models.config_json.minimax import (
    ERNIE,
    GPT_OSS,
    GPT_OSS_EXPERTS,
    MINIMAX,
    MINIMAX_EXPERTS,
)
from advisor.models.config_json.mixtral import EXPERT_KEYS, ExpertKeys, expert_fields
from advisor.models.config_json.qwen_vl import TEXT_TYPES, text_of, tower_of
from advisor.models.config_json.windows import Windows, window_fields
from advisor.models.options import Activation, Normalization, PositionEmbedding
from advisor.models.spec import ModelSpec

_GELUS = ("gelu", "gelu_new", "gelu_pytorch_tanh")
_GATED = {
    **dict.fromkeys(("silu", "swish"), Activation.SWIGLU),
    **dict.fromkeys(_GELUS, Activation.GEGLU),
}
_PLAIN = {
    "relu2": Activation.SQUARED_RELU,
    **dict.fromkeys((*_GELUS, "gelu_fast"), Activation.GELU),
}


class _Decoder(Struct, frozen=True, kw_only=True):
    """What transformers' classes of one model_type fix, or assume where a key is absent.

    num_key_value_heads and head_dim None: as many as query heads, and hidden_size / heads.
    vocab_size, max_position_embeddings None: the keys are required.
    windows: of its layers, None where it has none. variant: what else its layers have.
    bias_keys: attention_bias and mlp_bias are read, as far as the class has them.
    """

    num_key_value_heads: int | None = None
    head_dim: int | None = None
    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    windows: Windows | None = None
    bias_keys: tuple[str, ...] = ()
    qkv_bias: bool = False
    qk_norm: bool = False
    normalization: Normalization = Normalization.RMS_NORM
    gated: bool = True
    tied: bool = False
    activation_key: str = "hidden_act"
    hidden_act: str = "silu"
    rotary_percent: float = 1.0
    experts: ExpertKeys | None = None
    variant: Variant | None = None


_QWEN_WINDOWS = Windows(default=4096, by_flag=True)
_GEMMA = _Decoder(
    num_key_value_heads=4,
    head_dim=256,
    tied=True,
    activation_key="hidden_activation",
    hidden_act="gelu_pytorch_tanh",
)
_DECODERS = {
    "llama": _Decoder(bias_keys=("attention_bias", "mlp_bias")),
    "mistral": _Decoder(num_key_value_heads=8, windows=Windows(default=4096)),
    "qwen2": _Decoder(num_key_value_heads=32, windows=_QWEN_WINDOWS, qkv_bias=True),
    "qwen3": _Decoder(num_key_value_heads=32, head_dim=128, windows=_QWEN_WINDOWS, qk_norm=True),
    "phi3": _Decoder(windows=Windows()),
    "mixtral": _Decoder(num_key_value_heads=8, windows=Windows(), experts=EXPERT_KEYS["mixtral"]),
    "gemma2": replace(
        _GEMMA,
        windows=Windows(default=4096, every=2),
        vocab_size=256000,
        max_position_embeddings=8192,
        variant=GEMMA2,
    ),
    "gemma3_text": replace(
        _GEMMA,
        windows=Windows(default=4096, every=6),
        vocab_size=262208,
        max_position_embeddings=131072,
        qk_norm=True,
        variant=GEMMA3,
    ),
    "gemma4_text": replace(
        _GEMMA, vocab_size=262144, max_position_embeddings=131072, qk_norm=True, variant=GEMMA4
    ),
    "llama4_text": _Decoder(
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=202048,
        max_position_embeddings=131072,
        variant=LLAMA4,
    ),
    "olmo2": _Decoder(qk_norm=True, variant=OLMO2),
    "olmo3": _Decoder(qk_norm=True, windows=Windows(default=4096, every=4), variant=OLMO2),
    "seed_oss": _Decoder(num_key_value_heads=8, head_dim=128, variant=SEED_OSS),
    "ministral3": _Decoder(num_key_value_heads=8, head_dim=128, windows=Windows()),
    "minimax_m2": _Decoder(
        num_key_value_heads=8, head_dim=128, qk_norm=True, experts=MINIMAX_EXPERTS, variant=MINIMAX
    ),
    "ernie4_5_moe": _Decoder(num_key_value_heads=4, tied=True, variant=ERNIE),
    "gpt_oss": _Decoder(
        num_key_value_heads=8,
        head_dim=64,
        windows=Windows(default=128, every=2),
        experts=GPT_OSS_EXPERTS,
        variant=GPT_OSS,
    ),
    "qwen3_moe": _Decoder(
        num_key_value_heads=4, windows=_QWEN_WINDOWS, qk_norm=True, experts=EXPERT_KEYS["qwen3_moe"]
    ),
    "nemotron": _Decoder(
        bias_keys=("attention_bias", "mlp_bias"),
        normalization=Normalization.LAYER_NORM,
        gated=False,
        hidden_act="relu2",
        rotary_percent=0.5,
    ),
}
_DECODER_KEYS = SHAPE_KEYS | keys(
    "hidden_act partial_rotary_factor rope_parameters layer_types sliding_window"
)
_GPT2_KEYS = keys(
    """
    n_layer n_embd n_inner n_head n_positions n_ctx vocab_size activation_function resid_pdrop
    embd_pdrop attn_pdrop tie_word_embeddings scale_attn_weights scale_attn_by_inverse_layer_idx
    reorder_and_upcast_attn summary_type summary_use_proj summary_activation summary_proj_to_labels
    summary_first_dropout
    """
)
MODEL_TYPES = (*_DECODERS, *DEEPSEEK_TYPES, *HYBRID_TYPES, "gpt2")
REFUSED = {
    "falcon": "runs attention and MLP in parallel, which Megatron Core 0.16.1 does not support",
    "deepseek_v4": "attends to compressed tokens through an index, which is not modelled",
    "kimi_linear": "has Kimi delta attention, which is not modelled",
}
_WITH_VISION = ("gemma3", "gemma4", "llama4", "mistral3", "qwen3_5", "qwen3_5_moe")


def load_config_json(path: Path) -> ModelSpec:
    """The shape in a config.json; UserError names the file, the key and what is wrong with it. Of
    models that see, the towers of TEXT_TYPES are read; a name says of others that theirs is not."""
    whole = read_config(path)
    outer = whole.get("model_type", str, None)
    if outer in TEXT_TYPES:
        spec = _of_decoder(text_of(whole))
        return replace(spec, vision=tower_of(whole, spec.hidden_size))
    spec = _of_decoder(_of_text(whole))
    return replace(spec, name=f"{spec.name} (text alone)") if outer in _WITH_VISION else spec


def _of_decoder(config: HuggingFaceConfig) -> ModelSpec:
    model_type, path = config.get("model_type", str, None), config.path
    if model_type in REFUSED:
        raise config.refuse("model_type", REFUSED[model_type])
    if model_type in _WITH_VISION:
        raise config.refuse("text_config", "is missing, and describes the language model")
    if model_type not in MODEL_TYPES:
        near = nearest_names(model_type or "", MODEL_TYPES)
        raise config.refuse("model_type", "is not a supported model family", near)
    config.check_architecture()
    try:
        return _READERS.get(model_type, _read_decoder)(config)
    except UserError as error:
        if not error.field.startswith("model."):
            raise
        raise UserError(
            f"{path}: {error.field}", error.value, error.relation, error.nearest
        ) from None


def _of_text(config: HuggingFaceConfig) -> HuggingFaceConfig:
    """The language model of a file that describes a vision model too, which is not modelled."""
    inner, outer = config.values.get("text_config"), config.values.get("model_type")
    if outer not in _WITH_VISION or not isinstance(inner, dict):
        return config
    usual = "mistral" if outer == "mistral3" else f"{outer}_text"
    return replace(config, values={"model_type": usual, **inner})


def _read_decoder(config: HuggingFaceConfig) -> ModelSpec:
    """Families with rotary positions, and dropout on attention alone."""
    family = _DECODERS[str(config.values["model_type"])]
    parts = (family.windows, family.experts, family.variant)
    own = [part.keys for part in parts if part is not None]
    config.check_keys(_DECODER_KEYS.union(family.bias_keys, *own))
    shape = config.shape(
        tied=family.tied,
        vocab_size=family.vocab_size,
        max_position_embeddings=family.max_position_embeddings,
    )
    heads = shape["num_attention_heads"]
    fields: dict[str, Any] = {
        **shape,
        "num_layers": config.positive("num_hidden_layers"),
        "num_query_groups": _num_query_groups(config, family, heads),
        "kv_channels": _head_dim(config, family, heads),
        "normalization": family.normalization,
        "activation": _activation(config, family.activation_key, family.hidden_act, family.gated),
        "add_bias_linear": _linear_bias(config, family),
        "add_qkv_bias": family.qkv_bias,
        "qk_layernorm": family.qk_norm,
        "rotary_percent": config.rotary_percent(family.rotary_percent),
    }
    if family.variant not in (LLAMA4, GEMMA4):  # which read layer_types themselves
        fields |= window_fields(config, family.windows, fields["max_position_embeddings"])
    if family.experts is not None:
        fields |= expert_fields(config, family.experts)
    if family.variant is not None:
        fields |= family.variant.fields(config)
    return ModelSpec(**fields)


def _read_gpt2(config: HuggingFaceConfig) -> ModelSpec:
    """gpt2: learned positions, LayerNorm, biases everywhere, tied embeddings by default."""
    config.check_keys(_GPT2_KEYS)
    if config.get("reorder_and_upcast_attn", bool, False):
        raise config.refuse("reorder_and_upcast_attn", "fp32 attention scores are not modelled")
    hidden, heads = config.positive("n_embd"), config.positive("n_head")
    hidden_dropout = config.get("resid_pdrop", float, 0.1)
    if config.get("embd_pdrop", float, 0.1) != hidden_dropout:
        raise config.refuse(
            "embd_pdrop",
            f"must equal resid_pdrop = {hidden_dropout}: Megatron has only one hidden dropout",
        )
    return ModelSpec(
        name=config.model_name,
        num_layers=config.positive("n_layer"),
        hidden_size=hidden,
        ffn_hidden_size=config.positive("n_inner", 4 * hidden),
        num_attention_heads=heads,
        num_query_groups=heads,
        kv_channels=_divided(config, "n_head", hidden, heads),
        vocab_size=config.positive("vocab_size"),
        max_position_embeddings=config.positive("n_positions"),
        normalization=Normalization.LAYER_NORM,
        activation=_activation(config, "activation_function", "gelu_new", gated=False),
        add_bias_linear=True,
        add_qkv_bias=True,
        share_embeddings_and_output_weights=config.get("tie_word_embeddings", bool, True),
        position_embedding_type=PositionEmbedding.LEARNED,
        hidden_dropout=hidden_dropout,
        attention_dropout=config.get("attn_pdrop", float, 0.1),
    )


def _activation(config: HuggingFaceConfig, key: str, default: str, gated: bool) -> Activation:
    table = _GATED if gated else _PLAIN
    name = config.get(key, str, default)
    if name not in table:
        legal = ", ".join(sorted(table))
        raise config.refuse(key, "is not a modelled activation", f"use one of {legal}")
    return table[name]


def _num_query_groups(config: HuggingFaceConfig, family: _Decoder, heads: int) -> int:
    """Key and value heads; null, unlike an absent key, always means as many as query heads."""
    default = family.num_key_value_heads if "num_key_value_heads" not in config.values else None
    return config.positive("num_key_value_heads", default or heads)


def _head_dim(config: HuggingFaceConfig, family: _Decoder, heads: int) -> int:
    default = family.head_dim if "head_dim" not in config.values else None
    if config.get("head_dim", int, default) is None:
        return _divided(config, "num_attention_heads", config.positive("hidden_size"), heads)
    return config.positive("head_dim", default)


def _divided(config: HuggingFaceConfig, key: str, hidden: int, heads: int) -> int:
    if hidden % heads:
        near = f"nearest: {nearest_divisors(hidden, heads)}"
        raise config.refuse(key, f"must divide the hidden size = {hidden}", near)
    return hidden // heads


def _linear_bias(config: HuggingFaceConfig, family: _Decoder) -> bool:
    """Megatron has biases in all linear layers or, of the attention's, in QKV alone."""
    attention, mlp = (
        key in family.bias_keys and config.get(key, bool, False)
        for key in ("attention_bias", "mlp_bias")
    )
    if attention != mlp:
        key, other = ("attention_bias", "mlp_bias")[:: 1 if attention else -1]
        raise config.refuse(
            key, f"needs {other} = true too: Megatron's --add-bias-linear sets both"
        )
    return bool(attention)


_READERS: dict[str, Callable[[HuggingFaceConfig], ModelSpec]] = {
    "gpt2": _read_gpt2,
    **dict.fromkeys(DEEPSEEK_TYPES, read_deepseek),
    **dict.fromkeys(HYBRID_TYPES, read_hybrid),
}
"""Of the types that are no `_DECODERS`."""
