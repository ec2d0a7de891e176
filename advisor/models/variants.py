"""Where families of models leave the plain transformer block.

Sources: megatron-core 0.16.1 transformer/transformer_config.py (qk_l2_norm, no_rope_freq); Megatron
Bridge 0.3.1 models/gemma/gemma2_provider.py, gemma3_provider.py, models/llama/llama4_utils.py.
"""

from collections.abc import Iterator
from typing import Final

from advisor.base.record import defaults
from advisor.models.model_fields import ModelFields

_FIELDS: Final = (
    *("global_kv_channels", "num_global_query_groups", "attention_k_eq_v", "v_layernorm"),
    *("layer_scalar", "moe_separate_norms", "num_kv_shared_layers", "use_double_wide_mlp"),
    *("hidden_size_per_layer_input", "vocab_size_per_layer_input"),
    *("norm_placement", "qk_layernorm_across_heads", "qk_l2_norm", "attn_logit_softcapping"),
    *("final_logit_softcapping", "apply_embedding_scaling", "attention_chunk_size", "no_rope_freq"),
)
PLAIN: Final = tuple((name, defaults(ModelFields)[name]) for name in _FIELDS)
"""Fields of ModelSpec and their values in the plain block."""


def variants(model: ModelFields) -> Iterator[str]:
    """Names of the fields by which `model` is no plain transformer."""
    return (field for field, plain in PLAIN if getattr(model, field) != plain)


def of_providers(model: ModelFields) -> Iterator[str]:
    """Those of them that no option of Megatron-LM's command line makes: Megatron Bridge and NeMo
    have modules of their own for them."""
    return (field for field in variants(model) if field != "no_rope_freq")
