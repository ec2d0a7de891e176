"""Model FLOPs by Megatron's convention, and hardware FLOPs with replays."""

from collections import Counter
from functools import lru_cache

from advisor.job.tuning import FULL, Tuning
from advisor.layers.shape import RankShape
from advisor.layers.transformer import head_operators, transformer_layer
from advisor.models.layer_kind import SOFTMAX_MIXERS, FeedForward, LayerKind, Mixer
from advisor.models.layer_kinds import mamba_heads
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import LayerReplay, RecomputePlan, replayed_operators, tallied

_PASSES = 3  # forward, and twice that in the backward


@lru_cache(maxsize=64)
def model_flops(
    model: ModelSpec,
    seq_length: int,
    global_batch_size: int,
    padded_vocab_size: int,
    attended_length: int | None = None,
    tuning: Tuning = FULL,
) -> int:
    """FLOPs of one step as Megatron reports them (training.py num_floating_point_operations); under
    an adapter two thirds of them for frozen linear layers, which have no gradient, and none for the
    adapter itself. Frozen layers before all that are trained go forward alone.

    Linear layers, output layer and the two attention matmuls over the causal half; recompute,
    norms, softmax, routers and embeddings are not counted, except one a channel of the three norms
    of multi-token prediction. Of the routed experts, topk a token. A window changes nothing; of
    packed sequences it takes the lengths that attention sees. A depth of multi-token prediction is
    counted with the attention that it has, where Megatron goes on with linear_attention_freq."""
    tokens = global_batch_size * seq_length
    kinds = (*model.layer_kinds, *model.layer_kinds[-1:] * (model.mtp_num_layers or 0))
    layers, end = _weights(model, kinds), _end_weights(model, padded_vocab_size)
    frozen = tuning.has_adapter * layers + (not tuning.trains_output) * end
    number = tuning.num_trainable_layers
    still = model.layer_kinds[: max(0, model.num_layers - number) if number is not None else 0]
    frozen += (_PASSES - 1) * _weights(model, still)
    passes = _PASSES * _channels(model, kinds) - (_PASSES - 1) * _channels(model, still)
    core = tokens * (attended_length or seq_length) * passes
    return 2 * tokens * (_PASSES * (layers + end) - frozen) + core


def _channels(model: ModelSpec, kinds: tuple[LayerKind, ...]) -> int:
    """Of keys and values of all heads, in layers with scores."""
    seen = (model.of_kind(kind) for kind in kinds if kind.mixer in SOFTMAX_MIXERS)
    return model.num_attention_heads * sum(one.qk_channels + one.v_channels for one in seen)


def layer_weights(model: ModelSpec) -> tuple[int, int]:
    """Multiply-adds a token of all layers of the decoder, and of what stands after them: output
    layer and multi-token prediction. Attention over other tokens is not among them."""
    predicting = _weights(model, model.layer_kinds[-1:] * (model.mtp_num_layers or 0))
    end = predicting + _end_weights(model, model.vocab_size)
    return _weights(model, model.layer_kinds), end


def _weights(model: ModelSpec, kinds: tuple[LayerKind, ...]) -> int:
    """Weights of layers of `kinds` that a token is multiplied by."""
    own = 3 * model.hidden_size * (model.hidden_size_per_layer_input or 0)  # made, read, added
    return own * len(kinds) + sum(
        count * (_mixer_weights(seen, kind) + _feed_forward_weights(seen, (kind,)))
        for kind, count in Counter(kinds).items()
        for seen in (model.of_kind(kind),)
    )


def _end_weights(model: ModelSpec, vocab_size: int) -> int:
    """The output layer, once a depth more, and what joins two depths of prediction."""
    h, depths = model.hidden_size, model.mtp_num_layers or 0
    return depths * (3 * h + 2 * h * h) + h * vocab_size * (1 + depths)


def _mixer_weights(model: ModelSpec, kind: LayerKind) -> int:
    """Multiply-adds of one layer's mixer a token, except attention over other tokens (0.19.0
    training.py transformer_flops, mamba_layer_flops).

    Megatron takes twice the hidden size for Mamba's inner width, whatever its heads are, and seven
    operations a channel and state for its scan."""
    h = model.hidden_size
    match kind.mixer:
        case Mixer.NONE:
            return 0
        case Mixer.GATED_DELTA_NET:
            heads, channels = model.linear_num_value_heads, model.linear_value_head_dim
            keys = 2 * model.linear_num_key_heads * model.linear_key_head_dim
            values = heads * channels
            conv = model.linear_conv_kernel_dim * (keys + values)
            return h * (keys + 3 * values + 2 * heads) + conv + 4 * heads * channels**2
        case Mixer.MAMBA:
            states = model.mamba_num_groups * model.mamba_state_dim
            scan = 7 * h * model.mamba_state_dim
            return h * (4 * h + 2 * states + mamba_heads(model)) + scan + 2 * h * h
    return _projection_weights(model, reuses_keys=kind.reuses_keys)


def _projection_weights(model: ModelSpec, *, reuses_keys: bool) -> int:
    """Weights of one layer's attention projections that a token is multiplied by. Multi-latent
    attention: the norms of both ranks count one a channel, as Megatron counts them."""
    h, heads = model.hidden_size, model.num_attention_heads
    output = heads * model.v_channels * h
    if not model.multi_latent_attention:
        queries = model.query_projection_size * (2 if model.attention_output_gate else 1)
        keys_values = 0 if reuses_keys else 1 if model.attention_k_eq_v else 2
        return h * (queries + keys_values * model.kv_projection_size) + output
    rank, queries = model.q_lora_rank, heads * model.qk_channels
    query = h * queries if rank is None else rank * (h + queries + 1)
    keys_values = model.kv_lora_rank * (h + heads * (model.qk_head_dim + model.v_head_dim) + 1)
    return query + keys_values + h * model.qk_pos_emb_head_dim + output


def _feed_forward_weights(model: ModelSpec, kinds: tuple[LayerKind, ...]) -> int:
    """Weights of the MLPs that a token is multiplied by, its projections to and from the routed
    experts' width among them (0.19.2 training.py moe_layer_flops)."""
    matrices, h = 3 if model.activation.gated else 2, model.hidden_size
    parts, latent = Counter(kind.feed_forward for kind in kinds), model.moe_latent_size
    routed = matrices * model.moe_router_topk * model.expert_ffn_hidden_size * (latent or h)
    shared = matrices * (model.moe_shared_expert_intermediate_size or 0) * h
    experts = parts[FeedForward.MOE] * (routed + shared + 2 * h * (latent or 0))
    return parts[FeedForward.DENSE] * matrices * model.ffn_hidden_size * h + experts


@lru_cache(maxsize=8192)
def replayed_flops(shape: RankShape, plan: RecomputePlan) -> int:
    """Forward FLOPs that the backward of one microbatch of one chunk runs again on one rank."""
    return sum(
        count * _replayed_in_layer(shape, kind, segment.replay)
        for segment in tallied(plan)
        for kind, count in segment.kinds()
    )


@lru_cache(maxsize=8192)
def _replayed_in_layer(shape: RankShape, kind: LayerKind, replay: LayerReplay) -> int:
    operators = replayed_operators(transformer_layer(shape, kind), replay)
    return sum(operator.forward_flops for operator in operators)


def head_replay_flops(shape: RankShape) -> int:
    """Forward FLOPs of one microbatch that the backward of a head in chunks runs again."""
    return sum(one.forward_flops for one in head_operators(shape) if one.replays_gemm)
