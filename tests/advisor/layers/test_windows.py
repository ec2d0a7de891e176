"""Sliding windows, sinks and packed sequences: which layers, how many pairs, which weights."""

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.layers.megatron.core_attention import attended_keys
from advisor.layers.transformer import transformer_layer
from advisor.models.layer_kind import DENSE, Mixer
from advisor.models.layer_pattern import LayerPattern
from advisor.models.options import SoftmaxType
from advisor.plan.flops import model_flops
from tests.advisor.toys import LLAMA, saved_bytes, toy_shape

WINDOW = DENSE._replace(mixer=Mixer.SLIDING_WINDOW)
MODEL = replace(LLAMA, window_size=8)


@pytest.mark.parametrize(
    ("skip", "windowed"),
    [(None, "11111111"), ("2", "10101010"), ("6", "11111011"), ("[1,0,0,0]*2", "10001000")],
)
def test_which_layers_have_a_window(skip: str | None, windowed: str) -> None:
    pattern = None if skip is None else LayerPattern(skip)
    kinds = replace(MODEL, window_attn_skip_freq=pattern).layer_kinds
    assert "".join(str(int(kind == WINDOW)) for kind in kinds) == windowed


def test_a_window_keeps_the_same_bytes_and_computes_fewer_pairs() -> None:
    shape = toy_shape(MODEL)
    full, limited = (transformer_layer(shape, kind) for kind in (DENSE, WINDOW))
    assert saved_bytes(full) == saved_bytes(limited)
    # 32^2 - 24^2 = 448 of 1024 pairs: 14 of 32 keys
    assert attended_keys(shape, Mixer.SLIDING_WINDOW) == 14
    assert attended_keys(shape, Mixer.FULL) == 32
    flops = [sum(operator.attention_flops for operator in layer) for layer in (full, limited)]
    assert flops[1] * 32 == flops[0] * 14


def test_kernels_know_the_window_and_their_rows() -> None:
    shape = toy_shape(MODEL)
    full, limited = (
        next(
            operator.attention for operator in transformer_layer(shape, kind) if operator.attention
        )
        for kind in (DENSE, WINDOW)
    )
    assert (full.longest, full.windowed) == (32, False)
    assert (limited.longest, limited.windowed) == (8, True)
    assert full.rows == limited.rows == shape.micro_batch_size * shape.local_heads * 32


def test_a_window_as_long_as_the_sequence_limits_nothing() -> None:
    assert attended_keys(toy_shape(MODEL, window_size=32), Mixer.SLIDING_WINDOW) == 32


def test_packed_sequences_attend_within_themselves() -> None:
    packed = toy_shape(MODEL, mean_packed_length=16)
    assert attended_keys(packed, Mixer.FULL) == 16
    assert attended_keys(packed, Mixer.SLIDING_WINDOW) == 8 * (32 - 8) // 16
    assert attended_keys(toy_shape(mean_packed_length=99), Mixer.FULL) == 32
    whole, short = (model_flops(LLAMA, 32, 1, 1000, length) for length in (32, 16))
    assert whole - short == 3 * 32 * 16 * 8 * 16 * 8


def test_sinks_are_one_weight_a_head() -> None:
    shape = toy_shape(softmax_type=SoftmaxType.LEARNABLE)
    plain = toy_shape()
    counts = [
        sum(w.num_elements for operator in transformer_layer(s) for w in operator.weights)
        for s in (shape, plain)
    ]
    assert counts[0] - counts[1] == 8 // 2


def test_refusals() -> None:
    with pytest.raises(UserError, match="needs window_size"):
        replace(LLAMA, window_attn_skip_freq=LayerPattern("2"))
    with pytest.raises(UserError, match="has 2 layers, but the model has 8"):
        replace(MODEL, window_attn_skip_freq=LayerPattern("[1,0]"))
    with pytest.raises(UserError, match="must be between 1"):
        replace(LLAMA, window_size=0)
