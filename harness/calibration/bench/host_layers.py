"""The small layers whose queueing is timed, and the operations that they are made of."""

from typing import Final

from msgspec.structs import replace

from advisor.layers.shape import RankShape
from advisor.models.layer_kind import DENSE, FeedForward, LayerKind
from advisor.models.spec import ModelSpec
from harness.backends.native.host_time import layer_calls
from harness.backends.native.predict import as_native
from harness.calibration.bench.cases import Case

_HEADS: Final = 4
_EXPERTS: Final = {"moe": 4, "many_experts": 64}


def host_layer(case: Case) -> tuple[ModelSpec, LayerKind]:
    """A layer of the case's variant: dense, moe, many_experts, or latent, with the head widths of
    DeepSeek's."""
    tokens, hidden = case.sizes
    model = ModelSpec(
        name=case.variant,
        num_layers=1,
        hidden_size=hidden,
        ffn_hidden_size=4 * hidden,
        num_attention_heads=_HEADS,
        num_query_groups=_HEADS,
        kv_channels=hidden // _HEADS,
        vocab_size=hidden,
        max_position_embeddings=tokens,
    )
    if case.variant in _EXPERTS:
        model = replace(model, num_moe_experts=_EXPERTS[case.variant], moe_ffn_hidden_size=hidden)
        return model, DENSE._replace(feed_forward=FeedForward.MOE)
    if case.variant == "latent":
        model = replace(
            model,
            multi_latent_attention=True,
            qk_layernorm=True,
            q_lora_rank=hidden // 2,
            kv_lora_rank=hidden // 2,
        )
    return model, DENSE


def host_operations(case: Case) -> int:
    """Operations that the processor queues for its forward and backward, nothing replayed."""
    model, kind = host_layer(case)
    shape = RankShape(model=as_native(model), seq_length=case.sizes[0], micro_batch_size=1)
    return sum(layer_calls(shape, kind))
