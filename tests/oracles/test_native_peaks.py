"""Predicted peaks next to those that torch's own CUDA allocator reached without a GPU
(no_gpu/native_peaks.py), and the verdict on what fits."""

import csv
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from statistics import fmean

import pytest
from msgspec import Struct

from harness.judge.results import load_results
from tests.oracles.no_gpu.native_peaks import COLUMNS, CONTEXT_BYTES, DATA, cases, trials_of

pytest.importorskip("hydra")
MEASURED = Path(__file__).parents[2] / "results" / "measured" / "h100"


class Row(Struct, frozen=True):
    """Predicted next to reached; None where it ran out of memory. taken: with a CUDA context."""

    expandable: bool
    fits: float
    predicted_allocated: int
    predicted_taken: int
    allocated: int | None
    taken: int | None


def read() -> Iterator[Row]:
    with DATA.open(newline="") as file:
        reached = list(csv.DictReader(file))
    assert [tuple(map(str, one.values())) for one in cases()] == [
        tuple(one[name] for name in COLUMNS[:-2]) for one in reached
    ]
    rows = zip(cases(), reached, strict=True)
    for _, job in groupby(rows, key=lambda row: tuple(row[0][name] for name in COLUMNS[:6])):
        of_job = list(job)
        trials = trials_of(of_job[0][0], [case["recompute"] for case, _ in of_job])
        for trial, (case, peaks) in zip(trials, of_job, strict=True):
            reported = trial.prediction
            assert reported is not None
            yield Row(
                expandable=case["expandable_segments"],
                fits=reported.fit_probability or 0.0,
                predicted_allocated=reported.peak_allocated_bytes or 0,
                predicted_taken=reported.peak_reserved_bytes or 0,
                allocated=int(peaks["allocated"]) if peaks["allocated"] else None,
                taken=int(peaks["reserved"]) + CONTEXT_BYTES if peaks["reserved"] else None,
            )


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(read())


def errors(rows: list[Row], *, expandable: bool) -> list[float]:
    """Of reserved bytes, the context included."""
    of_it = [row for row in rows if row.expandable is expandable and row.taken]
    return [row.predicted_taken / (row.taken or 1) - 1 for row in of_it]


def test_steps_that_a_gpu_ran_have_its_peaks_to_the_byte() -> None:
    """All of dense models on the H100."""
    with DATA.open(newline="") as file:
        reached = {
            tuple(row[name] for name in COLUMNS[:-2]): (row["allocated"], row["reserved"])
            for row in csv.DictReader(file)
        }
    same = 0
    for result in load_results([MEASURED]).results:
        asked = result.trial["workload"]
        if result.memory and asked["backend"] == "native" and not asked["model"]["num_moe_experts"]:
            model, (memory,) = asked["model"], result.memory
            sizes = (asked[name] for name in COLUMNS[2:5])
            key = model["name"], model["num_layers"], *sizes, True, asked["recompute"]
            assert reached[tuple(map(str, key))] == (str(memory.allocated), str(memory.reserved))
            same += 1
    assert same == 24


def test_allocated_peaks(rows: list[Row]) -> None:
    ran = [row for row in rows if row.allocated]
    found = [row.predicted_allocated / (row.allocated or 1) - 1 for row in ran]
    assert len(found) == 183
    assert fmean(map(abs, found)) < 0.0003
    assert max(map(abs, found)) < 0.005


def test_reserved_peaks(rows: list[Row]) -> None:
    """Without expandable segments the order of every request counts."""
    expandable, segments = (errors(rows, expandable=one) for one in (True, False))
    assert (len(expandable), len(segments)) == (96, 87)
    assert fmean(map(abs, expandable)) < 0.004
    assert max(map(abs, expandable)) < 0.03
    assert fmean(map(abs, segments)) < 0.012
    assert min(segments) > -0.055


def test_what_fits(rows: list[Row]) -> None:
    """With expandable segments no verdict is wrong where it is sure; without, one job that is said
    to fit runs out of memory in its third step."""
    sure = [row for row in rows if row.fits >= 0.95]
    wrong = [row for row in sure if row.taken is None]
    assert not [row for row in wrong if row.expandable]
    assert len(wrong) == 1
    unlikely = [row for row in rows if row.fits <= 0.05]
    assert not [row for row in unlikely if row.taken]
    assert (len(sure), len(unlikely)) == (154, 55)
