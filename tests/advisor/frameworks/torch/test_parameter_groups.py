"""What FSDP2 gathers and reduces during the blocks: exact bytes of a toy of two layers."""

import pytest
from msgspec.structs import replace

import advisor
from advisor.base.dtypes import DType
from advisor.base.units import GIB
from advisor.frameworks.torch.parameter_groups import (
    Part,
    Sharding,
    fsdp_static,
    fsdp_working_set,
    stream_pools,
)
from advisor.layers.shape import RankShape
from advisor.memory.chunk import chunk_footprint
from advisor.memory.static import layer_elements
from advisor.memory.working_set import WorkingSet
from advisor.models.layer_kind import DENSE
from advisor.models.options import TransformerImpl
from advisor.models.presets import load_model
from advisor.plan.recompute_plan import RecomputePlan, Segment
from tests.advisor.toys import toy_model

TOY = toy_model(
    *(2, 8, 16, 2, 1),
    vocab_size=32,
    max_position_embeddings=64,
    make_vocab_size_divisible_by=1,
    transformer_impl=TransformerImpl.TORCH,
)
SHAPE = RankShape(model=TOY, seq_length=4, micro_batch_size=1)
LAYER = 2 * 8 + 8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 8 * 16
EMBEDDING = 32 * 8
HEAD = 8 + 32 * 8
TOTAL = 2 * LAYER + EMBEDDING + HEAD
EIGHT = Sharding(ranks=8)
WHOLE = Part(TOTAL, TOTAL)


def test_the_toy() -> None:
    assert layer_elements(SHAPE) == LAYER


def test_groups_of_their_own() -> None:
    found = fsdp_working_set(SHAPE, EIGHT)
    assert found.layer.entry == 3 * 2 * LAYER
    assert found.layer.forward == 2 * 2 * LAYER
    assert found.layer.backward == 2 * 2 * LAYER + 4 * LAYER
    assert found.first_layer.backward == 2 * LAYER + 2 * EMBEDDING + 4 * LAYER
    assert found.last_layer.backward == 2 * 2 * LAYER + 4 * HEAD
    assert found.embedding.forward == 2 * 2 * EMBEDDING
    assert found.head.forward == 2 * 2 * HEAD
    assert found.head.backward == 2 * HEAD + 2 * LAYER
    assert found.loss.backward == 2 * HEAD
    assert found.layer.left == LAYER // 8 * 4
    assert found.step == TOTAL // 8 * 4


def test_a_root_with_the_ends_stays_gathered() -> None:
    found = fsdp_working_set(SHAPE, replace(EIGHT, root_holds_ends=True))
    root = 2 * (EMBEDDING + HEAD)
    assert found.loss.forward == root
    assert found.layer.backward == 2 * 2 * LAYER + 4 * LAYER + root + 2 * HEAD
    assert found.last_layer.backward == 2 * 2 * LAYER + root + 2 * HEAD


def test_tied_embeddings_are_the_roots() -> None:
    tied = replace(SHAPE, model=replace(TOY, share_embeddings_and_output_weights=True))
    assert fsdp_working_set(tied, EIGHT).loss.forward == 2 * (EMBEDDING + 8)


def test_without_resharding_parameters_are_static_and_come_and_go_with_their_group() -> None:
    never = replace(EIGHT, reshards=False)
    assert fsdp_static(WHOLE, never).weights == TOTAL // 8 * 4 + 2 * TOTAL
    found = fsdp_working_set(SHAPE, never)
    assert found.layer.backward == 4 * LAYER
    assert (found.layer.left, found.layer.stays) == (LAYER // 8 * 4, 2 * LAYER)
    assert (found.embedding.stays, found.head.stays) == (2 * EMBEDDING, 2 * HEAD)
    assert found.loss.backward == 0
    assert found.step == TOTAL // 8 * 4 - 2 * TOTAL
    root = fsdp_working_set(SHAPE, replace(never, root_holds_ends=True))
    assert (root.embedding.stays, root.head.stays) == (2 * (EMBEDDING + HEAD), 0)


@pytest.mark.parametrize(
    ("options", "gradients"),
    [
        ({}, 0),
        ({"accumulates": True}, TOTAL // 8 * 4),
        ({"accumulates": True, "accumulates_whole": True}, 4 * TOTAL),
        ({"accumulates": True, "accumulates_whole": True, "reduce_dtype": DType.BF16}, 2 * TOTAL),
    ],
)
def test_gradients_of_earlier_microbatches(options: dict[str, object], gradients: int) -> None:
    static = fsdp_static(WHOLE, replace(EIGHT, **options))
    assert static.gradients == gradients
    assert static.weights == TOTAL // 8 * 4
    assert static.optimizer == 2 * TOTAL // 8 * 4


def test_streams_keep_the_largest_group_and_the_shards() -> None:
    assert stream_pools(SHAPE, EIGHT) == 2 * LAYER + 4 * LAYER + TOTAL // 8 * 4
    accumulating = replace(EIGHT, accumulates=True)
    assert stream_pools(SHAPE, accumulating) == 2 * LAYER + 4 * LAYER
    assert stream_pools(SHAPE, Sharding(ranks=1, divides=True)) == 4 * TOTAL + 4 * LAYER


@pytest.mark.parametrize(("recompute", "peaks"), [("none", (61.85, 80)), ("full", (52.14, 67.8))])
def test_torchs_allocator_without_a_gpu(recompute: str, peaks: tuple[float, float]) -> None:
    """As tests/oracles/no_gpu ran it, and a context: gradients lie on the reductions' stream."""
    job = {"gpus": "1xH200", "framework": "torchtitan", "framework_version": "0.3"}
    sizes = {"seq_length": 8192, "micro_batch_size": 1, "global_batch_size": 1}
    ten = replace(load_model("llama3_8b"), num_layers=10)
    row = advisor.evaluate(recompute, model=ten, **job, **sizes)  # type: ignore[arg-type]
    assert row.peak_allocated_bytes / GIB == pytest.approx(peaks[0], rel=1e-4)
    assert row.peak_reserved_bytes / GIB == pytest.approx(peaks[1], rel=0.015)


def test_a_chunk_is_raised_by_what_is_next_to_it() -> None:
    plan = RecomputePlan((Segment((DENSE,), copies=2),))
    alone = chunk_footprint(SHAPE, plan, True, True)
    beside = chunk_footprint(SHAPE, plan, True, True, working_set=fsdp_working_set(SHAPE, EIGHT))
    assert beside.kept == alone.kept
    assert beside.forward.num_bytes > alone.forward.num_bytes
    found = fsdp_working_set(SHAPE, EIGHT)
    assert beside.backward.num_bytes >= alone.backward.num_bytes + found.loss.backward
    # nothing is gathered or reduced where there is nothing to hide it
    assert (
        chunk_footprint(SHAPE, plan, True, True, working_set=WorkingSet()).forward == alone.forward
    )
