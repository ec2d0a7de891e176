"""Bytes that a block with adapters keeps and needs, against peft on transformers' own code.

bitsandbytes is not among the packages of the tests: without it the figures of its layers are those
that were recorded with 0.50.2 on real tensors of a processor, where MatMul8bitLt has another form
that keeps the same.
"""

from functools import partial
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("tyro")  # comes with torchtitan
pytest.importorskip("peft")

from advisor.base.dtypes import DType
from advisor.frameworks.torch.parameter_groups import Sharding
from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.setting import FULL, NONE
from advisor.job.tuning import ALL_LINEAR, Adapter, StoredAs, Tuning
from advisor.layers.eager.adapters import target_names
from advisor.layers.shape import RankShape
from advisor.memory.chunk import chunk_footprint
from advisor.models.layer_kind import DENSE
from advisor.models.options import TransformerImpl
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Checkpoint, RecomputePlan, Segment

from .recorded import measured
from .stacks.adapters import with_adapters
from .stacks.fsdp import RANKS, assert_near, predicted_step, transformers_step
from .stacks.measure import Measured, measure
from .stacks.shapes import (
    GPT2_XL,
    LLAMA3_8B,
    MIXTRAL_8X7B,
    QWEN3_8B,
    QWEN3_30B_A3B,
    VARIANTS,
    shape_of,
)
from .test_stack_layers import PEAK_TOLERANCE, wrapped

QWEN2_7B = replace(
    LLAMA3_8B,
    **{"name": "qwen2_7b", "hidden_size": 3584, "ffn_hidden_size": 18944},
    **{"num_attention_heads": 28, "num_query_groups": 4, "add_qkv_bias": True},
)
SMALL = replace(
    LLAMA3_8B,
    **{"hidden_size": 256, "ffn_hidden_size": 768, "num_attention_heads": 4},
    **{"num_query_groups": 2, "kv_channels": 64, "vocab_size": 64},
)
MODELS = (LLAMA3_8B, QWEN2_7B, QWEN3_8B, GPT2_XL, *VARIANTS.values(), MIXTRAL_8X7B, QWEN3_30B_A3B)
EXPERTS = ("experts.gate_up_proj", "experts.down_proj")
CASES = range(30)


def random_case(seed: int) -> tuple[RankShape, Checkpoint | None]:
    """A model, its adapter, and the kind of checkpoint around the block, None without one."""
    draw = Random(seed)
    model: ModelSpec = draw.choice(MODELS)
    shape = shape_of(model, TransformerImpl.TRANSFORMERS, seq=draw.choice((256, 512)))
    names = [name for name in target_names(shape) if name not in (*EXPERTS, "lm_head")]
    some = tuple(sorted(draw.sample(names, draw.randint(1, len(names)))))
    targets = draw.choice(((ALL_LINEAR,), some))
    adapter, dropout = draw.choice((Adapter.LORA, Adapter.LORA, Adapter.DORA)), 0.0
    if model.num_moe_experts and draw.random() < 0.5:
        targets, adapter = (*targets, *draw.sample(EXPERTS, draw.randint(1, 2))), Adapter.LORA
    elif draw.random() < 0.4:
        dropout = 0.1
    tuning = Tuning(
        adapter=adapter,
        rank=draw.choice((4, 8, 16, 64)),
        target_modules=targets,
        dropout=dropout,
        adapter_dtype=draw.choice((DType.BF16, DType.FP32)),
        autocast=draw.random() < 0.6,
    )
    checkpoint = draw.choice((None, None, None, *Checkpoint))
    return replace(shape, tuning=tuning), checkpoint


def _compare(shape: RankShape, segment: Segment, found: Measured, *, peaks: bool = True) -> None:
    """Of a checkpoint the higher pass alone: its forward keeps no graph, which the walk counts."""
    predicted = chunk_footprint(shape, RecomputePlan((segment,)), False, False)
    assert predicted.kept == found.kept
    if not peaks:
        return
    near = partial(pytest.approx, rel=PEAK_TOLERANCE)
    forward, backward = predicted.forward.num_bytes, predicted.backward.num_bytes
    if segment.whole:
        assert max(forward, backward) == near(max(found.forward, found.backward))
        return
    assert backward == near(found.backward)
    if not shape.model.layernorm_zero_centered_gamma:  # by a hidden state too much
        assert forward == near(found.forward)


