"""A whole layer: its order, and the coefficients of arXiv 2205.05198 as sums of named tensors."""

import pytest
from msgspec.structs import replace

from advisor.frameworks.megatron.plan import selective_runs
from advisor.frameworks.megatron.setting import selective
from advisor.layers.operators import Operator, total_bytes
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import kept_tensors
from tests.advisor.jobs import parallel
from tests.advisor.toys import GPT, HIDDEN, saved_bytes, toy_shape


def test_order_of_a_layer() -> None:
    assert [operator.name for operator in transformer_layer(toy_shape())] == [
        *("input_layernorm", "linear_qkv", "split_qkv", "rotary_pos_emb"),
        *("core_attention", "linear_proj", "self_attn_bda", "pre_mlp_layernorm"),
        *("linear_fc1", "activation", "linear_fc2", "mlp_bda"),
    ]


def test_every_tensor_that_is_read_was_written_or_came_in() -> None:
    for shape in (toy_shape(), toy_shape(GPT), toy_shape(qk_layernorm=True)):
        written = {"layer_input"}
        for operator in transformer_layer(shape):
            assert {tensor.name for tensor in operator.inputs} <= written, operator.name
            written |= {tensor.name for tensor in operator.outputs}
        assert "layer_output" in written


def bda(shape: RankShape) -> Operator:
    return transformer_layer(shape)[-1]


def test_an_addition_hands_its_gradient_on() -> None:
    assert bda(toy_shape()).gradient_passed_to == {"mlp_out", "after_attention"}
    assert bda(toy_shape(GPT)).gradient_passed_to == {"after_attention"}  # dropout makes another


def test_unfused_bias_and_dropout_write_a_tensor_each() -> None:
    no_sp = {"sequence_parallel": False}
    assert bda(toy_shape(GPT, **no_sp)).forward_workspace == 2 * HIDDEN
    assert bda(toy_shape(GPT, **no_sp, hidden_dropout=0.0)).forward_workspace == HIDDEN
    assert bda(toy_shape(GPT, **no_sp, bias_dropout_fusion=True)).forward_workspace == 0
    assert saved_bytes((bda(toy_shape(GPT, **no_sp)),)) == {"mlp_bda.mask": HIDDEN // 2}


# Table 2 of arXiv 2205.05198, bytes of one layer; the paper counts no norm statistics.
PAPER = ("gpt3_22b", "gpt3_175b", "gpt3_530b", "gpt3_1t")


def paper_model(name: str) -> ModelSpec:
    """Megatron's own layers with unfused attention and a softmax in the compute type."""
    toy = {
        field: getattr(GPT, field)
        for field in (
            *("transformer_impl", "attention_backend", "attention_softmax_in_fp32"),
            *("masked_softmax_fusion", "hidden_dropout", "attention_dropout"),
        )
    }
    return replace(load_model(name, None), **toy)


def layer_bytes(shape: RankShape, *modules: str) -> int:
    """Saved bytes of a layer without the norms' fp32 statistics."""
    runs = selective_runs(selective(*modules), shape.model)
    kept = kept_tensors(transformer_layer(shape), runs)
    statistics = [t for name, t in kept.items() if name.endswith((".mean", ".rstd"))]
    assert total_bytes(tuple(statistics)) == 2 * 2 * 4 * shape.norm_seq * shape.micro_batch_size
    return total_bytes(tuple(kept.values())) - total_bytes(tuple(statistics))


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", PAPER)
def test_table_2_of_the_paper(name: str, batch: int) -> None:
    model, s, b, t = paper_model(name), 2048, batch, 8
    h, a = model.hidden_size, model.num_attention_heads
    sbh, attention = s * b * h, 5 * a * s * s * b

    def shape(tp: int, sp: bool) -> RankShape:
        return RankShape(model=model, seq_length=s, micro_batch_size=b, **parallel(tp=tp, sp=sp))

    assert layer_bytes(shape(1, False)) == 34 * sbh + attention
    assert layer_bytes(shape(t, False)) == 10 * sbh + 24 * sbh // t + attention // t
    assert layer_bytes(shape(t, True)) == 34 * sbh // t + attention // t
    # selective recompute of attention keeps 4 bytes more, an argument of Megatron's checkpoint,
    # which kept_tensors leaves to the footprint
    assert layer_bytes(shape(t, False), "core_attn") == 10 * sbh + 24 * sbh // t
    assert layer_bytes(shape(t, True), "core_attn") == 34 * sbh // t


def test_full_recompute_keeps_two_bytes_an_element() -> None:
    """2 sbh in the table's last row: the layer's input."""
    shape = toy_shape(GPT, sequence_parallel=False)
    layer_input = transformer_layer(shape)[0].inputs
    assert total_bytes(layer_input) == 2 * 32 * 2 * 64
