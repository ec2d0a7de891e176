"""What is written comes back; what is half written counts as absent."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from harness.trial.result import (
    Concern,
    Evidence,
    Flops,
    MemoryPeak,
    Phase,
    StepTimes,
    TimelinePoint,
    TrialResult,
    TrialStatus,
)
from harness.trial.store import (
    RunFolder,
    StateWriter,
    TrialFolder,
    TrialState,
    decode,
    decode_result,
    encode,
)
from harness.trial.trial import RunPlan, Trial

RESULT = TrialResult(
    name="abc-r0",
    status=TrialStatus.OK,
    trial={"repeat": 0},
    environment={"torch": "2.13"},
    started_at="2026-01-01T00:00:00+00:00",
    wall_seconds=1.5,
    times=StepTimes(seconds=(0.1, 0.2), warmup_seconds=(1.0,), clock="host"),
    memory=(MemoryPeak(rank=0, stage=0, allocated=10, saved_bytes_per_layer=3),),
    timeline=(TimelinePoint(seconds=0.0, allocated=1, phase=Phase.FORWARD),),
    flops=Flops(model=1e12, hardware=2e12, replayed_per_layer=7),
    loss=(1.0, 0.5),
    concerns=(Concern(name="spread", seen="9 %", limit="5 %", advice="repeat", fatal=True),),
    evidence=Evidence(phase=Phase.BACKWARD, message="m", log_tail=("a", "b")),
)


def test_a_result_comes_back_as_it_was() -> None:
    assert decode_result(encode(RESULT), "result.json") == RESULT


def test_losses_that_are_no_numbers_are_strict_json() -> None:
    lost = replace(RESULT, loss=(math.nan, math.inf, -math.inf))
    text = encode(lost)
    assert '"nan"' in text
    assert "NaN" not in text
    back = decode_result(text, "result.json").loss
    assert math.isnan(back[0])
    assert back[1:] == (math.inf, -math.inf)


def test_a_trial_and_a_plan_come_back(trial: Trial, make_plan: Callable[..., RunPlan]) -> None:
    assert decode(Trial, encode(trial), "trial.json") == trial
    plan = make_plan(2, 3)
    assert decode(RunPlan, encode(plan), "plan.json") == plan


@pytest.mark.parametrize("cut", [0, 1, 10, 200, -2])
def test_half_a_result_is_none(tmp_path: Path, cut: int) -> None:
    folder = TrialFolder(tmp_path)
    (tmp_path / "result.json").write_text(encode(RESULT)[:cut])
    assert folder.has_result()
    assert folder.result() is None


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        "{}",
        "\x00" * 100,
        encode(RESULT).replace('"ok"', '"fine"'),
        encode(RESULT).replace('"schema_version": 1', '"schema_version": 2'),
        encode(RESULT).replace('"loss": [', '"loss": ["x", '),
        encode(RESULT).replace('"environment": {', '"environment": 3, "x": {'),
        '{"a":' * 5000,
    ],
)
def test_another_file_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    assert TrialFolder(tmp_path).result() is None


def test_a_trial_folder_from_start_to_end(tmp_path: Path, trial: Trial) -> None:
    folder = TrialFolder(tmp_path / "t")
    assert folder.trial() is None
    folder.create(trial)
    assert folder.trial() == trial
    assert folder.state() == TrialState()
    assert folder.result() is None
    folder.write_result(RESULT)
    assert folder.result() == RESULT
    assert sorted(os.listdir(folder.path)) == ["result.json", "trial.json"]


def test_a_new_attempt_forgets_ranks_and_state_of_the_old(tmp_path: Path, trial: Trial) -> None:
    folder = TrialFolder(tmp_path)
    folder.create(trial)
    StateWriter(folder).write(Phase.BACKWARD, 12)
    with folder.reserve(3) as reservation:
        reservation.commit(encode(RESULT))
    (tmp_path / ".result.json.1.tmp").write_text("half")
    assert folder.state() == TrialState(phase=Phase.BACKWARD, step=12)
    assert folder.rank_results() == {3: RESULT}
    folder.create(trial)
    assert folder.state() == TrialState()
    assert folder.rank_results() == {}
    assert os.listdir(tmp_path) == ["trial.json"]


@pytest.mark.parametrize("text", ["", "{", '{"phase": "lunch", "step": 1}', "[]", '{"step": 1}'])
def test_a_torn_state_is_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    assert TrialFolder(tmp_path).state() == TrialState()


def test_a_shorter_state_replaces_a_longer_one(tmp_path: Path) -> None:
    writer = StateWriter(TrialFolder(tmp_path))
    writer.write(Phase.OPTIMIZER, 100_000)
    writer.write(Phase.BUILD, 1)
    assert TrialFolder(tmp_path).state() == TrialState(phase=Phase.BUILD, step=1)


def test_a_state_that_cannot_be_written_is_silent(tmp_path: Path) -> None:
    StateWriter(TrialFolder(tmp_path / "absent")).write(Phase.BUILD, 1)


def test_a_run_folder(tmp_path: Path, make_plan: Callable[..., RunPlan]) -> None:
    plan: RunPlan = make_plan(2, 2)
    run = RunFolder(tmp_path / "runs" / "one")
    run.create(plan)
    assert run.plan() == plan
    assert run.trials() == ()
    names = [trial.name for _, trial in plan.trials()]
    for _, trial in plan.trials():
        run.trial(trial.name).create(trial)
    run.trial(names[2]).write_result(RESULT)
    assert sorted(folder.path.name for folder in run.trials()) == sorted(names)
    assert run.results() == {names[2]: RESULT}


def test_setting_aside_keeps_every_version(tmp_path: Path, trial: Trial) -> None:
    run = RunFolder(tmp_path)
    for expected in ("x.1", "x.2"):
        run.trial("x").create(trial)
        run.trial("x").write_result(replace(RESULT, name=expected))
        assert run.set_aside("x").name == expected
    kept = [TrialFolder(path).result() for path in sorted((tmp_path / "superseded").iterdir())]
    assert [result.name for result in kept if result] == ["x.1", "x.2"]
    assert run.trials() == ()


def test_a_folder_without_a_plan_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no plan\.json; name the folder of a run"):
        RunFolder(tmp_path).plan()
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(UserError, match="is not valid JSON"):
        RunFolder(tmp_path).plan()
