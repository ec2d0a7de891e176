"""Megatron's options of latent attention, windows, sinks, layers without rotary positions, and
multi-token prediction.

Option names: megatron-core wheel 0.19.2 training/arguments.py and argument_utils.py, which makes
--softmax-type, --mtp-num-layers and --multi-latent-attention from TransformerConfig's fields.
"""

from collections.abc import Iterator

from advisor.models.attention_kinds import SoftmaxType
from advisor.models.spec import ModelSpec

_LATENT = ("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "rope_type")


def attention_flags(model: ModelSpec) -> Iterator[str]:
    """What makes attention another than the default one, and the layers of multi-token prediction.

    Ranks and dimensions of latent attention are written out: those of Megatron-LM's arguments
    default to others than those of its configuration.
    """
    if model.multi_latent_attention:
        yield "--multi-latent-attention"
        ranks = ("q_lora_rank", *_LATENT) if model.q_lora_rank else _LATENT
        for name in ranks:
            yield from (f"--{name.replace('_', '-')}", str(getattr(model, name)))
    if model.window_size is not None:
        yield from ("--window-size", f"{model.window_size},0")
        if model.window_attn_skip_freq is not None:
            yield from ("--window-attn-skip-freq", str(model.window_attn_skip_freq))
    if model.no_rope_freq is not None:
        yield from ("--no-rope-freq", str(model.no_rope_freq))
    if model.softmax_type is not SoftmaxType.VANILLA:
        yield from ("--softmax-type", str(model.softmax_type))
    if model.mtp_num_layers is not None:
        yield from ("--mtp-num-layers", str(model.mtp_num_layers))


def attention_overrides(model: ModelSpec) -> Iterator[str]:
    """Fields of Bridge's model provider that are no part of the recipe's shape; a recipe may set
    multi-token prediction or leave it out."""
    if model.mtp_num_layers is not None:
        yield f"mtp_num_layers={model.mtp_num_layers}"
