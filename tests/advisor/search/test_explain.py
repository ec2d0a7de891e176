"""Every byte and every millisecond of an explanation is accounted for."""

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.request.request import Request
from advisor.search.advise import advise
from advisor.search.evaluate import Evaluator
from advisor.search.explain import memory_lines, time_lines

from .test_evaluate import SETTINGS, evaluator, job  # noqa: F401  (fixtures)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.spec)
def test_memory_lines_sum_to_the_reserved_peak(evaluator: Evaluator, setting) -> None:  # noqa: F811
    evaluation = evaluator.evaluate(setting)
    lines = memory_lines(evaluation)
    assert sum(line.num_bytes for line in lines) == evaluation.peak.peak_reserved_bytes
    for component in ("weights", "gradients", "optimizer", "activations", "transient", "overhead"):
        wanted = getattr(evaluation.peak.memory_bytes, component)
        assert sum(line.num_bytes for line in lines if line.component == component) == wanted


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.spec)
def test_time_lines_sum_to_the_step(evaluator: Evaluator, setting) -> None:  # noqa: F811
    evaluation = evaluator.evaluate(setting)
    lines = time_lines(evaluation)
    total = sum(line.seconds for line in lines)
    assert total == pytest.approx(evaluation.step_time_seconds, rel=1e-9)
    replayed = sum(line.seconds for line in lines if line.phase == "recompute")
    assert replayed == pytest.approx(evaluation.time_seconds.recompute, rel=1e-9, abs=1e-12)


def test_copies_are_layers_times_microbatches_in_flight(evaluator: Evaluator) -> None:  # noqa: F811
    evaluation = evaluator.evaluate(SETTINGS[0])
    line = next(line for line in memory_lines(evaluation) if line.name == "fc1_out")
    chunk_passes = evaluation.peak.in_flight_microbatches * 5
    assert line.count == 4 * round(chunk_passes)
    assert line.unit_bytes == 4096 * 2 * 28672 // 4 * 2


def test_every_activation_names_the_backward_that_reads_it() -> None:
    found = next(
        c.evaluation
        for c in advise(Request(model="llama3_70b", gpus="32xH100", quick=True)).candidates
    )
    sources = {
        line.name: line.source
        for line in memory_lines(found)
        if line.component == "activations" and line.shape
    }
    assert sources["fc1_out"].endswith("for the backward of mlp.activation")
    assert sources["input_layernorm_out"].endswith("of self_attention.linear_qkv")
    assert not any(source.endswith("of the layer") for source in sources.values())


@pytest.mark.parametrize(
    "request_",
    [
        Request(model="deepseek_v2_lite", gpus="8xH100", recompute=("none",)),  # shared experts
        Request(  # its exchange during another microbatch, and graphs
            model="qwen3_30b_a3b",
            gpus="16xH100",
            recompute=("none",),
            overrides=(
                "job.cuda_graph_impl=transformer_engine",
                "layout.overlap_moe_expert_parallel_comm=true",
            ),
        ),
        Request(  # inputs of checkpoints that TP ranks hold in parts
            model="gpt3_175b",
            gpus="64xA100",
            recompute=("full:uniform:1+distribute_saved_activations",),
            sequence_parallel=False,
        ),
        Request(  # tensors on the host
            model="llama3_70b", gpus="32xH100", recompute=("none+offload=core_attn,attn_proj",)
        ),
        Request(model="llama3_8b", gpus="8xH100", framework="fsdp2", recompute=("full+offload",)),
        Request(  # the stage that needs most is not the one that may need most
            model="deepseek_v3",
            gpus="256xB200",
            precision=Precision.MXFP8,
            recompute=("selective:layernorm,moe_act",),
        ),
        Request(  # the MLP runs again
            model="llama3_8b",
            gpus="8xH100",
            framework="huggingface",
            recompute=("none", "full"),
            overrides=("job.tiled_mlp=true",),
        ),
    ],
    ids=lambda request: request.model,
)
def test_no_line_is_negative_and_all_of_them_are_the_whole(request_: Request) -> None:
    answer = advise(replace(request_, quick=True))
    assert len(answer.candidates) == len(request_.recompute)
    for candidate in answer.candidates:
        evaluation, time = candidate.evaluation, candidate.evaluation.time_seconds
        memory, passes = memory_lines(evaluation), time_lines(evaluation)
        assert min(line.num_bytes for line in memory) >= 0
        assert min(line.seconds for line in passes) > 0
        assert sum(line.num_bytes for line in memory) == evaluation.peak.peak_reserved_bytes
        for phase, seconds in (
            ("forward", time.forward),
            ("backward", time.backward),
            ("recompute", time.recompute),
            ("exposed communication", time.exposed_communication),
        ):
            lines = [line.seconds for line in passes if line.phase == phase]
            assert sum(lines) == pytest.approx(seconds, rel=1e-9)
        assert sum(line.seconds for line in passes) == pytest.approx(time.total, rel=1e-9)
