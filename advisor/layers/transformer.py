"""The operators of one transformer layer, in execution order."""

from functools import lru_cache

from advisor.dtypes import DType
from advisor.layers.attention import attention_operators
from advisor.layers.mlp import mlp_operators
from advisor.layers.norm import norm_operator
from advisor.layers.operators import ComputeUnit, Module, Operator, Tensor
from advisor.layers.shape import RankShape

LAYER_INPUT = "layer_input"
"""Name of the tensor that enters a layer; the previous layer wrote it, this one keeps it."""


@lru_cache(maxsize=4096)
def transformer_layer(shape: RankShape) -> tuple[Operator, ...]:
    """Operators of one dense layer: norm, attention, residual, norm, MLP, residual.

    Source: megatron-core 0.16.1 transformer/transformer_layer.py.
    """
    layer_input = shape.hidden(LAYER_INPUT)
    normed = shape.hidden("input_layernorm_out")
    after_attention = shape.hidden("after_attention")
    mlp_input = shape.hidden("pre_mlp_layernorm_out")
    attention = attention_operators(shape, normed)
    mlp = mlp_operators(shape, mlp_input)
    return (
        norm_operator(shape, Module.INPUT_LAYERNORM, layer_input, normed),
        *attention,
        _bias_dropout_add(
            shape, Module.SELF_ATTN_BDA, attention[-1].outputs[0], layer_input, after_attention
        ),
        norm_operator(shape, Module.PRE_MLP_LAYERNORM, after_attention, mlp_input),
        *mlp,
        _bias_dropout_add(
            shape, Module.MLP_BDA, mlp[-1].outputs[0], after_attention, shape.hidden("layer_output")
        ),
    )


def _bias_dropout_add(
    shape: RankShape, module: Module, branch: Tensor, residual: Tensor, output: Tensor
) -> Operator:
    """residual + dropout(branch + bias); keeps a 1-byte mask where hidden_dropout > 0.

    One kernel with bias_dropout_fusion; without it each of the three writes a tensor.
    """
    dropout = shape.model.hidden_dropout > 0
    steps = 0 if shape.model.bias_dropout_fusion else shape.model.add_bias_linear + dropout
    mask = Tensor(f"{module}.mask", branch.shape, DType.BOOL)
    return Operator(
        name=str(module),
        module=module,
        unit=ComputeUnit.BANDWIDTH,
        inputs=(branch, residual),
        outputs=(output,),
        saved=(mask,) if dropout else (),
        gradient_passed_to=frozenset({residual.name} if dropout else {branch.name, residual.name}),
        forward_workspace=steps * branch.num_bytes,
    )
