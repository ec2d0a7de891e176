"""Of what a golden speaks, and which one belongs to a result."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from harness.judge.comparison import Subject, find_golden
from harness.judge.goldens.golden import Golden, Identity, Meta, Provenance
from harness.judge.goldens.listing import golden_page, list_page
from harness.judge.goldens.series import Process, Series
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
    **more: Any,
) -> Golden:
    series = Series(steps=tuple(range(steps)), values=(0.5,) * steps)
    known = {"model.name": "toy", "recompute": "none"} if fields is None else fields
    return Golden(
        meta=Meta(provenance=provenance, reason="why", date=date),
        identity=Identity(label="toy/tp1pp1/none", gpus=gpus, fields=known, workload_key=key),
        processes=(Process(name="p", series={"step_time_seconds": series}),) if steps else (),
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
    from harness.judge.identity import workload_key

    return Subject(key=workload_key(WORKLOAD), label="toy", results=(result,))


@pytest.mark.parametrize(
    ("gpus", "full"),
    [("8xH100", H100), (H100, H100), ("cpu", "cpu"), ("1xTPU", "1xTPU"), ("xH100", "xH100")],
)
def test_gpus_by_their_full_name(gpus: str, full: str) -> None:
    assert golden(gpus).identity.full_gpus == full


def test_the_same_gpus_then_the_same_workload_then_measured_then_the_latest(
    subject: Subject,
) -> None:
    elsewhere = golden("8xB200", subject.key)
    part = golden("8xH100")
    published = golden("8xH100", subject.key, Provenance.PUBLISHED, "2026-09-09")
    measured = golden("8xH100", subject.key)
    later = golden("8xH100", subject.key, date="2026-02-02")
    order = [elsewhere, part, published, measured, later]
    for number in range(1, len(order) + 1):
        assert find_golden(subject, order[:number]) is order[number - 1]
        assert find_golden(subject, order[:number][::-1]) is order[number - 1]


def test_a_golden_of_another_workload_is_none_of_ours(subject: Subject) -> None:
    assert find_golden(subject, [golden(key="0" * 12)]) is None
    assert find_golden(subject, [golden(fields={"model.name": "toy", "seq_length": 2048})]) is None
    assert find_golden(subject, [golden(fields={})]) is None
    assert find_golden(subject, []) is None


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
    assert listed[0].split() == [
        "workload",
        "GPUs",
        "provenance",
        "date",
        "first",
        "metric",
        "file",
    ]
    assert listed[1].endswith("step_time_seconds 0.5 s  a.json")
    assert listed[2].split()[-2:] == ["oom", "b.json"]
    loss = {"loss": Series(steps=(1,), values=(3.0,))}
    both = replace(one, processes=tuple(replace(p, series=loss | p.series) for p in one.processes))
    assert list_page({Path("a.json"): both}) == list_page({Path("a.json"): one})
    page = golden_page(one)
    assert "step_time_seconds" in page
    assert "1 process x 3 steps, IQR 0.00 %  limit 3 %" in page
    assert "  workload (only partly known)\n  status oom\n" in golden_page(oom)
