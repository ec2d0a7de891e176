"""A chunk is its layers and its ends: kept bytes add up, the peak is one block's above the rest."""

import pytest

from advisor.frameworks.megatron.plan import chunk_plan
from advisor.frameworks.megatron.setting import NONE, Method, full, parse_setting, selective
from advisor.layers.shape import RankShape
from advisor.layers.transformer import embedding_operators, head_operators, transformer_layer
from advisor.memory.chunk import AttentionMask, ChunkFootprint, chunk_footprint
from advisor.memory.liveness import footprint
from advisor.models.layer_kind import DENSE
from advisor.plan.recompute_plan import ON_HOST, RecomputePlan, Segment
from tests.advisor.toys import ACTIVATED, GPT, HIDDEN, SHARD, toy_shape

MASK = 2 * 32 * 32


def chunk(
    shape: RankShape,
    spec: str = "none",
    layers: int = 3,
    *,
    first: bool = False,
    last: bool = False,
    mask: int = 0,
) -> ChunkFootprint:
    plan = chunk_plan(parse_setting(spec), shape.model, (DENSE,) * layers, shape.sequence_parallel)
    return chunk_footprint(shape, plan, first, last, AttentionMask(mask))


LAYER = footprint(transformer_layer(toy_shape()), ())


def test_kept_bytes_are_those_of_the_layers_and_ends() -> None:
    shape = toy_shape()
    ends = footprint(embedding_operators(shape), ()).kept, footprint(head_operators(shape), ()).kept
    assert chunk(shape).kept == 3 * LAYER.kept
    assert chunk(shape, first=True).kept == 3 * LAYER.kept + ends[0]
    assert chunk(shape, last=True).kept == 3 * LAYER.kept + ends[1]
    assert chunk(shape, first=True, last=True).kept == 3 * LAYER.kept + sum(ends)


def test_a_chunk_may_be_empty_or_have_ends_alone() -> None:
    """The gradient that a stage receives stays to the end, next to what is gathered of it."""
    empty = chunk(toy_shape(), layers=0)
    assert (empty.kept, empty.forward.num_bytes, empty.left) == (0, 0, 0)
    alone = footprint(embedding_operators(toy_shape()), ())
    assert alone.held_backward.num_bytes == alone.backward.num_bytes + SHARD
    assert (
        chunk(toy_shape(), layers=0, first=True).backward.num_bytes == alone.held_backward.num_bytes
    )


def test_the_last_layer_is_the_peak_of_a_middle_chunk() -> None:
    result = chunk(toy_shape())
    assert result.forward.num_bytes == 2 * LAYER.kept + LAYER.forward.num_bytes
    assert result.backward.num_bytes == 2 * LAYER.kept + LAYER.held_backward.num_bytes
    assert result.backward.point == f"{LAYER.held_backward.point} in a layer"


def test_the_head_is_the_peak_of_a_last_chunk_with_a_large_vocabulary() -> None:
    """At the output layer's weight gradient: the hidden state's gradient before and after the
    reduce-scatter, the 16-bit logits' gradient, the weight's."""
    shape = toy_shape(vocab_size=8000, seq_length=16)
    head = footprint(head_operators(shape), ())
    logits = 16 * 2 * 4000
    hidden = HIDDEN // 2
    kept_at_the_end = 2 * hidden // 2 + 8 * 2 * 4
    assert head.backward.point == "backward of output_layer"
    assert head.backward.num_bytes == kept_at_the_end + (2 * logits) + hidden + hidden // 2 + (
        4000 * 64 * 2
    )
    layer = footprint(transformer_layer(shape), ())
    result = chunk(shape, last=True)
    assert result.backward.num_bytes == 3 * layer.kept + head.backward.num_bytes
    assert result.backward.point == "backward of output_layer"


@pytest.mark.parametrize("number", [1, 3])
def test_a_checkpoint_keeps_its_input_and_replays_all_its_layers(number: int) -> None:
    result = chunk(toy_shape(), f"full:uniform:{number}")
    checkpoints = 3 // number
    assert result.kept == checkpoints * SHARD
    # the other checkpoints' inputs, all layers but the last, the last one and the replayed output
    below = (checkpoints - 1) * SHARD + (number - 1) * LAYER.kept
    assert result.backward.num_bytes == below + LAYER.held_backward.num_bytes + SHARD


