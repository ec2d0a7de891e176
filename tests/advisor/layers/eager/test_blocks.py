"""Eager blocks on a toy; what whole ones keep is compared with torch in tests/oracles."""

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.layers import transformer
from advisor.layers.operators import Module
from advisor.layers.shape import RankShape
from advisor.memory.liveness import footprint
from advisor.models.options import Activation, TransformerImpl
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import kept_tensors
from tests.advisor.toys import AS_GPT, toy_model

LLAMA = toy_model(
    2, 64, 96, 4, 2, vocab_size=100, max_position_embeddings=64, make_vocab_size_divisible_by=1
)
GPT = replace(LLAMA, num_query_groups=4, **AS_GPT)
TORCH, TRANSFORMERS = TransformerImpl.TORCH, TransformerImpl.TRANSFORMERS
TOKENS = 2 * 16


def shape(model: ModelSpec, impl: TransformerImpl) -> RankShape:
    return RankShape(model=replace(model, transformer_impl=impl), seq_length=16, micro_batch_size=2)


def kept(model: ModelSpec, impl: TransformerImpl) -> dict[str, int]:
    found = kept_tensors(transformer.transformer_layer(shape(model, impl)), ())
    return {name: tensor.num_bytes for name, tensor in found.items()}


def test_te_linear_keeps_copies_of_its_own() -> None:
    """Of its input one, which q, k and v do not share, of its weight two on Hopper, and no
    16-bit one under autocast; 16 does not divide a vocabulary of 100."""
    te = replace(shape(LLAMA, TRANSFORMERS), precision=Precision.FP8_DELAYED, autocast=True)
    found = kept_tensors(transformer.transformer_layer(te), ())
    for name in ("q_proj", "k_proj", "v_proj"):
        assert found[f"input_layernorm_out.for_{name}_fp8_delayed"].num_bytes == TOKENS * 64
    assert not any(name.endswith(".cast") or name == "input_layernorm_out" for name in found)
    assert found["gate_proj.weight_fp8_delayed"].num_bytes == 2 * 64 * 96
    (down,) = (o for o in transformer.transformer_layer(te) if o.name == "down_proj")
    assert (down.forward_workspace, down.extra_forward_bytes) == (TOKENS * 96, 6 * 64 * 96)
    for vocabulary in (100, 112):
        head = transformer.head_groups(replace(te, model=replace(te.model, vocab_size=vocabulary)))
        assert "quantized=True" in str(head) or vocabulary == 100


def test_squared_relu_keeps_the_relu() -> None:
    for impl in (TORCH, TRANSFORMERS):
        found = kept(replace(GPT, activation=Activation.SQUARED_RELU), impl)
        assert found["relu_out"] == TOKENS * 96 * 2
        assert "gelu.tanh" not in found


@pytest.mark.parametrize("impl", [TORCH, TRANSFORMERS])
def test_head_norms_are_over_channels(impl: TransformerImpl) -> None:
    layer = transformer.transformer_layer(shape(replace(LLAMA, qk_layernorm=True), impl))
    norms = [operator for operator in layer if operator.module is Module.QK_LAYERNORM]
    assert [operator.inputs[0].shape for operator in norms] == [(2, 16, 4, 16), (2, 16, 2, 16)]
    assert all(sum(w.num_elements for w in operator.weights) == 16 for operator in norms)


@pytest.mark.parametrize("impl", [TORCH, TRANSFORMERS])
@pytest.mark.parametrize("model", [LLAMA, GPT])
def test_parameters_and_flops_do_not_depend_on_who_wrote_the_layer(model, impl) -> None:
    ours = transformer.transformer_layer(shape(model, impl))
    megatron = transformer.transformer_layer(
        RankShape(
            model=replace(model, transformer_impl=TransformerImpl.LOCAL),
            seq_length=16,
            micro_batch_size=2,
        )
    )
    flops = [sum(operator.forward_flops for operator in layer) for layer in (ours, megatron)]
    assert flops[0] == flops[1]
    elements = [sum(w.num_elements for o in layer for w in o.weights) for layer in (ours, megatron)]
    assert elements[0] == elements[1]


def test_weight_gradients_stay_until_the_layer_has_gone_back() -> None:
    layer = transformer.transformer_layer(shape(LLAMA, TORCH))
    weights = sum(w.num_elements for operator in layer for w in operator.weights)
    assert sum(operator.weight_gradient_bytes for operator in layer) == 2 * weights
    found = footprint(layer, ())
    assert found.backward.num_bytes > found.kept + 2 * TOKENS * 64


def test_transformers_makes_rotary_tables_once_a_microbatch() -> None:
    (lookup,) = transformer.embedding_operators(shape(LLAMA, TRANSFORMERS))
    assert sum(tensor.num_bytes for tensor in lookup.saved) == 2 * 16 * 16 * 2
    assert transformer.embedding_operators(shape(LLAMA, TORCH))[0].saved == ()


@pytest.mark.parametrize("impl", [TORCH, TRANSFORMERS])
def test_the_loss_keeps_log_probabilities_in_fp32(impl: TransformerImpl) -> None:
    groups = dict(transformer.head_groups(shape(LLAMA, impl)))
    assert list(groups) == ["head", "loss"]
    assert transformer.head_operators(shape(LLAMA, impl)) == groups["head"] + groups["loss"]
    found = footprint(groups["loss"], ())
    assert found.kept == TOKENS * 100 * 4
    assert found.forward.num_bytes == TOKENS * 100 * (2 + 4 + 4) + 4
    assert found.backward.num_bytes == TOKENS * 100 * 12
