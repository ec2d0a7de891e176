"""Whole ranks rehearsed by Megatron Core on fake tensors, against the advisor's prediction.

The bar is 0.5 % in the mean and 2 % at worst. The model is better than that: what it leaves out of
a step are scalars and torch's 4-byte step counters, a few hundred bytes.
"""

from typing import Any

import pytest

pytest.importorskip("megatron.core")

from advisor.base.dtypes import DType
from advisor.models.layer_pattern import LayerPattern
from advisor.models.options import TokenDispatcher
from harness.trial.result import StagePeaks

from .rehearsed import compared, evaluated_peak, job_of, rehearse, resident_bytes, static_of

SCALARS_BYTES = 512


def tp(size: int, **more: Any) -> dict[str, Any]:
    return {"tensor_model_parallel_size": size, **more}


def pp(size: int, chunks: int = 1) -> dict[str, Any]:
    return {"pipeline_model_parallel_size": size, "virtual_pipeline_model_parallel_size": chunks}


def assert_alike(pairs: list[tuple[StagePeaks, StagePeaks]]) -> None:
    """Every phase to the byte except scalars; forward and backward together."""
    for predicted, rehearsed in pairs:
        stage = f"stage {rehearsed.stage}"
        assert predicted.weights == rehearsed.weights, stage
        assert predicted.gradients == rehearsed.gradients, stage
        assert 0 <= rehearsed.optimizer - predicted.optimizer <= SCALARS_BYTES, stage
        passes = [max(one.forward, one.backward) for one in (predicted, rehearsed)]
        assert 0 <= passes[1] - passes[0] <= SCALARS_BYTES, stage
        assert 0 <= rehearsed.optimizer_step - predicted.optimizer_step <= SCALARS_BYTES, stage


@pytest.mark.parametrize(
    "spec",
    [
        *("none", "selective:core_attn", "selective:mlp", "selective:layernorm"),
        *("selective:core_attn,mlp,layernorm", "full:uniform:1", "full:uniform:2", "full:block:1"),
    ],
)
def test_every_setting_of_llama3_8b(spec: str) -> None:
    job = job_of("llama3_8b", 2, **tp(2), **pp(2), data_parallel_size=4)
    assert_alike(list(compared(job, spec)))


@pytest.mark.parametrize(
    ("model", "layers", "layout", "spec", "stages"),
    [
        ("llama3_70b", 1, tp(4, **pp(4, 5), data_parallel_size=2), "none", (0, 2)),
        ("llama3_70b", 2, tp(8, **pp(4)), "full:block:1", (0, 3)),
        ("llama3_405b", 1, tp(8, **pp(16)), "selective:mlp", (0, 7, 15)),
        ("llama3_405b", 2, tp(16, sequence_parallel=False), "none", (0,)),
        ("gpt3_175b", 1, tp(8, **pp(8)), "selective:core_attn", (0, 4, 7)),
        ("gpt3_175b", 1, tp(8, **pp(2, 3)), "full:uniform:1", (0, 1)),
        ("llama3_8b", 2, {**pp(2), "pipeline_model_parallel_layout": "Et|tttL"}, "none", (0, 1)),
        # chunks without layers; a stage that has nothing else needs no gather buffer
        (
            "llama3_8b",
            1,
            tp(2, **pp(2, 2), pipeline_model_parallel_layout="E|tt|t|tL"),
            "none",
            (0,),
        ),
        ("llama3_8b", 1, tp(2, **pp(3), pipeline_model_parallel_layout="E|tt|tL"), "none", (0,)),
    ],
)
def test_large_models(model, layers, layout, spec, stages) -> None:
    job = job_of(model, layers, **layout)
    assert_alike(list(compared(job, spec, stages)))


@pytest.mark.parametrize("sharded", [True, False])
def test_sixteen_bit_gradients(sharded: bool) -> None:
    """The optimizer's fp32 copies of them can be what decides."""
    job = job_of(
        "llama3_8b",
        2,
        seq_length=512,
        grads=DType.BF16,
        data_parallel_size=2,
        use_distributed_optimizer=sharded,
    )
    pairs = list(compared(job, "full:uniform:1"))
    assert_alike(pairs)
    ((predicted, rehearsed),) = pairs
    assert rehearsed.optimizer_step - rehearsed.weights > rehearsed.optimizer
    if not sharded:
        assert predicted.peak == predicted.optimizer_step == evaluated_peak(job, "full:uniform:1")