@pytest.mark.parametrize("seed", CASES)
def test_random_adapters(seed: int) -> None:
    """What is kept is equal to the byte. Peaks are within the bar, but where Gemma 4's experts
    scale what they give, and where a replay that stops early leaves frames of peft's, which hold
    the layer's output, and the adapter's."""
    shape, checkpoint = random_case(seed)
    kinds, model = shape.model.layer_kinds[:1], shape.model
    segment, wrap = Segment(kinds), {}
    if checkpoint is not None:
        segment = Segment(kinds, whole=True, checkpoint=checkpoint)
        wrap = {"wrap": partial(wrapped, checkpoint=checkpoint)}
    peaks = checkpoint is not Checkpoint.EARLY_STOP and not model.moe_separate_norms
    _compare(shape, segment, measure(shape, **wrap), peaks=peaks)


def test_the_cases_differ() -> None:
    """Each kind of model, adapter, type, checkpoint and dropout is among them."""
    cases = [random_case(seed) for seed in CASES]
    tunings = [shape.tuning for shape, _ in cases]
    assert {shape.model.name for shape, _ in cases} == {model.name for model in MODELS}
    assert {checkpoint for _, checkpoint in cases} == {None, *Checkpoint}
    for field in ("adapter", "adapter_dtype", "autocast", "dropout"):
        assert len({getattr(tuning, field) for tuning in tunings}) == 2, field
    assert any({*EXPERTS} & {*tuning.target_modules} for tuning in tunings)


QUANTIZED: list[dict[str, Any]] = [
    {},
    {"adapter_dtype": DType.FP32},
    {"adapter_dtype": DType.FP32, "dropout": 0.1},
    {"adapter_dtype": DType.FP32, "autocast": False},
    {"adapter": Adapter.DORA, "dropout": 0.1},
]


@pytest.mark.parametrize("given", QUANTIZED, ids=str)
@pytest.mark.parametrize("stored", [StoredAs.NF4, StoredAs.INT8])
def test_quantized_weights(stored: StoredAs, given: dict[str, Any]) -> None:
    """An 8-bit layer makes the fp32 scales of its rows in its first forward: they are weights."""
    tuning = Tuning(**{"adapter": Adapter.LORA, "rank": 8, "base_weights": stored, **given})
    shape = replace(shape_of(SMALL, TransformerImpl.TRANSFORMERS), tuning=tuning)

    def live() -> tuple[int, ...]:
        pytest.importorskip("bitsandbytes")
        found = measure(shape, real=True)
        return found.kept, found.forward, found.backward

    kept, forward, backward = measured("bitsandbytes", shape, by=live)
    rows = 2 * 256 + 2 * 128 + 2 * 768 + 256
    kept -= rows * 4 if stored is StoredAs.INT8 else 0
    segment = Segment(shape.model.layer_kinds[:1])
    peaks = stored is StoredAs.NF4
    _compare(shape, segment, Measured(kept, forward, backward), peaks=peaks)


LAYERS = 4
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize("vocabulary", [32000, 128256])
@pytest.mark.parametrize("checkpointed", [False, True], ids=["none", "full"])
def test_a_step_under_fsdp2(checkpointed: bool, vocabulary: int) -> None:
    """Groups as Accelerate makes them: frozen parameters are gathered, and not reduced."""
    model = replace(
        LLAMA3_8B, num_layers=LAYERS, vocab_size=vocabulary, gradient_accumulation_fusion=False
    )
    tuning = Tuning(adapter=Adapter.LORA, rank=16, target_modules=LINEAR)
    shape = replace(shape_of(model, TransformerImpl.TRANSFORMERS), tuning=tuning)

    def adapted(made: Any) -> None:
        with_adapters(made, tuning)
        made.enable_input_require_grads()

    step = transformers_step(
        shape, checkpointed=checkpointed, by_accelerate=True, checkpoint=adapted
    )
    setting, how = FULL if checkpointed else NONE, Semantics(starts_with_first=True)
    plan = chunk_plan(setting, shape, (DENSE,) * LAYERS, how)
    assert_near(predicted_step(shape, plan, Sharding(ranks=RANKS)), step, 0.005)
