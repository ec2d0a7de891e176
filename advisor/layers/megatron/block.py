"""Megatron Core's transformer layer, and what else a member of its model chunks may be.

Source: megatron-core 0.16.1 transformer/transformer_layer.py, ssm/mamba_layer.py, ssm/mlp_layer.py.
"""

from msgspec.structs import replace

from advisor.base.dtypes import DType, Precision
from advisor.layers.megatron import attention, ends, linear
from advisor.layers.megatron.mlp import mlp_operators
from advisor.layers.operators import LAYER_INPUT, Module, Operator, Tensor, cached_operators
from advisor.layers.shape import RankShape
from advisor.models.layer_kind import FeedForward, LayerKind, Mixer, Role


@cached_operators
def megatron_layer(shape: RankShape, kind: LayerKind) -> tuple[Operator, ...]:
    """Operators of one member of a model chunk, of a transformer layer nearly always."""
    if kind.role is Role.FINAL_LAYERNORM:
        return ends.final_layernorm(shape)
    if kind.high_precision:
        shape = replace(shape, precision=Precision.BF16)
    if kind.role is Role.LAYER:
        return _decoder_layer(shape, kind, shape.hidden(LAYER_INPUT))
    from advisor.layers.megatron.ends import mtp_final_layernorm, mtp_projection

    before, layer_input = mtp_projection(shape, LAYER_INPUT)
    layer = _decoder_layer(shape, kind, layer_input)
    return (*before, *layer, mtp_final_layernorm(shape, layer[-1].outputs[0]))


def _decoder_layer(shape: RankShape, kind: LayerKind, layer_input: Tensor) -> tuple[Operator, ...]:
    """Norm, mixer, residual, norm, feed-forward, residual; in a hybrid pattern, one half of it."""
    output = shape.hidden("layer_output")
    if kind.mixer is Mixer.NONE:
        return _feed_forward(shape, kind, layer_input, output)
    if kind.feed_forward is FeedForward.NONE:
        return _mixer(shape, kind, layer_input, output)
    between = shape.hidden("after_attention")
    return (
        *_mixer(shape, kind, layer_input, between),
        *_feed_forward(shape, kind, between, output),
    )


def _mixer(
    shape: RankShape, kind: LayerKind, source: Tensor, output: Tensor
) -> tuple[Operator, ...]:
    normed = shape.hidden("input_layernorm_out")
    mixer = _mixer_operators(shape, kind, normed)
    if shape.model.norm_placement.after:
        mixer = _with_post_norm(shape, Module.POST_ATTENTION_LAYERNORM, mixer)
    residual = Module.MAMBA_BDA if kind.mixer is Mixer.MAMBA else Module.SELF_ATTN_BDA
    return (
        linear.norm_operator(shape, Module.INPUT_LAYERNORM, source, normed),
        *mixer,
        _bias_dropout_add(shape, residual, mixer[-1].outputs[0], source, output),
    )


def _mixer_operators(shape: RankShape, kind: LayerKind, normed: Tensor) -> tuple[Operator, ...]:
    """The mixer alone; the rarer ones are imported for the models that have them."""
    if kind.mixer is Mixer.GATED_DELTA_NET:
        from advisor.layers.megatron.gated_delta_net import gated_delta_net_operators

        return gated_delta_net_operators(shape, normed)
    if kind.mixer is Mixer.MAMBA:
        from advisor.layers.megatron.mamba import mamba_operators

        return mamba_operators(shape, normed)
    if shape.model.multi_latent_attention:
        from advisor.layers.megatron.latent_attention import latent_attention_operators

        return latent_attention_operators(shape, normed)
    return attention.attention_operators(shape, normed, kind)


def _feed_forward(
    shape: RankShape, kind: LayerKind, source: Tensor, output: Tensor
) -> tuple[Operator, ...]:
    normed = shape.hidden("pre_mlp_layernorm_out")
    mlp = _feed_forward_operators(shape, kind, normed)
    if shape.model.norm_placement.after:
        mlp = _with_post_norm(shape, Module.POST_MLP_LAYERNORM, mlp)
    return (
        linear.norm_operator(shape, Module.PRE_MLP_LAYERNORM, source, normed),
        *mlp,
        _bias_dropout_add(shape, Module.MLP_BDA, mlp[-1].outputs[0], source, output),
    )


def _feed_forward_operators(
    shape: RankShape, kind: LayerKind, normed: Tensor
) -> tuple[Operator, ...]:
    if kind.feed_forward is not FeedForward.MOE:
        return mlp_operators(shape, normed)
    from advisor.layers.megatron.moe.layer import moe_operators

    return moe_operators(shape, normed)


def _with_post_norm(
    shape: RankShape, module: Module, operators: tuple[Operator, ...]
) -> tuple[Operator, ...]:
    """`operators` and a norm of their output, which the last linear layer applies before it returns
    (Megatron Bridge 0.3.1 models/gemma/gemma2_provider.py TERowParallelLinearLayerNorm)."""
    last = operators[-1]
    normed = shape.hidden(f"{last.outputs[0].name}_normed")
    norm = linear.norm_operator(shape, module, last.outputs[0], normed)
    return (*operators, replace(norm, forward_holds=last.forward_holds))


def _bias_dropout_add(
    shape: RankShape, module: Module, branch: Tensor, residual: Tensor, output: Tensor
) -> Operator:
    """residual + dropout(branch + bias); keeps a 1-byte mask where hidden_dropout > 0. One kernel
    with bias_dropout_fusion; without it each of the three writes a tensor."""
    dropout = shape.model.hidden_dropout > 0
    steps = 0 if shape.model.bias_dropout_fusion else shape.model.add_bias_linear + dropout
    return Operator(
        str(module),
        module,
        (branch, residual),
        (output,),
        saved=(Tensor(f"{module}.mask", branch.shape, DType.BOOL),) if dropout else (),
        gradient_passed_to=frozenset({residual.name} if dropout else {branch.name, residual.name}),
        forward_workspace=steps * branch.num_bytes,
        extra_forward_bytes=2 * steps * branch.num_bytes,
        extra_backward_bytes=2 * steps * branch.num_bytes,
    )
