"""Seconds of single operators on a machine of round numbers."""

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.operators import (
    AttentionShape,
    Collective,
    CollectiveKind,
    ComputeUnit,
    Gemm,
    Group,
    Module,
    Operator,
    Tensor,
    Weight,
)
from advisor.time.attention import AttentionRates, Reached
from advisor.time.communication import Link
from advisor.time.gemm import GemmRates
from advisor.time.machine import Machine
from advisor.time.passes import PassTimes, copy_seconds
from advisor.time.rank_links import Network
from advisor.time.roofline import (
    Seconds,
    backward_seconds,
    bound_by,
    forward_seconds,
    weight_cast_seconds,
)

RATES = GemmRates(
    flops=1e9, sustained_flops=100.0, multiprocessors=1, bytes_per_second=1e9, kernel_seconds=0.0
)
REACHED = Reached(0.5, 0.25)
MACHINE = Machine(
    linear=RATES,
    bf16_flops=100.0,
    attention=AttentionRates(peak_flops=100.0, flash=REACHED, fused=REACHED),
    memory_bytes_per_second=10.0,
    chain_bytes_per_second=10.0,
    optimizer_bytes_per_second=10.0,
    kernel_seconds=0.0,
    hidden_fraction=0.5,
)
EIGHT_BIT = replace(MACHINE, quantized=replace(RATES, sustained_flops=200.0), quantize_bytes=4)
LINK = Link(bytes_per_second=100.0, latency_seconds=0.0)
NETWORK = Network(tensor=LINK, context=LINK, tensor_ranks=2, context_ranks=2)
SOURCE, TARGET = Tensor("x", (10, 5), DType.BF16), Tensor("y", (10, 20), DType.BF16)
LINEAR = Operator(
    name="linear_fc1",
    module=Module.LINEAR_FC1,
    unit=ComputeUnit.GEMM,
    inputs=(SOURCE,),
    outputs=(TARGET,),
    saved=(SOURCE,),
    gemm=Gemm(10, 20, 5, quantized=True),
)
NORM = Operator(
    name="norm",
    module=Module.INPUT_LAYERNORM,
    unit=ComputeUnit.BANDWIDTH,
    inputs=(SOURCE,),
    outputs=(Tensor("normed", (10, 5), DType.BF16),),
    saved=(SOURCE, Tensor("rstd", (10,), DType.FP32)),
)
FLASH = Operator(
    name="core_attention",
    module=Module.CORE_ATTENTION,
    unit=ComputeUnit.ATTENTION,
    inputs=(SOURCE,),
    outputs=(TARGET,),
    attention_flops=32_000,
    attention=AttentionShape(rows=100, longest=1, qk_channels=128, v_channels=128),
)


def _gather(overlapped: bool, num_bytes: int = 2000) -> Collective:
    return Collective(CollectiveKind.ALL_GATHER, Group.TENSOR, num_bytes, overlapped)


def test_a_gemm_runs_at_its_rate_and_twice_as_long_backward() -> None:
    # 2 x 10 x 20 x 5 = 2000 FLOPs at 100 a second
    assert forward_seconds(LINEAR, MACHINE, NETWORK) == Seconds(20.0, 0.0)
    assert backward_seconds(LINEAR, MACHINE, NETWORK) == Seconds(40.0, 0.0)


def test_a_frozen_layer_multiplies_once_in_its_backward() -> None:
    weight = Weight("linear_fc1.weight", (20, 5), in_linear=True)
    still = replace(LINEAR, weights=(replace(weight, frozen=True),))
    assert forward_seconds(still, MACHINE, NETWORK) == Seconds(20.0, 0.0)
    assert backward_seconds(still, MACHINE, NETWORK) == Seconds(20.0, 0.0)
    learns = replace(LINEAR, weights=(weight,))
    assert backward_seconds(learns, MACHINE, NETWORK) == Seconds(40.0, 0.0)


def test_a_head_in_chunks_runs_its_forward_again() -> None:
    again = replace(LINEAR, replays_gemm=True)
    assert forward_seconds(again, MACHINE, NETWORK) == forward_seconds(LINEAR, MACHINE, NETWORK)
    assert backward_seconds(again, MACHINE, NETWORK) == Seconds(60.0, 0.0)


