"""The backward of a microbatch next to the forward of another."""

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.frameworks.megatron.buffers import stream_pools
from advisor.frameworks.megatron.setting import NONE
from advisor.hardware.calibration import load_calibration
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.operators import Module
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, embedding_operators, transformer_layer
from advisor.memory.chunk import ChunkFootprint
from advisor.memory.events import Peak
from advisor.memory.liveness import footprint
from advisor.memory.overlap import layers_backward, more_in_turns, overlapped
from advisor.models.layer_kind import DENSE, FeedForward, LayerKind
from advisor.models.options import FlexBackend, TokenDispatcher
from advisor.models.presets import load_model
from advisor.plan.recompute_plan import RecomputePlan, Segment, kept_tensors
from advisor.search.evaluate import Evaluator
from tests.advisor.jobs import evaluator_of, job_config, job_of, parallel

MOE = LayerKind(feed_forward=FeedForward.MOE)
SHAPE = RankShape(
    model=replace(load_model("mixtral_8x7b"), moe_permute_fusion=True),
    seq_length=1024,
    micro_batch_size=1,
    expert_model_parallel_size=4,
)
HIDDEN = 1024 * 4096 * 2


def plan(kind: LayerKind) -> RecomputePlan:
    return RecomputePlan((Segment((kind,), copies=4),))


def test_layers_have_more_and_the_ends_a_hidden_state() -> None:
    """30 bytes above the highest layer, or a hidden state above the head, whichever is more."""
    ends = (True, True)
    layers = layers_backward(SHAPE, plan(MOE), *ends).num_bytes
    low, high = (
        ChunkFootprint(kept=50, forward=Peak(55), backward=Peak(layers + n - HIDDEN, "loss"))
        for n in (29, 31)
    )
    assert overlapped(low, SHAPE, plan(MOE), ends, 30).backward.num_bytes == layers + 30
    assert overlapped(high, SHAPE, plan(MOE), ends, 30).backward == Peak(layers + 31, "loss")


def test_a_layer_goes_back_next_to_all_that_is_kept() -> None:
    """Of four layers and the embedding, whichever layer runs; nothing of head and loss."""
    found = layers_backward(SHAPE, plan(MOE), True, True)
    layer = footprint(transformer_layer(SHAPE, MOE), ())
    embedding = footprint(embedding_operators(SHAPE), ())
    assert found.num_bytes == 3 * layer.kept + embedding.kept + layer.backward.num_bytes
    received = layers_backward(SHAPE, plan(MOE), True, False)
    assert received.num_bytes == found.num_bytes + HIDDEN


def test_attention_of_one_is_kept_while_the_experts_of_the_other_go_back() -> None:
    """By hand, Mixtral's widths on EP 4, two experts a rank: what the router and all before it
    keep, and the gradient [2048, 4096] of the experts' output, which the schedule holds."""
    operators = transformer_layer(SHAPE, MOE)
    cut = [o.name for o in operators].index("dispatch_all_to_all")
    kept = {t.storage.name: t.storage.num_bytes for o in operators[:cut] for t in o.saved}
    assert LAYER_INPUT in kept
    output = 2048 * 4096 * 2
    assert more_in_turns(SHAPE, (plan(MOE),), delayed=False) == sum(kept.values()) + output
    (fc2,) = [o for o in operators if o.module is Module.EXPERT_FC2]
    saved = fc2.saved[0].num_bytes
    delayed = more_in_turns(SHAPE, (plan(MOE),), delayed=True)
    assert delayed == sum(kept.values()) + output + saved


def test_a_small_layer_goes_back_next_to_all_that_large_experts_need() -> None:
    """The most that the forward of any layer has, less what the dense layer has done with: all but
    what its first half keeps, and two gradients of hidden states, which go on."""
    narrow = replace(SHAPE, model=replace(SHAPE.model, ffn_hidden_size=64))
    found = more_in_turns(narrow, (plan(MOE), plan(DENSE)), delayed=False)
    experts, dense = (footprint(transformer_layer(narrow, kind), ()) for kind in (MOE, DENSE))
    operators = transformer_layer(narrow, DENSE)
    cut = [o.module for o in operators].index(Module.PRE_MLP_LAYERNORM)
    kept = {
        t.storage.name: t.storage.num_bytes
        for o in operators[:cut]
        for t in (*o.saved, *o.inputs)
        if t.storage.name in kept_tensors(operators, ())
    }
    gone = dense.backward.num_bytes - sum(kept.values()) - 2 * HIDDEN
    assert found == experts.forward.num_bytes - gone


def test_the_exchange_has_a_pool_of_its_own() -> None:
    """By hand: two experts for each of 1024 tokens, 4096 wide, with a probability each."""
    chunks = (ModelChunk((MOE, DENSE)),)
    (pool,) = stream_pools(SHAPE, chunks, overlaps_exchange=True)
    assert pool.num_bytes == 2048 * (4096 * 2 + 2)
    assert stream_pools(SHAPE, chunks) == ()
    assert stream_pools(SHAPE, (ModelChunk((DENSE,)),), overlaps_exchange=True) == ()


def test_a_dense_layer_is_cut_after_its_attention() -> None:
    operators = transformer_layer(SHAPE, DENSE)
    cut = [o.module for o in operators].index(Module.PRE_MLP_LAYERNORM)
    kept = {t.storage.name: t.storage.num_bytes for o in operators[:cut] for t in o.saved}
    assert more_in_turns(SHAPE, (plan(DENSE),), delayed=False) >= sum(kept.values())


@pytest.mark.parametrize("vocabulary", [512, 262_144])
def test_a_job_with_overlap_needs_more_unless_its_head_hides_it(vocabulary: int) -> None:
    job = job_of(
        replace(load_model("mixtral_8x7b"), num_layers=4, vocab_size=vocabulary),
        ParallelLayout(data_parallel_size=8, expert_model_parallel_size=8),
        job_config(4096, 1, 32, framework="megatron_lm"),
    )
    plain, both = (
        Evaluator(replace(job, layout=layout), load_calibration(job.gpu)).stage_detail(NONE, 0)
        for layout in (job.layout, replace(job.layout, overlap_moe_expert_parallel_comm=True))
    )
    more = both.activations.backward - plain.activations.backward
    hidden = 4096 * 4096 * 2
    assert more == hidden if vocabulary > 512 else more > 4 * hidden


@pytest.mark.parametrize(("version", "held"), [("0.16", True), ("0.17", False)])
def test_tokens_in_16_bits_with_their_copy_in_8(version: str, *, held: bool) -> None:
    """HybridEP's, which experts get as they arrive: 0.16 holds them to the backward."""
    job = job_of(
        replace(
            load_model("mixtral_8x7b"),
            num_layers=4,
            moe_token_dispatcher_type=TokenDispatcher.FLEX,
            moe_flex_dispatcher_backend=FlexBackend.HYBRIDEP,
        ),
        ParallelLayout(**parallel(dp=8, ep=8), overlap_moe_expert_parallel_comm=True),
        job_config(
            *(4096, 1, 32),
            precision=Precision.FP8_CURRENT,
            framework="megatron_lm",
            framework_version=version,
        ),
    )
    shape = evaluator_of(job).shape
    kept = kept_tensors(transformer_layer(shape, MOE), ())
    assert kept["expert_tokens_fp8_current"].num_bytes == 4096 * 2 * 4096
    assert ("expert_tokens" in kept) is held
