"""Today's predictions next to what was measured on GPUs (results/measured).

Bars: allocated mean 1 %, worst 3 %; reserved mean 3 %; step time mean 4 %,
worst 10 % over cells left out; what misses its bar is named here, with its figure.
"""

from collections.abc import Iterator
from functools import cache
from math import sqrt
from pathlib import Path
from statistics import mean

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.base.fields import read_record
from advisor.hardware.calibration import load_calibration
from advisor.memory.allocator import model_error
from advisor.search.evaluate import Evaluator
from harness.backends.jobs import as_run
from harness.judge.accuracy_rows import Half, SettingRow, accuracy_of, looked_at, setting_rows
from harness.judge.repredict import expands, predict_again
from harness.judge.results import load_results
from harness.rehearsal.prediction import predicted_stages, rank_seconds
from harness.rehearsal.trials import evaluator_here
from harness.trial.result import MemoryPeak, TrialResult
from harness.trial.trial import Backend, Device, Trial
from tests.advisor.jobs import job_config, job_of

MEASURED = Path(__file__).parents[2] / "results" / "measured"
GPUS = ("h100", "h200")
LAUNCH_BOUND = "2048 tokens, 1 x 1"
"""One short sequence of Llama 3 8B: overheads are up to 6 points too low. By the model the
processor queues the backward of a replayed layer in 4.2 ms, and the GPU runs it in 5.4."""


def found(gpu: str, backend: Backend) -> list[TrialResult]:
    results = load_results([MEASURED / gpu]).results
    return [r for r in results if r.trial["workload"]["backend"] == backend]


def native(gpu: str) -> tuple[SettingRow, ...]:
    """Rows of the native backend, predicted anew with the calibration measured on that GPU."""
    again = []
    for result in found(gpu, Backend.NATIVE):
        trial = predict_again(result, MEASURED / gpu / "calibrated")
        assert trial is not None
        again.append(replace(result, trial=trial))
    return setting_rows(again, looked_at(MEASURED / gpu))


@cache
def rows() -> tuple[SettingRow, ...]:
    return tuple(row for gpu in GPUS for row in native(gpu) if row.processes)


def test_there_are_cells_enough() -> None:
    assert len({row.cell for row in rows()}) == 9
    assert len(rows()) == 38


def test_bytes_of_a_layer_and_of_a_step() -> None:
    """A layer keeps 16 to 32 bytes of a random state beyond the prediction."""
    judged = accuracy_of("native", rows())
    assert abs(judged.kept.worst) < 1e-6
    assert judged.allocated.mean < 0.0005
    assert abs(judged.allocated.worst) < 0.005
    assert judged.reserved.mean < 0.01
    assert abs(judged.reserved.worst) < 0.03


@pytest.mark.parametrize("half", Half)
def test_step_times(half: Half) -> None:
    step = accuracy_of(half, [row for row in rows() if row.cell.half is half]).step
    assert step.mean < 0.04
    assert abs(step.worst) < 0.10


@pytest.mark.parametrize("half", Half)
def test_overheads(half: Half) -> None:
    usual = [row for row in rows() if row.cell.half is half and LAUNCH_BOUND not in row.cell.label]
    overhead = accuracy_of(half, usual).overhead
    assert overhead.mean < 0.01
    assert abs(overhead.worst) < 0.02


def test_signs_of_overheads() -> None:
    for row in rows():
        predicted, measured = row.overhead.predicted, row.overhead.measured
        if measured is not None and predicted is not None and abs(measured) > 0.005:
            assert (predicted > 0) == (measured > 0), row


def test_the_first_choice_is_the_best_that_was_measured() -> None:
    judged = accuracy_of("native", rows())
    assert judged.worst_regret < 0.01
    assert judged.verdicts[True, False] == judged.verdicts[False, True] == 0


def rehearsed_ranks(
    gpu: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Evaluator, Trial, MemoryPeak]]:
    """Each rank of Llama 3 70B: its job, what was run of it, what it took."""
    for result in found(gpu, Backend.REHEARSAL):
        trial = read_record(Trial, result.trial, result.name)
        engine = bool(result.environment["software"]["transformer_engine"])
        monkeypatch.setattr(
            "harness.backends.megatron_core.translate.has_transformer_engine", lambda e=engine: e
        )
        workload = trial.workload
        job = job_of(
            workload.model,
            workload.layout,
            job_config(
                workload.seq_length,
                workload.micro_batch_size,
                workload.global_batch_size,
                precision=workload.precision,
                main_grads_dtype=workload.main_grads_dtype,
                framework_version="0.16",
                expandable_segments=expands(trial),
            ),
        )
        run = as_run(job, workload)
        (measured,) = result.memory
        yield Evaluator(run, load_calibration(run.gpu)), trial, measured


def rehearsed(gpu: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Setting and predicted over measured peak, less one, of each rank of Llama 3 70B."""
    errors = []
    for evaluator, trial, measured in rehearsed_ranks(gpu, monkeypatch):
        recompute = trial.workload.recompute
        peaks = predicted_stages(evaluator, recompute, trial.stages, Device.CUDA)
        errors.append((recompute, max(one.peak for one in peaks) / measured.allocated - 1))
    return errors


def test_ranks_under_transformer_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16 and FP8 with current scaling: none, core_attn, mlp, full."""
    errors = rehearsed("h200", monkeypatch)
    assert len(errors) == 8
    assert max(abs(error) for _, error in errors) < 1e-4


def test_ranks_of_megatrons_own_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Transformer Engine and Apex gradients are clipped one by one, each with a copy: under
    full recompute the optimizer's step is the peak."""
    errors = rehearsed("h100", monkeypatch)
    assert len(errors) == 5
    clipped = [error for setting, error in errors if setting == "full:uniform:1"]
    assert clipped == [pytest.approx(-0.0082, abs=2e-4)]
    assert all(abs(error) < 1e-4 for setting, error in errors if setting != "full:uniform:1")


def test_the_spread_of_predicted_bytes_covers_what_was_seen(monkeypatch) -> None:
    errors = [row.allocated.error for row in rows() if row.allocated.error is not None]
    errors += [error for gpu in GPUS for _, error in rehearsed(gpu, monkeypatch)]
    assert len(errors) == 51
    assert sqrt(mean(error**2 for error in errors)) < model_error(Precision.BF16, derived=False)


@pytest.mark.parametrize(
    ("gpu", "precision", "setting_rows", "worst"),
    [
        ("h100", Precision.BF16, 5, 0.068),
        ("h200", Precision.BF16, 4, 0.015),
        ("h200", Precision.FP8_CURRENT, 4, 0.165),
    ],
    ids=["local", "engine", "engine-fp8"],
)
def test_times_of_ranks(gpu, precision, setting_rows, worst, monkeypatch) -> None:
    """Of one timed step of each, by the shipped calibration. What was reached: FP8 is 10 to 16 %
    too fast, beyond the bar of 10 %."""
    errors = []
    timed = zip(rehearsed_ranks(gpu, monkeypatch), found(gpu, Backend.REHEARSAL), strict=True)
    for (evaluator, trial, _), result in timed:
        here = evaluator_here(evaluator.job, result.gpu_names[0], None)
        (stage,) = result.stages
        if trial.workload.precision is precision:
            predicted = rank_seconds(here, trial.workload.recompute, stage.stage)
            errors.append(predicted / stage.compute_seconds - 1)
    assert len(errors) == setting_rows
    assert max(map(abs, errors)) < worst
