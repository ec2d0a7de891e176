"""What stays from forward to backward under replayed runs, on operators small enough to see."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.base.dtypes import DType
from advisor.frameworks.megatron.plan import chunk_plan, selective_runs
from advisor.frameworks.megatron.setting import (
    NONE,
    Method,
    RecomputeSetting,
    full,
    parse_setting,
    selective,
)
from advisor.layers.operators import Module, Tensor
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.memory.chunk import chunk_footprint
from advisor.models.layer_kind import DENSE
from advisor.plan.recompute_plan import RecomputePlan, ReplayRun, Segment, assign_runs, kept_tensors
from tests.advisor.toys import GPT, KEY, LLAMA, LSE, MIXED, SHARD, A, B, C, D, operator, toy_shape

INNER = Tensor("inner", (7,), DType.BOOL)
CHAIN = (
    operator("first", (A,), (B,), saved=(A,), module=Module.INPUT_LAYERNORM),
    operator("second", (B,), (C,), saved=(B, INNER), module=Module.LINEAR_FC1),
    operator("third", (C,), (D,), saved=(C, D), module=Module.LINEAR_FC2),
)


def kept(*runs: ReplayRun) -> set[str]:
    return set(kept_tensors(CHAIN, runs))


def test_without_runs_everything_saved_is_kept() -> None:
    assert kept() == {"a", "b", "inner", "c", "d"}


def test_a_run_keeps_what_it_reads_from_outside() -> None:
    middle = ReplayRun(frozenset({Module.LINEAR_FC1}))
    assert kept(middle) == {"a", "b", "c", "d"}  # c is its output and third's own
    both = ReplayRun(frozenset({Module.LINEAR_FC1, Module.LINEAR_FC2}))
    assert kept(both) == {"a", "b"}


def test_a_discarded_output_is_dropped_where_its_reader_keeps_it() -> None:
    norm = ReplayRun(
        frozenset({Module.INPUT_LAYERNORM}), discards_output=True, replayed_before=Module.LINEAR_FC2
    )
    assert kept(norm) == {"a", "inner", "c", "d"}


def test_a_view_keeps_its_storage_once() -> None:
    base = Tensor("base", (50,), DType.BF16)
    first, second = base.view("x", (10,)), base.view("y", (20,))
    reader = operator("reader", (first, second), (C,), saved=(first, second))
    assert kept_tensors((reader,), ()) == {"base": base}
    run = ReplayRun(frozenset({Module.ACTIVATION}))
    assert kept_tensors((reader,), (run,)) == {"base": base}


def test_assignment_of_operators_to_runs() -> None:
    run = ReplayRun(frozenset({Module.LINEAR_FC1}))
    assert assign_runs(CHAIN, (run,)) == (None, run, None)


def test_a_plan_counts_its_layers() -> None:
    assert (
        RecomputePlan((Segment((DENSE,) * 3, whole=True), Segment((DENSE,), copies=5))).num_layers
        == 8
    )


@pytest.mark.parametrize(
    ("spec", "sizes", "whole"),
    [
        ("none", [1] * 8, [False] * 8),
        ("full:uniform:1", [1] * 8, [True] * 8),
        ("full:uniform:4", [4, 4], [True, True]),
        ("full:uniform:3", [3, 3, 2], [True] * 3),
        ("full:uniform:20", [8], [True]),
        ("full:block:2", [1] * 8, [True] * 2 + [False] * 6),
        ("full:block:8", [1] * 8, [True] * 8),
        ("full:block:20", [1] * 8, [True] * 8),
    ],
)
def test_segments_of_a_chunk_of_eight_layers(spec, sizes, whole) -> None:
    segments = chunk_plan(parse_setting(spec), LLAMA, (DENSE,) * 8, True).segments
    assert [s.num_layers for s in segments for _ in range(s.copies)] == sizes
    assert [s.whole for s in segments for _ in range(s.copies)] == whole
    assert sum(s.total_layers for s in segments) == 8


def test_distributed_inputs_need_tensor_parallelism_without_sequence_parallelism() -> None:
    setting = full(Method.UNIFORM, 1, distribute=True)
    assert all(s.shards_input for s in chunk_plan(setting, LLAMA, (DENSE,) * 2, False).segments)
    assert not any(s.shards_input for s in chunk_plan(setting, LLAMA, (DENSE,) * 2, True).segments)


def layer_kept(shape: RankShape, setting: RecomputeSetting) -> int:
    plan = chunk_plan(setting, shape.model, (DENSE,), shape.sequence_parallel)
    return chunk_footprint(shape, plan, False, False).kept


def test_core_attention_recompute_buys_the_log_sum_exp_under_flash() -> None:
    shape = toy_shape()
    assert layer_kept(shape, NONE) - layer_kept(shape, selective("core_attn")) == LSE - 4


def test_core_attention_recompute_keeps_more_on_transformer_engine() -> None:
    """The checkpoint keeps the view of V and with it mixed_qkv, instead of a contiguous V."""
    te = {"transformer_impl": "transformer_engine", "attention_backend": "fused"}
    shape = toy_shape(**te)
    more = layer_kept(shape, selective("core_attn")) - layer_kept(shape, NONE)
    assert more == MIXED - KEY - LSE + 4 > 0


def test_layernorm_recompute_drops_both_outputs_and_keeps_the_statistics_out() -> None:
    shape = toy_shape()
    freed = layer_kept(shape, NONE) - layer_kept(shape, selective("layernorm"))
    rstd = 16 * 2 * 4
    assert freed == 2 * SHARD + 2 * rstd
    te = toy_shape(transformer_impl="transformer_engine", attention_backend="fused")
    assert selective_runs(selective("layernorm"), te.model) == ()


SHAPES = st.builds(
    toy_shape,
    st.sampled_from([LLAMA, GPT]),
    tensor_model_parallel_size=st.sampled_from([2, 4, 8]),
    sequence_parallel=st.booleans(),
    micro_batch_size=st.integers(1, 3),
    seq_length=st.sampled_from([16, 32, 64]),
    attention_backend=st.sampled_from(["flash", "unfused"]),
    attention_softmax_in_fp32=st.booleans(),
    bias_activation_fusion=st.booleans(),
    qk_layernorm=st.booleans(),
)
MODULES = ("core_attn", "mlp", "layernorm")


@settings(max_examples=60, deadline=None)
@given(
    shape=SHAPES, fewer=st.sets(st.sampled_from(MODULES)), more=st.sets(st.sampled_from(MODULES))
)
def test_more_recompute_never_keeps_more_on_local_layers(shape, fewer, more) -> None:
    """All but 4 bytes of core_attn's checkpoint: where flash attention's log-sum-exp is smaller."""
    none, some = layer_kept(shape, NONE), layer_kept(shape, selective(*sorted(fewer)))
    most = layer_kept(shape, selective(*sorted(fewer | more)))
    whole = layer_kept(shape, full(Method.UNIFORM, 1))
    assert whole <= most <= some + 4 <= none + 8


@settings(max_examples=30, deadline=None)
@given(shape=SHAPES, layers=st.integers(1, 6), number=st.integers(1, 6))
def test_recomputing_more_layers_never_keeps_more(shape, layers, number) -> None:
    def chunk(setting: RecomputeSetting) -> int:
        plan = chunk_plan(setting, shape.model, (DENSE,) * layers, shape.sequence_parallel)
        return chunk_footprint(shape, plan, False, False).kept

    block, next_block = (full(Method.BLOCK, n) for n in (number, number + 1))
    uniform, next_uniform = (full(Method.UNIFORM, n) for n in (1, number))
    assert chunk(next_block) <= chunk(block) <= chunk(NONE)
    assert chunk(next_uniform) <= chunk(uniform) <= chunk(NONE)


@settings(max_examples=30, deadline=None)
@given(
    model=st.sampled_from([LLAMA, GPT]),
    spec=st.sampled_from(
        ["none", "selective:mlp", "selective:layernorm", "full:uniform:1", "full:uniform:2"]
    ),
    impl=st.sampled_from(["local", "transformer_engine"]),
)
def test_a_higher_tp_never_raises_activations_under_sequence_parallelism(model, spec, impl) -> None:
    """While TP divides the query groups: beyond, every rank holds the whole mixed_qkv."""
    peaks, kept_bytes = [], []
    for tp in (1, 2, 4):
        shape = toy_shape(
            model,
            tensor_model_parallel_size=tp,
            sequence_parallel=tp > 1,
            transformer_impl=impl,
            attention_backend="flash",
            seq_length=64,
        )
        plan = chunk_plan(parse_setting(spec), shape.model, (DENSE,) * 2, shape.sequence_parallel)
        chunk = chunk_footprint(shape, plan, False, False)
        kept_bytes.append(chunk.kept)
        peaks.append(chunk.backward.num_bytes)
    assert kept_bytes == sorted(kept_bytes, reverse=True)
    assert peaks == sorted(peaks, reverse=True)


def test_kept_tensors_of_a_real_layer_sum_to_the_footprint() -> None:
    shape = toy_shape()
    for setting in (NONE, selective("mlp"), selective(*MODULES)):
        runs = selective_runs(setting, shape.model)
        tensors = kept_tensors(transformer_layer(shape), runs).values()
        small = sum(run.extra_kept_bytes for run in runs)
        assert sum(t.num_bytes for t in tensors) + small == layer_kept(shape, setting)
