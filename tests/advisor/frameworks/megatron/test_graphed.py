"""Bytes of CUDA graphs: their pool, their inputs, and what is next to them."""

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.frameworks.megatron.graphed import graph_buffers, graph_capture, graph_inputs
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.setting import NONE
from advisor.job.job import CudaGraphImpl, Job
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.operators import LAYER_INPUT, Module, PoolSide
from advisor.layers.transformer import one_side, transformer_layer
from advisor.models.layer_kind import DENSE, FeedForward, LayerKind
from advisor.models.options import TokenDispatcher
from advisor.models.presets import load_model
from advisor.plan.recompute_plan import kept_tensors
from advisor.search.job_memory import StageDetail
from advisor.search.rank_shape import rank_shape
from tests.advisor.jobs import evaluator_of, job_config, job_of, parallel

JOB = job_of(
    replace(load_model("llama3_8b"), num_layers=4),
    ParallelLayout(pipeline_model_parallel_size=2, data_parallel_size=4),
    job_config(4096, 2, 32, framework="megatron_lm"),
)


SHAPE = rank_shape(JOB)
MOE = LayerKind(feed_forward=FeedForward.MOE)
ENDS = (ModelChunk((DENSE, DENSE), embedding=True),)
NEWEST = resolve_revision("megatron_lm", "0.19")


def detail(impl: CudaGraphImpl, *modules: str) -> StageDetail:
    config = replace(JOB.config, cuda_graph_impl=impl, cuda_graph_modules=modules)
    job = replace(JOB, config=config)
    return evaluator_of(job).stage_detail(NONE, 0)


def inputs(job: Job, kind: LayerKind = DENSE, layers: int = 1) -> int:
    return graph_inputs(job.config, rank_shape(job), (kind,) * layers)


def graphed(impl: CudaGraphImpl, *modules: str, job: Job = JOB) -> Job:
    config = replace(job.config, cuda_graph_impl=impl, cuda_graph_modules=modules)
    return replace(job, config=config)


HIDDEN = 4096 * 2 * 4096 * 2
MASK = 2 * 4096 * 4096
ENGINE = CudaGraphImpl.TRANSFORMER_ENGINE
LOCAL = CudaGraphImpl.LOCAL
WHOLE = CudaGraphImpl.FULL_ITERATION


@pytest.mark.parametrize(
    ("modules", "each"),
    [((), HIDDEN + MASK), (("attn", "mlp"), HIDDEN + MASK), (("mlp",), HIDDEN), (("moe",), 0)],
)
def test_inputs_of_a_layer(modules: tuple[str, ...], each: int) -> None:
    """Hidden states [4096, 2, 4096] and bools [2, 1, 4096, 4096] by hand, for a layer that is
    held."""
    assert inputs(graphed(ENGINE, *modules), layers=3) == 3 * each


def test_inputs_are_cut_as_the_layers_are() -> None:
    layout = replace(JOB.layout, **parallel(tp=2, sp=True, cp=2, dp=1))
    job = replace(graphed(ENGINE), layout=layout)
    assert inputs(job) == HIDDEN // 4 + MASK // 2


def test_graphs_of_megatrons_own_have_no_inputs_of_their_own() -> None:
    assert inputs(graphed(LOCAL)) == inputs(graphed(WHOLE)) == 0


def test_a_graph_of_the_step_keeps_its_pool_while_the_optimizer_runs() -> None:
    """By hand: what the passes need, the optimizer's step, and the batches of four microbatches of
    two sequences, 28 bytes a token and 4096 of its row of the mask."""
    config = replace(JOB.config, main_grads_dtype=DType.BF16)
    without, found = (
        evaluator_of(job).stage_detail(NONE, 0)
        for job in (replace(JOB, config=config), graphed(WHOLE, job=replace(JOB, config=config)))
    )
    step, batches = without.fixed.optimizer_step, 4 * 2 * 4096 * (28 + 4096)
    assert step > 0
    assert found.reserved.allocated - without.reserved.allocated == step + batches
    unmasked = replace(JOB, config=replace(config, create_attention_mask=False))
    assert graph_buffers(graphed(WHOLE, job=unmasked), SHAPE, ENDS, NEWEST) == 4 * 2 * 4096 * 28
    assert graph_buffers(graphed(WHOLE), SHAPE, (ModelChunk((DENSE,)),), NEWEST) == 0


def test_outputs_of_megatrons_own_graphs_stay_before_0_19() -> None:
    """Two layers, four microbatches, two of them in flight."""
    older = resolve_revision("megatron_lm", "0.18")
    assert graph_buffers(graphed(LOCAL), SHAPE, ENDS, older) == 2 * 2 * HIDDEN
    assert graph_buffers(graphed(LOCAL), SHAPE, ENDS, NEWEST) == 0
    assert graph_buffers(graphed(ENGINE), SHAPE, ENDS, NEWEST) == HIDDEN


