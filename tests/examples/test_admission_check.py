"""examples/admission_check.py, run."""

import runpy
from pathlib import Path
from typing import Any

import pytest

import advisor

ROOT = Path(__file__).parents[2]
JOB: dict[str, Any] = {
    "model": "llama3_70b",
    "gpus": "32xH100",
    "tp": 4,
    "pp": 4,
    "vpp": 5,
    "seq_length": 8192,
}


@pytest.fixture(scope="module")
def admitted() -> Any:
    return runpy.run_path(str(ROOT / "examples" / "admission_check.py"))["admitted"]


def test_a_setting_that_fits_stays(admitted: Any) -> None:
    assert admitted("full:uniform:1", **JOB) == "full:uniform:1"


def test_else_it_is_the_fastest_that_fits(admitted: Any) -> None:
    assert not advisor.evaluate("none", **JOB).fits
    chosen = admitted("none", **JOB)
    advice = advisor.advise(**JOB)
    times = {c.recompute.spec: c.step_time_seconds for c in advice.candidates if c.fits}
    assert times[chosen] == min(times.values())


def test_where_nothing_fits_it_says_so(admitted: Any) -> None:
    with pytest.raises(MemoryError, match="Nothing fits in"):
        admitted("none", **{**JOB, "gpus": "16xH100", "memory_budget": "20GiB"})