@pytest.mark.parametrize("data_parallel_size", [1, 2, 4, 16, 64])
@pytest.mark.parametrize("model", ["llama3_8b", "gpt3_22b", "qwen2.5_7b"])
def test_buffers_of_the_real_distributed_optimizer(model: str, data_parallel_size: int) -> None:
    """Weights, gradient buffers and optimizer shards of real shapes, to the byte: powers of two
    need no padding (param_and_grad_buffer.py pads a bucket's end to lcm(DP, 128) elements)."""
    job = job_of(model, 2, data_parallel_size=data_parallel_size)
    static, resident = static_of(job), resident_bytes(job)
    assert resident == (static.weights, static.gradients, static.optimizer)


@pytest.mark.parametrize("data_parallel_size", [3, 6, 24, 48])
def test_padding_of_other_degrees_is_a_few_hundred_elements(data_parallel_size: int) -> None:
    job = job_of("llama3_8b", 2, data_parallel_size=data_parallel_size)
    static, (weights, gradients, optimizer) = static_of(job), resident_bytes(job)
    buckets = 20  # of at least 40 million elements each, and lcm(48, 128) = 384 elements at most
    assert 0 <= weights - static.weights < buckets * 384 * 2
    assert gradients - static.gradients == 2 * (weights - static.weights)
    assert 0 <= optimizer - static.optimizer < buckets * 384 * 12
    assert weights / static.weights - 1 < 1e-5


DENSE_FIRST = {"moe_layer_freq": LayerPattern("[0,1]")}
EXPERTS = (
    ("mixtral_8x7b", tp(2, **pp(2)), 4, {}, "selective:moe"),
    ("mixtral_8x7b", pp(2, 2), 8, {}, "none"),
    ("qwen3_30b_a3b", pp(2), 32, {}, "selective:layernorm"),
    ("deepseek_v3", pp(2), 64, DENSE_FIRST, "selective:mla_up_proj"),
)


@pytest.mark.parametrize(("model", "layout", "ep", "options", "spec"), EXPERTS)
def test_models_with_experts(model, layout, ep, options, spec) -> None:
    """Routing balanced. test_recorded_peaks.py holds many more of them to the issue's bar of 2 %; a
    dispatcher keeps buffers and a late graph that the prediction counts to within 0.5 %."""
    degrees = {**layout, "expert_model_parallel_size": ep, "expert_tensor_parallel_size": 1}
    job = job_of(model, 1, options=options, data_parallel_size=8 * max(1, ep // 8), **degrees)
    for predicted, rehearsed in compared(job, spec):
        stage = f"stage {rehearsed.stage}"
        assert predicted.weights == rehearsed.weights, stage
        assert predicted.gradients == rehearsed.gradients, stage
        assert predicted.peak == pytest.approx(rehearsed.peak, rel=0.005), stage


@pytest.mark.parametrize(
    ("spec", "checkpoints"),
    [("none", 0), ("selective:moe", 2), ("full:uniform:1", 2), ("full:uniform:2", 1)],
)
def test_what_replayed_experts_leave_is_there_in_the_optimizers_step(spec, checkpoints) -> None:
    """A token dispatcher holds the graph of its last forward: under a checkpoint with its input and
    that one's gradient. Not predicted: the dispatcher's order of its tokens, and how many go to
    each expert, 8 bytes each."""
    options = {"moe_token_dispatcher_type": TokenDispatcher.ALLTOALL}
    degrees = {"data_parallel_size": 4, "expert_model_parallel_size": 4}
    job = job_of("qwen3_30b_a3b", 2, grads=DType.BF16, options=options, **degrees)
    ((predicted, rehearsed),) = compared(job, spec, peaks=rehearse)
    hidden = job.config.seq_length * job.model.hidden_size * DType.BF16.itemsize
    numbers = job.config.seq_length * job.model.moe_router_topk + job.model.num_moe_experts
    most = job.model.num_layers * numbers * DType.INT64.itemsize + SCALARS_BYTES
    # the step counters of torch's AdamW, which are no states of Transformer Engine's
    most += rehearsed.optimizer - predicted.optimizer
    assert 0 <= rehearsed.optimizer_step - predicted.optimizer_step <= most
    ((without, _),) = compared(job, "none", peaks=lambda *_: rehearsed)
    left = predicted.optimizer_step - without.optimizer_step
    assert left == checkpoints * 2 * hidden
