"""Probes: a case predicts, measures in a process of its own, and is not run twice."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from advisor.base.errors import UserError
from harness.trial.trial import Device
from research.probes import __main__ as probe
from research.probes.probe_case import Case, answer


def case(measure) -> Case:
    return Case(name="one", why="a test", predict=lambda: {"bytes": 1}, measure=measure)


def raising(error: BaseException):
    def measure():
        raise error

    return measure


def test_an_answer_holds_both_sides() -> None:
    found = answer(case(lambda: {"bytes": 2}), Device.CPU)
    assert (found["status"], found["predicted"], found["measured"]) == (
        "ok",
        {"bytes": 1},
        {"bytes": 2},
    )
    assert found["environment"]["software"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "oom"),
        (UserError("te", "", "is missing"), "failed"),
        (ValueError("wrong"), "failed"),
    ],
)
def test_what_a_case_raises_is_in_its_answer(error: Exception, status: str) -> None:
    found = answer(case(raising(error)), Device.CPU)
    assert found["status"] == status
    assert found["predicted"] == {"bytes": 1}
    assert str(error) in found["reason"]


def test_only_what_failed_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(status: str) -> int:
        module = ModuleType("research.probes.mine")
        module.cases = lambda tiny: (case(lambda: {}),)
        monkeypatch.setitem(sys.modules, "research.probes.mine", module)
        monkeypatch.setattr(probe, "probes", lambda: ("mine",))

        class Process:
            def __init__(self, words, **_: object) -> None:
                path = tmp_path / "mine" / "one.json"
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps({"status": status}))

            def communicate(self, turn: bytes, seconds: float) -> None:
                assert turn

        monkeypatch.setattr(probe, "Popen", Process)
        return probe.main(["mine", "--out", str(tmp_path)])

    assert run("failed") == 4
    assert run("oom") == 0
    assert run("failed") == 0  # had its answer


def test_names_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(["nope", "--out", str(tmp_path)]) == 2
    assert "is no probe" in capsys.readouterr().err


@pytest.mark.parametrize("name", probe.probes())
def test_cases_are_told_apart_and_bounded(name: str) -> None:
    for tiny in (False, True):
        names = [case.name for case in probe.cases_of(name, tiny=tiny)]
        assert len(set(names)) == len(names)