def test_a_block_keeps_inputs_of_the_first_layers_and_all_of_the_others() -> None:
    """The peak is in the second checkpoint: next to its layer the first one's input, the replayed
    output and the received gradient."""
    result = chunk(toy_shape(), "full:block:2")
    assert result.kept == 2 * SHARD + LAYER.kept
    assert result.backward.num_bytes == 3 * SHARD + LAYER.held_backward.num_bytes


def test_equal_checkpoints_are_distinguished_by_their_place() -> None:
    """Only the last one's incoming gradient is the received one; below it waits too."""
    one, two = (chunk(toy_shape(), "full:uniform:1", layers).backward for layers in (1, 2))
    assert two.num_bytes == one.num_bytes + SHARD


def test_distributed_inputs_are_cut_by_tensor_parallelism() -> None:
    shape = toy_shape(sequence_parallel=False)
    plan = chunk_plan(full(Method.UNIFORM, 1, distribute=True), shape.model, (DENSE,) * 3, False)
    assert chunk_footprint(shape, plan, False, False).kept == 3 * HIDDEN // 2


def test_replayed_mlp_saves_its_two_tensors() -> None:
    freed = chunk(toy_shape()).kept - chunk(toy_shape(), "selective:mlp").kept
    assert freed == 3 * (3 * ACTIVATED)


@pytest.mark.parametrize(
    ("spec", "kept"),
    [
        ("none", 0),
        ("selective:mlp", 0),
        ("selective:core_attn", MASK),
        ("full:uniform:1", MASK),
        ("full:block:1", MASK),
    ],
)
def test_the_attention_mask_stays_where_a_checkpoint_takes_it(spec: str, kept: int) -> None:
    with_mask, without = (chunk(toy_shape(), spec, mask=mask) for mask in (MASK, 0))
    assert with_mask.kept - without.kept == kept
    assert with_mask.forward.num_bytes - without.forward.num_bytes == MASK
    assert with_mask.backward.num_bytes - without.backward.num_bytes == kept


def test_a_tied_output_layer_waits_for_the_embedding() -> None:
    """The layers' peak has the words' gradient next to it, and in the end three of it meet."""
    tied = toy_shape(share_embeddings_and_output_weights=True, vocab_size=8)
    untied = toy_shape(vocab_size=8)
    words = 16 // 2 * 64 * 2  # padded to a multiple of 8 on each of two ranks
    gap = (
        chunk(tied, first=True, last=True).backward.num_bytes
        - chunk(untied, first=True, last=True).backward.num_bytes
    )
    assert gap == words
    large = {
        "share_embeddings_and_output_weights": True,
        "vocab_size": 100_000,
        "seq_length": 8,
        "micro_batch_size": 1,
    }
    result = chunk(toy_shape(**large), "full:uniform:1", 1, first=True, last=True).backward
    assert result.num_bytes == 3 * 50_000 * 64 * 2
    assert result.point == "sum of the tied gradients"
    te = {"gradient_accumulation_fusion": True, "transformer_impl": "transformer_engine"}
    fused = toy_shape(**large, **te)
    assert chunk(fused, layers=1, first=True, last=True).backward.num_bytes < result.num_bytes


@pytest.mark.parametrize("shape", [toy_shape(), toy_shape(GPT)], ids=["llama", "gpt"])
@pytest.mark.parametrize("spec", ["none", "selective:mlp", "full:uniform:2", "full:block:1"])
def test_peaks_are_never_below_what_is_kept(shape: RankShape, spec: str) -> None:
    result = chunk(shape, spec, first=True, last=True)
    assert result.forward.num_bytes >= result.kept
    assert result.backward.num_bytes > 0


def test_recompute_is_worth_nothing_where_it_replays_nothing() -> None:
    te = toy_shape(transformer_impl="transformer_engine")
    plan = chunk_plan(selective("layernorm"), te.model, (DENSE,) * 3, True)
    assert chunk_footprint(te, plan, False, False) == chunk_footprint(
        te, chunk_plan(NONE, te.model, (DENSE,) * 3, True), False, False
    )


def test_a_variable_holds_the_embedding_next_to_layers_that_do_not_keep_it() -> None:
    shape = toy_shape(transformer_impl="transformers", sequence_parallel=False)
    plan = RecomputePlan((Segment((DENSE,), whole=True, copies=3, input=ON_HOST),))
    first, middle = (chunk_footprint(shape, plan, ends, False).forward for ends in (True, False))
    embedding = footprint(embedding_operators(shape), ()).kept
    assert first.num_bytes == middle.num_bytes + embedding + HIDDEN
    assert first.point == middle.point == "multiply in a checkpoint of 1 layer"
