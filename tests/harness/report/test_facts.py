"""A run is read whole: nothing that was planned vanishes."""

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from harness.judge.golden import load_goldens
from harness.report.facts import Facts, Numbers, load_facts, numbers_of, over_repeats, peaks
from harness.trial.result import MemoryPeak, TrialStatus
from harness.trial.store import RunFolder
from harness.trial.trial import RunPlan

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests/harness/fixtures/recorded_regression"


def test_a_trial_without_a_result_is_there(gpu_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(gpu_run, copy)
    name = next(iter(load_facts(copy).results))
    (copy / "trials" / name / "result.json").unlink()
    facts = load_facts(copy)
    assert facts.results[name].status is TrialStatus.NO_DATA
    assert len(facts.found) == 7


def test_what_a_run_was_made_of(gpu_facts: Facts, cpu_facts: Facts) -> None:
    assert (gpu_facts.on_cpu, cpu_facts.on_cpu) == (False, True)
    assert gpu_facts.gpu.name == "H200-SXM-141GB"
    assert cpu_facts.gpu is None
    assert gpu_facts.place.gpus == "1xH200-SXM-141GB"
    assert [len(cpu_facts.results_of(setting)) for setting in cpu_facts.plan.settings] == [2, 2, 2]
    assert not gpu_facts.judged
    assert (gpu_facts.peak, cpu_facts.peak) == ("reserved", "allocated")


def test_results_without_a_plan_are_reported_too() -> None:
    goldens = list(load_goldens([ROOT / "results/golden"]).values())
    facts = load_facts(RECORDED, goldens)
    assert facts.judged
    assert facts.comparison.exit_code == 1
    assert facts.plan.device_name == "H100-SXM-80GB"
    assert facts.peak == "allocated", "no reserved bytes were published"
    assert [setting.rank for setting in facts.plan.settings] == [None] * 4
    assert [outcome.status for outcome in facts.found] == ["oom", "oom", "ok", "ok"]


def test_the_same_trial_twice_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(RECORDED / "selective_mlp", tmp_path / name)
    with pytest.raises(UserError, match="holds a trial twice"):
        load_facts(tmp_path)


def test_a_plan_of_nothing_is_refused(tmp_path: Path, gpu_plan: RunPlan) -> None:
    RunFolder(tmp_path).create(replace(gpu_plan, settings=()))
    with pytest.raises(UserError, match="holds no setting"):
        load_facts(tmp_path)


def test_throughput_is_of_the_median_step(gpu_facts: Facts) -> None:
    """One GPU, 400 model and 500 hardware TFLOP/s; 989 is the H200's dense BF16 datasheet peak
    (configs/hardware)."""
    result = next(iter(gpu_facts.results.values()))
    one = numbers_of(result, gpu_facts.gpu)
    assert one.model_tflops_per_gpu == pytest.approx(400.0)
    assert one.hardware_tflops_per_gpu == pytest.approx(500.0)
    assert one.mfu == pytest.approx(400 / 989)
    assert one.hfu == pytest.approx(500 / 989)
    tokens = 4096 * result.trial["workload"]["global_batch_size"]
    assert one.tokens_per_second_per_gpu == pytest.approx(tokens / one.step_time_seconds)
    assert one.step_spread == pytest.approx(0.002, rel=0.01)  # of -0.2, -0.1, 0, 0.1, 0.2 % twice


def test_what_is_not_known_is_none(gpu_facts: Facts) -> None:
    result = next(iter(gpu_facts.results.values()))
    assert numbers_of(result, None).mfu is None
    assert numbers_of(result, None).model_tflops_per_gpu is not None
    assert numbers_of(replace(result, flops=None), gpu_facts.gpu).mfu is None
    assert numbers_of(replace(result, times=None, memory=()), None) == Numbers()


def test_each_peak_is_of_its_own_fullest_rank() -> None:
    ranks = (
        MemoryPeak(rank=0, stage=0, allocated=10, active=11, reserved=20),
        MemoryPeak(rank=1, stage=1, allocated=12, active=12, reserved=13, nvml_used=30),
    )
    found = peaks(ranks)
    assert found.peak_allocated_bytes == 12
    assert found.peak_active_bytes == 12
    assert found.peak_reserved_bytes == 20
    assert found.peak_nvml_used_bytes == 30
    assert found.peak_bytes("reserved") == 20
    assert found.peak_bytes("nvml_used") == 30
    assert peaks([replace(ranks[0], reserved=None)]).peak_bytes("reserved") is None


def test_repeats_are_medians_of_times_and_most_of_memory() -> None:
    several = [
        Numbers(step_time_seconds=seconds, peak_allocated_bytes=size)
        for seconds, size in ((1.0, 5), (9.0, 7), (2.0, 6))
    ]
    found = over_repeats([*several, Numbers()])
    assert found == Numbers(step_time_seconds=2.0, peak_allocated_bytes=7)
    assert over_repeats([]) == Numbers()