def test_every_kernel_has_its_fixed_cost() -> None:
    slow = replace(MACHINE, kernel_seconds=1.0, linear=replace(RATES, kernel_seconds=1.0))
    assert forward_seconds(LINEAR, slow, NETWORK).compute == 21.0
    assert backward_seconds(LINEAR, slow, NETWORK).compute == 42.0
    assert forward_seconds(NORM, slow, NETWORK).compute == 24.0 + 1.0


def test_eight_bits_cast_the_input_and_the_gradient_of_the_output() -> None:
    # 50 elements of x, 200 of y; 4 bytes each at 10 bytes a second, 6 with current scaling
    assert forward_seconds(LINEAR, EIGHT_BIT, NETWORK).compute == 10.0 + 20.0
    assert backward_seconds(LINEAR, EIGHT_BIT, NETWORK).compute == 20.0 + 80.0
    current = replace(EIGHT_BIT, quantize_bytes=6)
    assert forward_seconds(LINEAR, current, NETWORK).compute == 10.0 + 30.0
    wide = replace(LINEAR, gemm=Gemm(10, 20, 5))  # the output layer, and first_last_layers_bf16
    assert forward_seconds(wide, EIGHT_BIT, NETWORK) == forward_seconds(wide, MACHINE, NETWORK)
    faster = replace(EIGHT_BIT, quantized=replace(RATES, sustained_flops=400.0))
    assert forward_seconds(LINEAR, faster, NETWORK).compute == pytest.approx(5.0 + 20.0)


def test_a_norm_is_bound_by_its_traffic() -> None:
    # forward: x, normed, rstd; backward: both gradients, x, rstd
    assert forward_seconds(NORM, MACHINE, NETWORK) == Seconds((100 + 100 + 40) / 10, 0.0)
    assert backward_seconds(NORM, MACHINE, NETWORK) == Seconds((200 + 100 + 40) / 10, 0.0)


def test_a_chain_pays_for_each_of_its_kernels_and_for_extra_traffic() -> None:
    chain = replace(NORM, forward_kernels=8, backward_kernels=20)
    slow = replace(MACHINE, kernel_seconds=1.0)
    assert forward_seconds(chain, slow, NETWORK).compute == 24.0 + 8.0
    assert backward_seconds(chain, slow, NETWORK).compute == 34.0 + 20.0
    more = replace(NORM, extra_forward_bytes=50, extra_backward_bytes=70)
    assert forward_seconds(more, MACHINE, NETWORK).compute == 24.0 + 5.0
    assert backward_seconds(more, MACHINE, NETWORK).compute == 34.0 + 7.0


def test_chains_of_torchs_own_kernels_have_a_rate_of_their_own() -> None:
    slower = replace(MACHINE, chain_bytes_per_second=5.0)
    assert forward_seconds(NORM, slower, NETWORK).compute == (100 + 100 + 40) / 5
    loss = replace(NORM, module=Module.LOSS)
    assert forward_seconds(loss, slower, NETWORK) == forward_seconds(loss, MACHINE, NETWORK)


def test_flash_attention_replays_its_scores_backward() -> None:
    assert forward_seconds(FLASH, MACHINE, NETWORK).compute == 32_000 / 50
    assert backward_seconds(FLASH, MACHINE, NETWORK).compute == 2.5 * 32_000 / 25
    copied = replace(FLASH, extra_forward_bytes=50)
    assert forward_seconds(copied, MACHINE, NETWORK).compute == 32_000 / 50 + 5.0
    few = replace(FLASH, attention_flops=100)  # few keys: bound by its traffic
    assert forward_seconds(few, MACHINE, NETWORK).compute == (100 + 400) / 10


def test_unfused_matmuls_are_bound_by_tensor_cores_or_by_their_scores() -> None:
    scores = replace(FLASH, attention=None, attention_flops=1000)
    assert forward_seconds(scores, MACHINE, NETWORK).compute == (100 + 400) / 10
    heavy = replace(scores, attention_flops=10_000)
    assert forward_seconds(heavy, MACHINE, NETWORK).compute == 100.0
    assert backward_seconds(heavy, MACHINE, NETWORK).compute == 200.0


