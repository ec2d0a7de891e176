"""Peak of a step under FSDP2 against torch's own code: gathers, reduce-scatters, shards.

The whole model of torchtitan runs on fake tensors, on one of eight fake ranks.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("tyro")  # comes with torchtitan, which itself cannot be imported as it is

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from advisor.frameworks.torch.parameter_groups import Sharding, fsdp_working_set
from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.setting import sequential
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.shape import RankShape
from advisor.memory import simulation
from advisor.memory.caching_allocator import Block
from advisor.memory.chunk import chunk_trace
from advisor.memory.simulation import Held, Rank, simulate
from advisor.memory.static import StaticMemory, stage_elements
from advisor.models.layer_kind import DENSE
from advisor.models.options import TransformerImpl
from advisor.plan.recompute_plan import Checkpoint, RecomputePlan, Segment

from .recorded import measured
from .stacks.fsdp import (
    RANKS,
    Step,
    assert_near,
    predicted_step,
    recorded_step,
    requests_of_two_steps,
    titan_step,
    tracked_peak,
)
from .stacks.parallel import expert_parallel_step
from .stacks.shapes import LLAMA3_8B, QWEN3_30B_A3B, shape_of
from .stacks.titan import import_titan

TOLERANCE = 0.005
"""Bar of the project for memory: 0.5 %."""
LAYERS = 4
SMALL_HEAD = replace(LLAMA3_8B, num_layers=LAYERS, vocab_size=512)
PLANS = {
    "none": Segment((DENSE,), copies=LAYERS),
    "full": Segment((DENSE,), whole=True, copies=LAYERS, checkpoint=Checkpoint.NON_REENTRANT),
}


def _apply(mode: str) -> Callable[[nn.Module], None]:
    def checkpoint(model: nn.Module) -> None:
        if mode != "none":
            config = import_titan("config.job_config").ActivationCheckpoint(mode=mode)
            import_titan("distributed.activation_checkpoint").apply_ac(model, config)
            torch._C._dynamo.eval_frame._set_lru_cache(True)  # apply_ac turns it off for all

    return checkpoint


def step_of(shape: RankShape, mode: str, options: dict[str, Any]) -> Step:
    """Of stacks.fsdp, or as it was recorded."""
    step = partial(titan_step, shape, _apply(mode), **options)
    return recorded_step("titan_step", shape, mode, options, by=step)


@pytest.mark.parametrize(
    "options", [{}, {"reshards": False}, {"root_holds_ends": True}], ids=["titan", "never", "root"]
)
@pytest.mark.parametrize(
    "model", [SMALL_HEAD, replace(LLAMA3_8B, num_layers=LAYERS)], ids=["layers", "head"]
)
@pytest.mark.parametrize("mode", PLANS)
def test_peak_of_a_step(mode: str, model: Any, options: dict[str, bool]) -> None:
    shape = shape_of(model, TransformerImpl.TORCH, seq=2048)
    step = step_of(shape, mode, options)
    sharding = Sharding(ranks=RANKS, **options)
    predicted = predicted_step(shape, RecomputePlan((PLANS[mode],)), sharding)
    assert_near(predicted, step, TOLERANCE)


@pytest.mark.parametrize("options", [{}, {"reshards": False}], ids=["titan", "never"])
@pytest.mark.parametrize("vocabulary", [512, 128256])
@pytest.mark.parametrize("mode", PLANS)
def test_peak_of_a_step_on_one_gpu(mode: str, vocabulary: int, options: dict[str, Any]) -> None:
    """Nothing is gathered; torchtitan divides gradients by 1.0, into a third tensor."""
    shape = shape_of(replace(SMALL_HEAD, vocab_size=vocabulary), TransformerImpl.TORCH, seq=2048)
    step = step_of(shape, mode, options | {"ranks": 1})
    alone, plan = Sharding(ranks=1, divides=True, **options), RecomputePlan((PLANS[mode],))
    assert_near(predicted_step(shape, plan, alone), step, TOLERANCE)


@pytest.mark.parametrize("root_holds_ends", [False, True], ids=["titan", "root"])
@pytest.mark.parametrize("mode", PLANS)
def test_requests_where_parameters_stay(
    mode: str, root_holds_ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps, request by request on the allocator: torch's own next to the trace's, which lays
    what is gathered or reduced for a group together; all on one stream, as fake tensors have them.
    Allocated within 1 % (a hidden state), reserved within 2 % (found: up to 1.7 % too little)."""
    monkeypatch.setattr(simulation, "OTHER_STREAM", 0)
    shape = shape_of(SMALL_HEAD, TransformerImpl.TORCH, seq=2048)
    options = {"root_holds_ends": root_holds_ends, "reshards": False}
    rank = Rank(expandable_segments=False)
    live: dict[int, Block] = {}
    numbers: dict[int, int] = {}  # small ones: high bits name streams
    for name, size in titan_step(shape, _apply(mode), **options, measure=requests_of_two_steps):
        rank.run(((0, ((numbers.setdefault(name, len(numbers)), size),)),), live)
    working_set = fsdp_working_set(shape, Sharding(ranks=RANKS, **options))
    trace = chunk_trace(shape, RecomputePlan((PLANS[mode],)), True, True, working_set)
    alone = StaticMemory(weights=trace.stays, gradients=0, optimizer=0)
    held = Held(weights=(1,), static=alone, in_buffers=False, resident=(), step=0)
    found = simulate(held, (trace,), (0,), 1, 0, 1, expandable_segments=False)
    allocated, reserved = rank.peaks
    assert found.allocated == pytest.approx(allocated, rel=0.01)
    assert found.reserved == pytest.approx(reserved, rel=0.02)


