"""Model FLOPs by Megatron's convention, and hardware FLOPs with replays."""

from functools import lru_cache

from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.models.layer_kind import FeedForward, LayerKind
from advisor.models.spec import ModelSpec
from advisor.recompute import RecomputePlan, Segment, replayed_operators

_PASSES = 3  # forward, and twice that in the backward


def model_flops(
    model: ModelSpec,
    seq_length: int,
    global_batch_size: int,
    padded_vocab_size: int,
    attended_length: int | None = None,
) -> int:
    """FLOPs of one step as Megatron reports them (training.py num_floating_point_operations).

    Linear layers, output layer and the two attention matmuls over the causal half; recompute,
    norms, softmax, routers and embeddings are not counted, but for one a channel of the three norms
    of multi-token prediction. Of the routed experts, topk a token. A window changes nothing; of
    packed sequences it takes the lengths that attention sees.
    """
    tokens = global_batch_size * seq_length
    h, depths = model.hidden_size, model.mtp_num_layers or 0
    kinds = (*model.layer_kinds, *model.layer_kinds[-1:] * depths)
    weights = len(kinds) * _projection_weights(model) + h * _feed_forward_width(model, kinds)
    weights += depths * (3 * h + 2 * h * h) + h * padded_vocab_size * (1 + depths)
    channels = model.num_attention_heads * (model.qk_channels + model.v_channels)
    core = _PASSES * tokens * (attended_length or seq_length) * channels * len(kinds)
    return 2 * _PASSES * tokens * weights + core


def _projection_weights(model: ModelSpec) -> int:
    """Weights of one layer's attention projections that a token is multiplied by.

    Multi-latent attention: the norms of both ranks count one a channel, as Megatron counts them.
    """
    h, heads = model.hidden_size, model.num_attention_heads
    output = heads * model.v_channels * h
    if not model.multi_latent_attention:
        return h * (model.query_projection_size + 2 * model.kv_projection_size) + output
    rank, queries = model.q_lora_rank, heads * model.qk_channels
    query = h * queries if rank is None else rank * (h + queries + 1)
    keys_values = model.kv_lora_rank * (h + heads * (model.qk_head_dim + model.v_head_dim) + 1)
    return query + keys_values + h * model.qk_pos_emb_head_dim + output


def _feed_forward_width(model: ModelSpec, kinds: tuple[LayerKind, ...]) -> int:
    """Width of all linear layers of the MLPs that a token goes through, in units of hidden_size."""
    matrices = 3 if model.activation.gated else 2
    moe = sum(kind.feed_forward is FeedForward.MOE for kind in kinds)
    routed = model.moe_router_topk * model.expert_ffn_hidden_size
    shared = model.moe_shared_expert_intermediate_size or 0
    dense = (len(kinds) - moe) * model.ffn_hidden_size
    return matrices * (dense + moe * (routed + shared))


@lru_cache(maxsize=8192)
def replayed_flops(shape: RankShape, plan: RecomputePlan) -> int:
    """Forward FLOPs that the backward of one microbatch of one chunk runs again on one rank."""
    return sum(
        count * _replayed_in_layer(shape, kind, segment)
        for segment in plan.segments
        for kind, count in segment.kinds()
    )


@lru_cache(maxsize=8192)
def _replayed_in_layer(shape: RankShape, kind: LayerKind, segment: Segment) -> int:
    operators = replayed_operators(transformer_layer(shape, kind), segment)
    return sum(operator.forward_flops for operator in operators)
