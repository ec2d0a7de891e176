"""Multi-token prediction: layers that predict further tokens (arXiv 2412.19437, 2.2).

Source: megatron-core 0.16.1 transformer/multi_token_prediction.py (MultiTokenPredictionLayer).
"""

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.megatron.ends import embedding_lookup
from advisor.layers.megatron.linear import column_parallel_linear, norm_operator
from advisor.layers.megatron.mappings import cuts_sequence, gather_width, scatter_sequence
from advisor.layers.operators import Module, Operator, Tensor
from advisor.layers.shape import RankShape

_PROJECTION = Module.MTP_PROJECTION


def mtp_projection(shape: RankShape, layer_input: str) -> tuple[tuple[Operator, ...], Tensor]:
    """What comes before the transformer layer, and that layer's input under the name `layer_input`.

    The next tokens are looked up in the embedding, normalized (enorm), joined to the normalized
    (hnorm) hidden states of the depth before, and projected from 2 x hidden_size to hidden_size:
    column-parallel, then gathered for the whole sequence, of which SP takes a view.
    """
    embedded, hidden = shape.hidden("mtp_embedding"), shape.hidden("mtp_input")
    joined = Tensor("mtp_joined", (*hidden.shape[:-1], 2 * shape.model.hidden_size), shape.dtype)
    normed = shape.hidden("enorm_out"), shape.hidden("hnorm_out")
    before = (
        _embedding(shape, embedded),
        replace(norm_operator(shape, _PROJECTION, embedded, normed[0]), name="enorm"),
        replace(norm_operator(shape, _PROJECTION, hidden, normed[1]), name="hnorm"),
        Operator("join", _PROJECTION, normed, (joined,)),
    )
    projection, whole = _eh_proj(shape, joined, layer_input)
    if not cuts_sequence(shape):
        return (*before, *projection), whole
    part = whole.view(layer_input, hidden.shape)
    return (*before, *projection, scatter_sequence(shape, _PROJECTION, whole, part)), part


def _embedding(shape: RankShape, output: Tensor) -> Operator:
    """The lookup shares its weight with the model's embedding; the shifted token ids are kept where
    TP ranks do not keep masked ones."""
    lookup = embedding_lookup(shape, output)
    saved = lookup.saved
    if shape.tp == 1:
        tokens = shape.micro_batch_size, shape.local_seq
        saved = (Tensor("mtp_input_ids", tokens, DType.INT64), *saved)
    return replace(lookup, saved=saved, weights=())


def _eh_proj(
    shape: RankShape, joined: Tensor, layer_input: str
) -> tuple[tuple[Operator, ...], Tensor]:
    hidden = shape.model.hidden_size
    whole = shape.activation("eh_proj_out" if cuts_sequence(shape) else layer_input, hidden)
    if shape.tp == 1:
        linear = column_parallel_linear(shape, "eh_proj", _PROJECTION, joined, whole, bias=False)
        return (linear,), whole
    part = shape.activation("eh_proj_shard", hidden // shape.tp)
    linear = column_parallel_linear(shape, "eh_proj", _PROJECTION, joined, part, bias=False)
    return (linear, gather_width(_PROJECTION, part, whole)), whole


def mtp_final_layernorm(shape: RankShape, source: Tensor) -> Operator:
    """The depth's own norm, before the output layer that all depths share."""
    return norm_operator(shape, Module.MTP_FINAL_LAYERNORM, source, shape.hidden("mtp_output"))
