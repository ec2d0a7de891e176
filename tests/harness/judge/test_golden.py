"""Of what a golden speaks, and which one belongs to a result."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from harness.judge.comparison import Subject, find_golden
from harness.judge.golden import (
    Golden,
    Identity,
    Meta,
    Provenance,
    Session,
    golden_text,
    read_golden,
)
from harness.judge.golden_page import golden_page, list_page
from harness.judge.identity import workload_key
from harness.judge.metrics import Series, metric_names, samples
from harness.trial.result import TrialResult, TrialStatus

WORKLOAD: dict[str, Any] = {
    "model": {"name": "toy"},
    "layout": {"data_parallel_size": 8},
    "recompute": "none",
    "seq_length": 1024,
}
H100 = "8xH100-SXM-80GB"


def golden(
    gpus: str = H100,
    key: str | None = None,
    provenance: Provenance = Provenance.MEASURED,
    date: str = "2026-01-01",
    fields: dict[str, Any] | None = None,
    steps: int = 3,
    status: TrialStatus = TrialStatus.OK,
    **more: Any,
) -> Golden:
    series = Series(values=dict.fromkeys(range(steps), 0.5))
    known = {"model.name": "toy", "recompute": "none"} if fields is None else fields
    return Golden(
        meta=Meta(provenance=provenance, reason="why", date=date),
        identity=Identity(label="toy/tp1pp1/none", gpus=gpus, workload=known, workload_key=key),
        status=status,
        sessions=(Session(samples={"p": {"step_time_seconds": series}}),) if steps else (),
        **more,
    )


@pytest.fixture
def subject() -> Subject:
    result = TrialResult(
        name="x",
        status=TrialStatus.OK,
        trial={"workload": WORKLOAD},
        environment={"gpus": [{"torch_name": "NVIDIA H100 80GB HBM3"}]},
        started_at="",
        wall_seconds=0.0,
    )
    return Subject(key=workload_key(WORKLOAD), label="toy", results=(result,))


@pytest.mark.parametrize(
    ("gpus", "full"),
    [("8xH100", H100), (H100, H100), ("cpu", "cpu"), ("1xTPU", "1xTPU"), ("xH100", "xH100")],
)
def test_gpus_by_their_full_name(gpus: str, full: str) -> None:
    assert golden(gpus).identity.full_gpus == full


def test_the_same_gpus_then_the_same_workload_then_measured_then_the_latest(subject) -> None:
    elsewhere = golden("8xB200", subject.key)
    part = golden("8xH100")
    published = golden("8xH100", subject.key, Provenance.PUBLISHED, "2026-09-09")
    measured = golden("8xH100", subject.key)
    later = golden("8xH100", subject.key, date="2026-02-02")
    order = [elsewhere, part, published, measured, later]
    for number in range(1, len(order) + 1):
        assert find_golden(subject, order[:number]) is order[number - 1]
        assert find_golden(subject, order[:number][::-1]) is order[number - 1]


def test_that_it_does_not_fit_is_known_of_its_own_gpus_only(subject: Subject) -> None:
    oom = golden("8xB200", subject.key, status=TrialStatus.OOM, steps=0)
    assert find_golden(subject, [oom]) is None
    here = replace(oom, identity=replace(oom.identity, gpus="8xH100"))
    assert find_golden(subject, [here]) is here


def test_one_published_number_is_exact_and_several_are_not() -> None:
    assert golden(provenance=Provenance.PUBLISHED, steps=1).exact("step_time_seconds")
    assert not golden(provenance=Provenance.PUBLISHED).exact("step_time_seconds")
    assert not golden(steps=1).exact("step_time_seconds")
    assert not golden(provenance=Provenance.PUBLISHED, steps=1).exact("tflops_per_gpu")


def test_a_workload_is_its_key_or_the_part_that_is_known() -> None:
    other = WORKLOAD | {"recompute": "full"}
    keyed = golden(key=workload_key(WORKLOAD), fields={}).identity
    assert (keyed.holds_for(WORKLOAD), keyed.holds_for(other)) == (True, False)
    part = {"model.name": "toy", "layout.data_parallel_size": "8"}
    assert golden(fields=part).identity.holds_for(other)
    assert not golden(fields=part | {"seq_length": 1}).identity.holds_for(WORKLOAD)
    assert not golden(fields={}).identity.holds_for(WORKLOAD)


def test_the_same_subject() -> None:
    assert golden("8xH100", "k").same_subject(golden(H100, "k"))
    assert not golden("8xH100", "k").same_subject(golden("8xB200", "k"))
    assert not golden(key="k").same_subject(golden())
    assert golden().same_subject(golden())
    assert not golden().same_subject(golden(fields={"model.name": "other"}))


def test_pages() -> None:
    one = golden("8xH100", "k", limits={"step_time_seconds": 0.03})
    oom = golden(status=TrialStatus.OOM, steps=0)
    assert list_page({}).startswith("no goldens; make them with harness golden update")
    listed = list_page({Path("a.json"): one, Path("b.json"): oom}).splitlines()
    assert " ".join(listed[0].split()) == "workload GPUs provenance date sessions file"
    assert listed[1].split()[-2:] == ["1", "a.json"]
    assert listed[2].split()[-2:] == ["oom", "b.json"]
    losses = {"p": {"loss": Series(values={1: 3.0})} | one.processes[0]}
    both = replace(one, sessions=(Session(samples=losses),))
    assert list_page({Path("a.json"): both}) == list_page({Path("a.json"): one})
    page = golden_page(one)
    assert "step_time_seconds" in page
    assert "1 process x 3 steps, IQR 0.00 %  limit 3 %" in page
    assert "  workload (only partly known)\n  status oom\n" in golden_page(oom)


ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "results/golden/llama3_70b_sft_32xh100_fp8_current.json"


PROCESS = ("sessions", 0, "samples", "published")


@pytest.fixture
def values() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    return found


def kept(values: dict[int, float]) -> tuple[dict[str, Any], Series]:
    """What the file of a golden has of a loss, and what is read of it."""
    held = replace(golden(), sessions=(Session(samples={"p": {"loss": Series(values=values)}}),))
    text = golden_text(held)
    (session,) = json.loads(text)["sessions"]
    return session["samples"]["p"]["loss"], read_golden(text).processes[0]["loss"]


@pytest.mark.parametrize(
    ("steps", "interval"), [((4, 5, 6), 1), ((5, 10, 20), 5), ((7,), 1), ((), 1), ((1, 4, 6), 1)]
)
def test_megatrons_shape_has_the_interval_of_the_steps(steps, interval) -> None:
    values = {step: float(step) for step in steps}
    shape, back = kept(values)
    assert shape["step_interval"] == interval
    assert (shape["start_step"], shape["end_step"]) == ((steps[0], steps[-1]) if steps else (1, 1))
    assert back.values == values


def test_not_a_number_is_text_in_the_file_and_a_number_here() -> None:
    shape, back = kept({1: math.nan, 2: math.inf, 3: 2.0, 4: 7})
    assert shape["values"] == {"1": "nan", "2": "inf", "3": 2.0, "4": 7}
    assert math.isnan(back.values[1])
    assert back.values[2] == math.inf
    assert back.finite == (2.0, 7)
    assert type(back.values[4]) is int, "bytes stay integers"


def test_steps_are_sorted_as_numbers() -> None:
    shape, _ = kept({10: 1.0, 9: 2.0, 100: 3.0})
    assert list(shape["values"]) == ["9", "10", "100"]


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "[]", "3", "{}", '{"schema_version": 1, "meta": 3}', "[" * 100_000]
)
def test_what_is_no_golden_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UserError) as refused:
        read_golden(text, "file")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("schema_version",), 3, "must be 2"),
        (("schema_version",), None, "must be 2"),
        (("meta",), None, "cannot be read"),
        (("meta", "provenance"), "guessed", "cannot be read: Invalid enum value 'guessed'"),
        (("status",), "fine", "cannot be read"),
        (("sessions",), {"a": 1}, "cannot be read"),
        (("sessions", 0, "samples"), [], "cannot be read"),
        (("limits",), {"tflops_per_gpu": "wide"}, "cannot be read"),
        (("limits",), {"tflops_per_gpu": 1.5}, "cannot be read: Expected `float` < 1.0"),
        *(
            ((*PROCESS, "tflops_per_gpu", "values"), {step: value}, "cannot be read")
            for step, value in (("1", True), ("1", None), ("1", "fast"), ("1", 1e200), ("x", 1.0))
        ),
        (PROCESS, {"step_time_seconds": {"values": {"1": 0.0}}}, "be positive"),
    ],
)
def test_a_wrong_file_is_refused(values, path, value, says) -> None:
    inner = values
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(UserError, match=says) as refused:
        read_golden(json.dumps(values), "my.json")
    assert "my.json" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("key", ["meta", "identity", "status", "sessions"])
def test_a_missing_part_is_named(values: dict[str, Any], key: str) -> None:
    del values[key]
    with pytest.raises(UserError, match=f"missing required field `{key}`"):
        read_golden(json.dumps(values), "my.json")


def test_the_summary_is_for_the_reader_and_computed_anew(values: dict[str, Any]) -> None:
    values["summary"] = {"tflops_per_gpu": {"median": 1.0}}
    golden = read_golden(json.dumps(values), "f")
    assert golden.summary()["tflops_per_gpu"].median == 709.93


def test_samples_of_processes() -> None:
    series = Series(values={3: 1.0, 4: math.nan, 5: 2.0})
    processes = [{"x": series}, {"y": series}, {"x": Series(values={})}]
    assert samples(processes, "x") == ((1.0, 2.0),)
    assert metric_names(processes) == ("x", "y")


def test_a_file_without_sessions_is_one_session(values: dict[str, Any]) -> None:
    (session,) = values.pop("sessions")
    old = values | {"schema_version": 1, "samples": session["samples"]}
    versions = {"software.torch": "2.9", "git_commit": "1"}
    old["meta"]["environment"] = {"host.name_hash": "abc"} | versions
    (found,) = read_golden(json.dumps(old)).sessions
    assert (found.started_at, found.host, found.versions) == ("2026-06-15", "abc", versions)
    assert read_golden(json.dumps(old | {"samples": {}})).sessions == ()
