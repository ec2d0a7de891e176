"""The pages of a sweep."""

from harness.sweeps.history import Outcome
from harness.sweeps.sweep_page import page
from harness.trial.result import TrialStatus
from tests.harness.sweeps.conftest import MakeSpace, measured


def test_the_page_shows_front_rest_and_reasons(space_of: MakeSpace) -> None:
    space, _ = space_of("recompute=corners")
    best, second, third = space.planned
    outcomes = {
        best: measured(best, 0.010, 2 * 2**30),
        second: measured(second, 0.020, 3 * 2**30),
        third: Outcome(name="x", status=TrialStatus.OOM, reason="[forward] out of memory"),
    }
    text = page("title", space, outcomes, "It is over.")
    front, rest = text.split("The other points:")
    assert best.recompute in front
    assert second.recompute not in front
    assert "2.00 GiB" in front
    assert second.recompute in rest
    assert f"{third.label}: [forward] out of memory" in rest
    assert "3 of 3 points: 2 ok, 1 oom." in rest
    assert "It is over." in rest
    assert max(map(len, text.splitlines())) <= 100
    small, _ = space_of("recompute=corners", "sweep.memory_budget=1GiB")
    assert "No point was measured within 1.00 GiB." in page("title", small, outcomes, "")
