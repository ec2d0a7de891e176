"""Every byte and every millisecond of an explanation is accounted for."""

import pytest

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
        c.evaluation for c in advise(Request(model="llama3_70b", gpus="32xH100")).candidates
    )
    sources = {
        line.name: line.source
        for line in memory_lines(found)
        if line.component == "activations" and line.shape
    }
    assert sources["fc1_out"].endswith("for the backward of mlp.activation")
    assert sources["input_layernorm_out"].endswith("of self_attention.linear_qkv")
    assert not any(source.endswith("of the layer") for source in sources.values())
