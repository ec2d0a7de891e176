"""Model shapes from a Hugging Face config.json, read strictly, by the rows of their families."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from advisor.base.errors import UserError, nearest_divisors, nearest_names
from advisor.models.config_json import linear_attention, routed_layers, windows
from advisor.models.config_json.families import FILE, Family, FieldsCode, family_of
from advisor.models.config_json.keys import HuggingFaceConfig, read_config
from advisor.models.config_json.qwen_vl import text_of, tower_of
from advisor.models.options import AttentionBackend
from advisor.models.spec import ModelSpec

MODEL_TYPES: Final = tuple(FILE.types)
REFUSED: Final = FILE.refused


def load_config_json(path: Path) -> ModelSpec:
    """The shape in a config.json; UserError names the file, the key and what is wrong with it. Of
    models that see, the towers that are modelled are read; a name says of others that theirs is
    not."""
    whole = read_config(path)
    outer = whole.get("model_type", str, None)
    if outer in FILE.towers:
        spec = _of_decoder(text_of(whole, family_of(outer).decoder))
        return replace(spec, vision=tower_of(whole, spec.hidden_size))
    decoder = FILE.with_vision.get(outer or "")
    spec = _of_decoder(text_of(whole, decoder) if decoder else whole)
    return replace(spec, name=f"{spec.name} (text alone)") if outer in FILE.with_vision else spec


def _of_decoder(config: HuggingFaceConfig) -> ModelSpec:
    model_type, path = config.get("model_type", str, None), config.path
    if model_type in REFUSED:
        raise config.refuse("model_type", REFUSED[model_type])
    if model_type not in MODEL_TYPES:
        near = nearest_names(model_type or "", MODEL_TYPES)
        raise config.refuse("model_type", "is not a supported model family", near)
    config.check_architecture()
    try:
        return _read(config, family_of(model_type))
    except UserError as error:
        if not error.field.startswith("model."):
            raise
        raise UserError(
            f"{path}: {error.field}", error.value, error.relation, error.nearest
        ) from None


def _read(config: HuggingFaceConfig, family: Family) -> ModelSpec:
    family.check(config)
    fields: dict[str, Any] = {
        "name": config.model_name,
        "activation": family.activation_of(config),
        **family.read(config, ModelSpec),
    }
    if family.rotary_percent is not None and "rotary_percent" not in fields:
        fields["rotary_percent"] = config.rotary_percent(family.rotary_percent)
    for name in family.code:
        fields |= _CODE[name](config, family, fields)
    return ModelSpec(**fields)


def _heads(config: HuggingFaceConfig, family: Family, before: Mapping[str, Any]) -> dict[str, Any]:
    """Key and value heads, of which null, unlike an absent key, means as many as query heads; and
    the width of each."""
    heads, given = before["num_attention_heads"], config.values
    groups = None if "num_key_value_heads" in given else family.num_key_value_heads
    width = None if "head_dim" in given else family.head_dim
    if config.get("head_dim", int, width) is None:
        width = _divided(config, "num_attention_heads", before["hidden_size"], heads)
    return {
        "num_query_groups": config.positive("num_key_value_heads", groups or heads),
        "kv_channels": config.positive("head_dim", width),
    }


def _divided(config: HuggingFaceConfig, key: str, hidden: int, heads: int) -> int:
    if hidden % heads:
        near = f"nearest: {nearest_divisors(hidden, heads)}"
        raise config.refuse(key, f"must divide the hidden size = {hidden}", near)
    return hidden // heads


def _biases(config: HuggingFaceConfig, *_: Any) -> dict[str, Any]:
    """Megatron has biases in all linear layers or, of the attention's, in QKV alone."""
    names = ("attention_bias", "mlp_bias")
    attention, mlp = (config.get(key, bool, False) for key in names)
    if attention != mlp:
        key, other = names[:: 1 if attention else -1]
        raise config.refuse(
            key, f"needs {other} = true too: Megatron's --add-bias-linear sets both"
        )
    return {"add_bias_linear": attention}


def _capped_scores(
    config: HuggingFaceConfig, family: Family, before: Mapping[str, Any]
) -> dict[str, Any]:
    """Only unfused attention caps its scores."""
    if before["attn_logit_softcapping"] is None:
        return {}
    return {"attention_backend": AttentionBackend.UNFUSED, "attention_softmax_in_fp32": False}


def _gpt2(config: HuggingFaceConfig, family: Family, before: Mapping[str, Any]) -> dict[str, Any]:
    """Widths that follow from others, and one dropout for all hidden states."""
    dropout, hidden = before["hidden_dropout"], before["hidden_size"]
    if config.get("embd_pdrop", float, 0.1) != dropout:
        raise config.refuse(
            "embd_pdrop",
            f"must equal resid_pdrop = {dropout}: Megatron has only one hidden dropout",
        )
    return {
        "ffn_hidden_size": config.positive("n_inner", 4 * hidden),
        "kv_channels": _divided(config, "n_head", hidden, before["num_attention_heads"]),
    }


_CODE: Final[dict[str, FieldsCode]] = {
    "heads": _heads,
    "biases": _biases,
    "capped_scores": _capped_scores,
    "gpt2": _gpt2,
    "windows": windows.window_fields,
    "gemma4": windows.gemma4_fields,
    "sparse_steps": routed_layers.sparse_steps,
    "deepseek_layers": routed_layers.deepseek_layers,
    "deepseek_router": routed_layers.deepseek_router,
    "indexer": routed_layers.check_indexer,
    "ernie_layers": routed_layers.ernie_layers,
    "minimax": routed_layers.minimax_fields,
    "llama4_layers": routed_layers.llama4_layers,
    "linear_layers": linear_attention.linear_layers,
    "nemotron_layers": linear_attention.nemotron_layers,
}
