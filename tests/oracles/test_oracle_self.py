"""The oracle itself, against figures known from papers and from Megatron's own documentation."""

from typing import Any

import pytest

pytest.importorskip("megatron.core")

from tests.advisor.jobs import parallel

from . import prediction
from .megatron import CoreAttention, OracleCase, saved_bytes_per_layer
from .megatron.peak import activation_peak
from .prediction import full, selective, tensor_parallel

LLAMA3_70B = prediction.LLAMA3_70B.changed(
    num_layers=80, seq_length=8192, vocab_size=128256, **tensor_parallel(4, True)
)
# the 22B model of arXiv 2205.05198, table 3: softmax in bf16 and unfused attention
GPT_22B = prediction.GPT_22B.changed(
    num_layers=48,
    micro_batch_size=1,
    attention=CoreAttention.UNFUSED,
    attention_softmax_in_fp32=False,
    **tensor_parallel(8, True),
)
TOY = OracleCase(
    num_layers=4,
    hidden_size=256,
    ffn_hidden_size=512,
    num_attention_heads=8,
    num_query_groups=4,
    seq_length=128,
    vocab_size=1024,
    tensor_model_parallel_size=2,
    sequence_parallel=True,
)


@pytest.mark.parametrize(
    ("recompute", "nbytes"),
    [
        ({}, 608_714_752),
        (selective("core_attn"), 608_190_468),
        (selective("layernorm"), 541_589_504),
        (selective("mlp"), 256_393_216),
        (full("uniform", 1), 33_554_432),
        (full("block", 3), 33_554_432),
    ],
)
def test_saved_bytes_of_a_llama3_70b_layer(recompute: dict[str, Any], nbytes: int) -> None:
    total, rows = saved_bytes_per_layer(LLAMA3_70B.changed(**recompute))
    assert total == nbytes
    assert sum(row.nbytes for row in rows) == nbytes


def test_saved_bytes_of_a_gpt_22b_layer_are_those_of_the_paper() -> None:
    """34 sbh + 5 a s^2 b (Megatron counts no norm statistics: two fp32 a row and norm here)."""
    tokens = GPT_22B.seq_length // GPT_22B.tensor_model_parallel_size
    linear = 34 * tokens * GPT_22B.hidden_size
    heads = GPT_22B.num_attention_heads // GPT_22B.tensor_model_parallel_size
    quadratic = 5 * heads * GPT_22B.seq_length**2
    statistics = 2 * 2 * 4 * tokens
    total, rows = saved_bytes_per_layer(GPT_22B)
    assert total == linear + quadratic + statistics == 221_253_632
    assert {row.dtype for row in rows} == {"bfloat16", "float32", "bool"}
    assert saved_bytes_per_layer(GPT_22B.changed(**full("uniform", 1)))[0] == 3_145_728


def test_distributed_saved_activations_keep_a_shard() -> None:
    case = TOY.changed(sequence_parallel=False, **full("uniform", 1))
    whole, _ = saved_bytes_per_layer(case)
    shard, _ = saved_bytes_per_layer(case.changed(distribute_saved_activations=True))
    assert whole == 2 * TOY.seq_length * TOY.hidden_size
    assert shard == whole // TOY.tensor_model_parallel_size


def test_saved_rows_name_module_and_node() -> None:
    _, rows = saved_bytes_per_layer(TOY)
    (activation,) = [row for row in rows if row.op == "SwiGLUFunctionBackward"]
    assert activation.module.endswith(".mlp")
    assert activation.shape == (128, 512)  # [s * b, 2 ffn / tp]
    assert activation.nbytes == 128 * 512 * 2


def test_several_layers_in_a_uniform_checkpoint_have_no_bytes_per_layer() -> None:
    with pytest.raises(ValueError, match="must be 1 with uniform"):
        saved_bytes_per_layer(TOY.changed(**full("uniform", 2)))


@pytest.mark.parametrize("pp_rank", range(4))
def test_1f1b_stage_holds_as_many_microbatches_as_the_schedule_says(pp_rank: int) -> None:
    """A microbatch in flight costs one stage's saved bytes; past pp - rank no more come."""
    stages = TOY.changed(num_layers=8, pipeline_model_parallel_size=4, vocab_size=64)
    per_layer, _ = saved_bytes_per_layer(stages)
    in_flight = 4 - pp_rank
    fewer, full_pipe, many = (
        activation_peak(stages.changed(num_microbatches=count), pp_rank)
        for count in (max(1, in_flight - 1), in_flight, 9)
    )
    if pp_rank < 3:  # 0.04: small tensors next to the two layers, such as a received gradient
        assert full_pipe - fewer == pytest.approx(2 * per_layer, rel=0.04)
    # from the second backward on, the last one's input gradient [s / tp, b, h] is still held
    assert many - full_pipe == (0 if pp_rank == 0 else 64 * 256 * 2)


def test_peak_of_a_70b_stage_is_the_sum_of_named_tensors() -> None:
    """Stage 0 of 2, two microbatches in flight; at fc1's weight gradient in the last layer."""
    case = LLAMA3_70B.changed(
        num_layers=8, seq_length=4096, pipeline_model_parallel_size=2, num_microbatches=4
    )
    layer, _ = saved_bytes_per_layer(case)
    shard, hidden = 1024 * 8192 * 2, 4096 * 8192 * 2
    fc2_input, fc1_output = 4096 * 7168 * 2, 4096 * 14336 * 2
    saved = 2 * 4 * layer - fc2_input - fc1_output
    embedding_ids = 2 * 4096 * (8 + 1)
    fc1_backward = fc1_output + hidden + shard + 14336 * 8192 * 2
    held = hidden + 4096 * 128 * 4 + shard + 12  # all-gather buffer, rope table, received gradient
    assert activation_peak(case) == saved + embedding_ids + fc1_backward + held == 2_780_962_828


@pytest.mark.parametrize("num_microbatches", [1, 3])
def test_interleaving_refuses_microbatch_counts_that_megatron_refuses(num_microbatches) -> None:
    case = TOY.changed(**parallel(pp=2, vpp=2), num_microbatches=num_microbatches)
    with pytest.raises((ValueError, RuntimeError), match="micro-batch"):
        activation_peak(case)


def test_endless_replay_of_a_biased_mlp_is_refused() -> None:
    case = TOY.changed(add_bias_linear=True, **selective("mlp"))
    with pytest.raises(ValueError, match="replays for ever"):
        activation_peak(case)


def test_the_environment_leaves_torch_as_it_was() -> None:
    import torch

    before = torch.cuda.current_device, torch.UntypedStorage.resize_
    activation_peak(TOY)
    assert (torch.cuda.current_device, torch.UntypedStorage.resize_) == before
    assert not torch.distributed.is_initialized()
    assert torch.get_default_dtype() == torch.float32
