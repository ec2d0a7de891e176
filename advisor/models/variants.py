"""Where families of models leave the plain transformer block, and what that excludes.

Sources: megatron-core 0.16.1 transformer/transformer_config.py (qk_l2_norm, no_rope_freq); Megatron
Bridge 0.3.1 models/gemma/gemma2_provider.py, gemma3_provider.py, models/llama/llama4_utils.py;
transformers 5.23.0 models/gemma2, gemma3, llama4, olmo2.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from advisor.base.errors import UserError

if TYPE_CHECKING:
    from advisor.models.spec import ModelSpec


class NormPlacement(StrEnum):
    """Norms of a layer: before attention and MLP (Llama), on both sides of each (Gemma 2 and 3), or
    behind each alone, ahead of the addition (OLMo 2)."""

    PRE = "pre"
    PRE_AND_POST = "pre_and_post"
    POST = "post"

    @property
    def before(self) -> bool:
        """Whether the inputs of attention and MLP are normalized."""
        return self is not NormPlacement.POST

    @property
    def behind(self) -> bool:
        """Whether the outputs of attention and MLP are."""
        return self is not NormPlacement.PRE


_PLAIN: Final = (
    ("norm_placement", NormPlacement.PRE),
    ("qk_layernorm_across_heads", False),
    ("qk_l2_norm", False),
    ("attn_logit_softcapping", None),
    ("final_logit_softcapping", None),
    ("apply_embedding_scaling", False),
    ("attention_chunk_size", None),
    ("no_rope_freq", None),
)
"""Fields of ModelSpec and their values in the plain block."""


def variants(model: "ModelSpec") -> Iterator[str]:
    """Names of the fields by which `model` is no plain transformer."""
    return (field for field, plain in _PLAIN if getattr(model, field) != plain)


def of_providers(model: "ModelSpec") -> Iterator[str]:
    """Those of them that no option of Megatron-LM's command line makes: Megatron Bridge and NeMo
    have modules of their own for them."""
    return (field for field in variants(model) if field != "no_rope_freq")


def check_variants(model: "ModelSpec") -> None:
    """Raise UserError on what excludes each other, or has no meaning."""
    for field in ("attn_logit_softcapping", "final_logit_softcapping", "attention_chunk_size"):
        value = getattr(model, field)
        if value is not None and not 0 < value <= _LARGEST:
            raise _refuse(model, field, f"must be positive and at most {_LARGEST}")
    if model.no_rope_freq is not None:
        model.no_rope_freq.expand_from_one(model.num_layers, "model.no_rope_freq")
    for field, wrong, relation in _exclusions(model):
        if wrong and getattr(model, field):
            raise _refuse(model, field, relation)


def _exclusions(model: "ModelSpec") -> Iterator[tuple[str, bool, str]]:
    """Field, whether it may not be set, and why."""
    kernel = model.attention_backend not in ("auto", "unfused")
    for field, wrong in _transformers_alone(model):
        yield field, wrong, "needs transformer_impl = transformers: Megatron has no such layer"
    latent, unfused = model.multi_latent_attention, model.attention_backend == "unfused"
    yield "qk_layernorm_across_heads", not model.qk_layernorm, "needs qk_layernorm"
    yield "qk_l2_norm", model.qk_layernorm, "excludes qk_layernorm"
    yield (
        "attn_logit_softcapping",
        kernel,
        f"no kernel of attention_backend = {model.attention_backend} caps scores: use unfused",
    )
    yield (
        "final_logit_softcapping",
        model.mtp_num_layers is not None,
        "is not modelled with multi-token prediction",
    )
    yield (
        "attention_chunk_size",
        unfused or model.window_size is not None,
        "is not modelled with unfused attention or windows",
    )
    for field in ("qk_l2_norm", "no_rope_freq", "attention_chunk_size", "attn_logit_softcapping"):
        yield field, latent, "is not modelled with multi-latent attention"


def _transformers_alone(model: "ModelSpec") -> Iterator[tuple[str, bool]]:
    """What only transformers' own layers have (OLMo 2), and whether they are not the model's."""
    foreign = model.transformer_impl != "transformers"
    yield "norm_placement", foreign and model.norm_placement is NormPlacement.POST
    yield "qk_layernorm_across_heads", foreign


def _refuse(model: "ModelSpec", field: str, relation: str) -> UserError:
    return UserError(f"model.{field}", getattr(model, field), relation)


_LARGEST: Final = 10**8