def _in_segments(segments: int) -> Callable[[Any], None]:
    def checkpoint(model: Any) -> None:
        def forward(tokens: torch.Tensor) -> Any:
            calls: Any = [
                lambda hidden, block=block: block(hidden, model.freqs_cis, None)
                for block in model.layers.values()
            ]
            embedded = model.tok_embeddings(tokens)
            hidden = checkpoint_sequential(
                calls, segments, embedded, use_reentrant=False, preserve_rng_state=False
            )
            return model.output(model.norm(hidden))

        model.forward = forward

    return checkpoint


@pytest.mark.parametrize(
    ("layers", "segments", "seq", "reshards"),
    [
        (4, 2, 2048, True),
        (6, 2, 2048, True),
        (7, 3, 64, True),
        (8, 2, 256, True),
        (8, 4, 4096, True),
        (6, 2, 2048, False),
        (4, 4, 2048, True),
    ],
)
def test_checkpoint_sequential_over_groups(layers, segments, seq, reshards) -> None:
    """A segment's replay gathers all its blocks, and each stays until it has gone back."""
    shape = shape_of(replace(SMALL_HEAD, num_layers=layers), TransformerImpl.TORCH, seq=seq)
    options = {"root_holds_ends": True, "reshards": reshards}
    live = partial(titan_step, shape, _in_segments(segments), **options)
    step = recorded_step("sequential_step", shape, segments, options, by=live)
    plan = chunk_plan(sequential(segments), shape, (DENSE,) * layers, Semantics())
    assert_near(predicted_step(shape, plan, Sharding(ranks=RANKS, **options)), step, TOLERANCE)


def _tracked(shape: RankShape, plan: RecomputePlan, sharding: Sharding) -> int:
    """As MemTracker counts: the sharded parameters and the model's buffer as well."""
    chunk = ModelChunk((DENSE,) * shape.model.num_layers, embedding=True, head=True)
    frequencies = shape.seq_length * shape.model.kv_channels // 2 * 8
    parameters = sharding.shard(stage_elements(shape, (chunk,)))
    return predicted_step(shape, plan, sharding).backward + parameters + frequencies


def test_torchs_own_tracker_sees_the_peak_of_segments() -> None:
    shape = shape_of(replace(SMALL_HEAD, num_layers=6), TransformerImpl.TORCH, seq=2048)
    options = {"root_holds_ends": True, "measure": tracked_peak}
    (tracked,) = measured(
        "sequential_tracked_peak",
        shape,
        by=lambda: (titan_step(shape, _in_segments(2), **options),),
    )
    plan = chunk_plan(sequential(2), shape, (DENSE,) * 6, Semantics())
    predicted = _tracked(shape, plan, Sharding(ranks=RANKS, root_holds_ends=True))
    assert predicted == pytest.approx(tracked, rel=TOLERANCE)


@pytest.mark.parametrize("mode", PLANS)
def test_peak_of_a_step_with_experts(mode: str) -> None:
    """Experts without expert parallelism are gathered with the rest of their layer."""
    model = replace(QWEN3_30B_A3B, num_moe_experts=32, num_layers=LAYERS, vocab_size=4096)
    shape = shape_of(model, TransformerImpl.TORCH, seq=2048)
    step = step_of(shape, mode, {})
    plan = RecomputePlan((replace(PLANS[mode], layers=shape.model.layer_kinds[:1]),))
    assert_near(predicted_step(shape, plan, Sharding(ranks=RANKS)), step, TOLERANCE)


@pytest.mark.parametrize("mode", PLANS)
def test_peak_of_a_step_under_expert_parallelism(mode: str) -> None:
    """Experts are groups of their own. Their reduce-scatter begins inside a layer's backward, for
    which one figure stands: found within 3.3 % too little or too much (forward 5.1 %) in this toy,
    of which experts are nearly all; a larger group has smaller shards, and less to miss."""
    model = replace(
        QWEN3_30B_A3B,
        num_moe_experts=8,
        num_layers=LAYERS,
        vocab_size=512,
        hidden_size=512,
        num_attention_heads=8,
        kv_channels=64,
        moe_ffn_hidden_size=1024,
        moe_router_topk=2,
    )
    shape = shape_of(model, TransformerImpl.TORCH, seq=256, mbs=1)
    shape = replace(shape, expert_model_parallel_size=4)
    live = partial(expert_parallel_step, shape, _apply(mode))
    step = recorded_step("expert_parallel_step", shape, mode, by=live)
    plan = RecomputePlan((replace(PLANS[mode], layers=shape.model.layer_kinds[:1]),))
    predicted = predicted_step(shape, plan, Sharding(ranks=RANKS, expert_ranks=RANKS // 4))
    assert predicted.forward == pytest.approx(step.forward, rel=0.055)
    assert predicted.backward == pytest.approx(step.backward, rel=0.035)


@pytest.mark.parametrize("mode", PLANS)
def test_torchs_own_tracker_sees_the_same_peak(mode: str) -> None:
    shape = shape_of(SMALL_HEAD, TransformerImpl.TORCH, seq=2048)
    (tracked,) = measured(
        "titan_tracked_peak",
        shape,
        mode,
        by=lambda: (titan_step(shape, _apply(mode), measure=tracked_peak),),
    )
    predicted = _tracked(shape, RecomputePlan((PLANS[mode],)), Sharding(ranks=RANKS))
    assert predicted == pytest.approx(tracked, rel=TOLERANCE)
