"""Embeddings that every layer has of its own: made next to the word embeddings, added by the layer.

Source: transformers 5.23.0 models/gemma4/modeling_gemma4.py.
"""

from msgspec.structs import replace

from advisor.layers.eager import parts
from advisor.layers.operators import Module, Operator, Tensor
from advisor.layers.shape import RankShape, per_layer_weights
from advisor.layers.transformers.norms import norm


def per_layer_inputs(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """All layers' inputs together, [micro_batch_size, seq_length, layers, own width]: a lookup plus
    the normalized projection of `source`, the word embeddings. Kept here, whoever reads them."""
    model, place = shape.model, Module.EMBEDDING
    layers, width = model.num_layers, model.hidden_size_per_layer_input or 0
    size = *source.shape[:2], layers, width
    looked_up, scaled, total, output = (
        Tensor(f"per_layer_{name}", size, shape.stream_dtype)
        for name in ("lookup", "scaled", "sum", "inputs")
    )
    projected = parts.activation(shape, "per_layer_projected", layers * width)
    narrow = Tensor("per_layer_projected_scaled", size, shape.dtype)
    normed, weights = replace(narrow, name="per_layer_normed"), per_layer_weights(model)[:1]
    lookup = Operator("per_layer_embedding", place, (), (looked_up,), weights=weights)
    return (
        parts.with_weight_gradients(shape, lookup),
        Operator("per_layer_scale", place, (looked_up,), (scaled,)),
        parts.linear(shape, "per_layer_model_projection", place, source, projected, bias=False),
        Operator("per_layer_projection_scale", place, (projected,), (narrow,)),
        norm(shape, "per_layer_projection_norm", place, narrow, normed),
        Operator("per_layer_add", place, (normed, scaled), (total,)),
        Operator(
            "per_layer_input_scale",
            place,
            (total, source),
            (source.view("embeddings_read", source.shape), output),
            saved=(output,),
            gradient_passed_to=frozenset({source.name}),
            forward_holds=(normed, scaled),
        ),
    )


def own_input(shape: RankShape, layer_input: Tensor) -> tuple[Operator, ...]:
    """The layer's own input, a view of all layers', if there is one. It is taken before the layer
    runs, so it goes back last: its gradient is put in zeros of all layers' width, and added."""
    if shape.model.hidden_size_per_layer_input is None:
        return ()
    size = shape.per_layer_input_bytes
    select = Operator(
        "per_layer_select",
        Module.INPUT_LAYERNORM,
        (layer_input,),
        (_own(shape),),
        gradient_free_inputs=frozenset({layer_input.name}),
        backward_workspace=size,
        extra_backward_bytes=4 * size,
        backward_kernels=3,
    )
    return (select,)


def _own(shape: RankShape) -> Tensor:
    """[micro_batch_size, seq_length, own width] of a storage that the embedding keeps."""
    size = *parts.hidden(shape, "").shape[:2], shape.model.hidden_size_per_layer_input or 0
    return Tensor("per_layer_inputs", (0,), shape.stream_dtype).view("per_layer_input", size)


def with_own_input(
    shape: RankShape, source: Tensor, held: tuple[Tensor, ...]
) -> tuple[tuple[Operator, ...], Tensor]:
    """`source` plus the norm of a projection of act(gate source) * the layer's own input.
    The gradient of the norm's output is that of `source` as well, which waits."""
    own = _own(shape)
    gate, activated, product = (
        Tensor(f"per_layer_{name}", own.shape, dtype)
        for name, dtype in (("gate", shape.dtype), ("act", shape.dtype), ("product", own.dtype))
    )
    branch = parts.hidden(shape, "per_layer_projection_out", shape.dtype)
    normed = parts.hidden(shape, "post_per_layer_input_norm_out")
    output = parts.hidden(shape, "with_own_input")
    after = norm(shape, "post_per_layer_input_norm", Module.POST_MLP_LAYERNORM, branch, normed)
    act = parts.nonlinearity(shape.model.activation, gate, activated)
    return (
        parts.linear(shape, "per_layer_input_gate", Module.LINEAR_FC1, source, gate, bias=False),
        *(replace(operator, name=f"per_layer_{operator.name}") for operator in act),
        parts.multiplied(activated, own, product, "per_layer_multiply"),
        parts.linear(shape, "per_layer_projection", Module.LINEAR_FC2, product, branch, bias=False),
        replace(after, backward_workspace=after.backward_workspace + normed.num_bytes),
        parts.residual("per_layer_residual", Module.MLP_BDA, normed, source, output, held),
    ), output