@pytest.mark.parametrize(("release", "hidden"), [("2.19", 3), ("2.20", 1)])
def test_before_2_20_transformer_engine_holds_the_last_graphs_tensors(release, hidden) -> None:
    config = replace(JOB.config, transformer_engine_version=release)
    job = graphed(ENGINE, job=replace(JOB, config=config))
    assert graph_buffers(job, SHAPE, ENDS, NEWEST) == hidden * HIDDEN


@pytest.mark.parametrize(
    ("modules", "hidden", "pairs"),
    [("attn", 1, 0), ("attn moe_router", 3, 8), ("attn moe_router moe_preprocess", 4, 2)],
)
def test_gradients_of_what_graphs_hand_over(modules: str, hidden: int, pairs: int) -> None:
    """Hidden states, tokens as they are or permuted to two experts each, probabilities of 16 bits;
    and of dense layers. As Transformer Engine 2.20.2's make_graphed_callables allocates them for
    ranks of megatron-core 0.16.1, whose graphs were none: without a GPU."""
    job = graphed(ENGINE, *modules.split(), job=replace(JOB, model=load_model("mixtral_8x7b")))
    chunks = (ModelChunk((DENSE, MOE, MOE)), ModelChunk((MOE,)))
    found = graph_buffers(job, rank_shape(job), chunks, resolve_revision("megatron_lm", "0.16"))
    assert found == hidden * HIDDEN + 4096 * 2 * pairs * 2
    assert graph_capture(graphed(LOCAL, "attn", job=job)) == graph_capture(graphed(LOCAL, job=job))


@pytest.mark.parametrize("modules", [("attn",), ("mlp",), ()])
def test_both_sides_are_the_whole_except_what_graphs_hand_over(modules: tuple[str, ...]) -> None:
    """Of each layer its input is copied where another side writes it, and what a graph hands to
    others stays: everything else is kept once."""
    capture = graph_capture(graphed(ENGINE, *modules))
    assert capture is not None
    whole = transformer_layer(SHAPE)
    inside, outside = (one_side(whole, PoolSide(capture, held)) for held in (True, False))
    kept = {name: t.num_bytes for name, t in kept_tensors(whole, ()).items()}
    held = {name: t.num_bytes for name, t in kept_tensors(inside, ()).items() if t.num_bytes}
    beside = {name: t.num_bytes for name, t in kept_tensors(outside, ()).items() if t.num_bytes}
    assert not held.keys() & beside.keys()
    assert {**held, **beside}.items() <= kept.items()
    copied = {"attn": {LAYER_INPUT}, "mlp": {"after_attention"}, "": set()}
    assert kept.keys() - held.keys() - beside.keys() == copied["".join(modules)]
    assert sum(o.backward_workspace for o in (*inside, *outside)) == sum(
        o.backward_workspace for o in whole
    )


def test_what_is_permuted_in_a_graph_stays_until_the_backward() -> None:
    """The all-to-all dispatcher permutes ahead of its exchange; others send tokens as they are."""
    model = replace(load_model("mixtral_8x7b"), num_layers=4, moe_permute_fusion=True)
    job = replace(graphed(ENGINE, "moe_router", "moe_preprocess"), model=model)
    held = graph_capture(job)
    assert held.names == {"permute"}
    shape = replace(SHAPE, model=model, expert_model_parallel_size=4)
    inside = one_side(transformer_layer(shape, MOE), PoolSide(held, inside=True))
    kept = kept_tensors(inside, ())
    assert kept["permuted_tokens"].num_bytes == 4096 * 2 * 2 * 4096 * 2
    assert "expert_tokens" not in kept or kept["expert_tokens"].num_bytes == 0
    padded = replace(model, moe_expert_capacity_factor=1.0, moe_pad_expert_input_to_capacity=True)
    for experts, captured in ((model, False), (padded, True)):
        layers = graph_capture(replace(graphed(ENGINE), model=experts))
        assert (Module.EXPERT_FC1 in layers.modules) is captured
        assert Module.ROUTER in layers.modules
    flex = replace(model, moe_token_dispatcher_type=TokenDispatcher.FLEX)
    layout = replace(job.layout, expert_model_parallel_size=2)
    beside = graph_capture(replace(job, model=flex, layout=layout))
    assert not beside.names
    assert Module.DISPATCH not in beside.modules


def test_graphs_of_layers_need_more_than_none_and_their_pool_is_simulated_apart() -> None:
    without = detail(CudaGraphImpl.NONE)
    for impl in (ENGINE, LOCAL):
        job = graphed(impl)
        evaluator = evaluator_of(job)
        found, simulated = (
            evaluator.stage_detail(NONE, 0, simulated=simulated_too)
            for simulated_too in (False, True)
        )
        assert found.reserved.allocated > without.reserved.allocated
        assert 0 < simulated.reserved.unused < 0.1 * simulated.reserved.allocated