@pytest.mark.parametrize(
    ("overlapped", "hundreds", "hidden", "exposed"),
    [(False, 20, 0.5, 10.0), (True, 20, 0.5, 5.0), (True, 20, 1.0, 0.0), (True, 100, 0.5, 40.0)],
)
def test_communication_is_exposed_except_what_overlap_hides(overlapped, hundreds, hidden, exposed):
    """Half of the bytes at 100 a second; no more is hidden than the kernels last."""
    operator = replace(LINEAR, forward_collectives=(_gather(overlapped, 100 * hundreds),))
    machine = replace(MACHINE, hidden_fraction=hidden)
    assert forward_seconds(operator, machine, NETWORK) == Seconds(20.0, exposed)


def test_tokens_are_read_and_written_while_they_are_sent() -> None:
    sent = (_gather(False),)
    permuted = replace(NORM, module=Module.DISPATCH)
    exchanged = replace(permuted, forward_collectives=sent, backward_collectives=sent)
    assert forward_seconds(permuted, MACHINE, NETWORK).exposed == 0.0
    assert forward_seconds(permuted, MACHINE, NETWORK).compute > 0.0
    assert forward_seconds(exchanged, MACHINE, NETWORK) == Seconds(0.0, 10.0)
    assert backward_seconds(exchanged, MACHINE, NETWORK) == Seconds(0.0, 10.0)


def test_8_bit_inputs_are_gathered_in_8_bits_and_gradients_scattered_in_16() -> None:
    operator = replace(LINEAR, forward_collectives=(_gather(False),))
    assert forward_seconds(operator, EIGHT_BIT, NETWORK).exposed == 5.0
    scatter = Collective(CollectiveKind.REDUCE_SCATTER, Group.TENSOR, 2000)
    operator = replace(LINEAR, backward_collectives=(scatter,))
    assert backward_seconds(operator, EIGHT_BIT, NETWORK).exposed == 10.0


def test_copies_show_where_kernels_end() -> None:
    """Kernels of 5 s and of 6 s leave 3 s and 2 s of two copies of 8 s."""
    machine = replace(MACHINE, host_bytes_per_second=2.0)
    assert copy_seconds(16, machine, PassTimes(5.0, 6.0)) == 5.0
    assert copy_seconds(16, machine, PassTimes(9.0, 6.0)) == 2.0


def test_what_bounds_an_operator() -> None:
    words = {"tensor cores": LINEAR, "attention kernel": FLASH, "memory bandwidth": NORM}
    assert [bound_by(operator) for operator in words.values()] == list(words)


def test_each_expert_has_a_cast_of_its_own() -> None:
    each = replace(EIGHT_BIT, kernel_seconds=1.0)
    experts = replace(LINEAR, gemm=Gemm(10, 20, 5, quantized=True, groups=2, kernels=2))
    one, two = (forward_seconds(o, each, NETWORK).compute for o in (LINEAR, experts))
    assert two - one == pytest.approx(1.0)


def test_the_weight_is_cast_apart() -> None:
    """20 x 5 elements of two experts, 4 bytes each at 10 a second."""
    gemm = Gemm(10, 20, 5, quantized=True, groups=2, kernels=2)
    assert weight_cast_seconds(gemm, EIGHT_BIT) == pytest.approx(80.0)
    assert weight_cast_seconds(replace(gemm, quantized=False), EIGHT_BIT) == 0.0
    assert weight_cast_seconds(gemm, MACHINE) == 0.0


@pytest.mark.parametrize("field", ["bf16_flops", "chain_bytes_per_second"])
def test_a_faster_machine_is_never_slower(field: str) -> None:
    faster = replace(EIGHT_BIT, **{field: getattr(EIGHT_BIT, field) * 2})
    for operator in (LINEAR, NORM, FLASH):
        for seconds in (forward_seconds, backward_seconds):
            before, after = (seconds(operator, m, NETWORK).compute for m in (EIGHT_BIT, faster))
            assert after <= before
