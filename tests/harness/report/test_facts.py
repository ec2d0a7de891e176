"""A run is read whole: nothing that was planned vanishes."""

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from harness.judge.update import load_goldens
from harness.report.facts import Facts, load_facts
from harness.trial.result import TrialStatus
from harness.trial.run_plan import RunPlan
from harness.trial.store import RunFolder

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
    assert gpu_facts.gpu is not None
    assert gpu_facts.gpu.name == "H200-SXM-141GB"
    assert cpu_facts.gpu is None
    assert gpu_facts.place is not None
    assert gpu_facts.place.gpus == "1xH200-SXM-141GB"
    assert [len(cpu_facts.of(setting)) for setting in cpu_facts.plan.settings] == [2, 2, 2]
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
