"""The pages of a sweep."""

from msgspec.structs import replace

from harness.cli.main import main
from harness.sweeps.history import Outcome, outcome_of, over_repeats
from harness.sweeps.priority import End, Ending
from harness.sweeps.space import Point
from harness.sweeps.sweep_page import fastest_and_smallest, page
from harness.trial.result import MemoryPeak, StepTimes, TrialResult, TrialStatus
from tests.advisor.cli.test_widths import WIDTHS
from tests.harness.conftest import RAN
from tests.harness.sweeps.conftest import MakeSpace, measured


def test_the_page_shows_front_rest_and_reasons(space_of: MakeSpace, monkeypatch) -> None:
    space, _ = space_of("recompute=corners")
    best, second, third = space.planned
    outcomes = {
        best: measured(best, 0.010, 2 * 2**30),
        second: measured(second, 0.020, 3 * 2**30),
        third: Outcome(name="x", status=TrialStatus.OOM, reason="[forward] out of memory"),
    }
    ended = End(why=Ending.TIED, words="It is over.", tied=(best, second))
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        lines = page("title", space, outcomes, ended).splitlines()
        assert max(map(len, lines)) <= width
    monkeypatch.setenv("COLUMNS", "100")
    text = page("title", space, outcomes, ended)
    front, rest = text.split("The other points:")
    assert best.recompute in front
    assert second.recompute not in front
    assert "2.00 GiB" in front
    assert second.recompute in rest
    assert (front.count("ok, tied"), rest.count("ok, tied")) == (1, 1)
    assert f"{third.label}: [forward] out of memory" in rest
    assert "3 of 3 points: 2 ok, 1 oom." in rest
    assert "It is over." in rest
    small, _ = space_of("recompute=corners", "sweep.memory_budget=1GiB")
    assert "No point was measured within 1.00 GiB." in page("title", small, outcomes, ended)


def test_a_dry_run_for_gpus_that_are_not_here(monkeypatch, capsys) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = ["experiment=llama3_8b_1xh200", "gpus=8xB200", "sweep.layouts=true"]
    settings = "recompute.settings=[none,selective:mlp]"
    assert main(["sweep", "--dry-run", *words, settings, "sweep.memory_budget=60GiB"]) == 0
    head, _, notes = capsys.readouterr().out.partition("points are not run:")
    assert head.startswith("llama3_8b_1xh200 on B200-SXM-180GB (dry run)\n")
    points = {tuple(line.split()[1:4]): line for line in head.splitlines()}
    assert points["tp2-dp4", "1", "none"].endswith(">99 %")
    assert ("dp8", "1", "none") not in points, "65 GiB, as predicted"
    assert "predicted to fit with a probability below sweep.min_fit_probability = 0.01" in " ".join(
        notes.split()
    )
    assert max(map(len, head.splitlines())) <= 100


def point(number: int) -> Point:
    return Point(layout="dp1", micro_batch_size=number, recompute="none")


def test_the_front_is_what_no_other_beats() -> None:
    figures = [(3.0, 10), (1.0, 30), (2.0, 20), (2.5, 20), (2.0, 25), (4.0, 40)]
    outcomes = {point(k): measured(point(k), *pair) for k, pair in enumerate(figures)}
    outcomes[point(9)] = Outcome(name="x", status=TrialStatus.OOM)
    outcomes[point(8)] = replace(measured(point(8), 0.5, 5), status=TrialStatus.PRUNED)
    assert fastest_and_smallest(outcomes, None) == [point(1), point(2), point(0)]
    assert fastest_and_smallest(outcomes, 20) == [point(2), point(0)]
    assert fastest_and_smallest(outcomes, 9) == []


def test_a_process_that_failed_takes_no_point_from_the_front() -> None:
    one, failed = measured(point(1)), Outcome(name="x", status=TrialStatus.FAILED)
    assert over_repeats([failed, one]) == one
    assert over_repeats([failed, failed]).failed
    assert not over_repeats([one, replace(failed, status=TrialStatus.OOM)]).measured


def test_an_outcome_is_the_median_step_and_the_worst_peak() -> None:
    result = TrialResult(
        **RAN,
        times=StepTimes(seconds=(3.0, 1.0, 2.0), warmup_seconds=(), clock="host"),
        memory=(
            MemoryPeak(rank=0, stage=0, allocated=5),
            MemoryPeak(rank=1, stage=0, allocated=4, reserved=9),
        ),
    )
    found = outcome_of(result)
    assert (found.step_seconds, found.peak_bytes, found.measured) == (2.0, 9, True)
    bare = TrialResult(
        name="x", status=TrialStatus.OK, trial={}, environment={}, started_at="", wall_seconds=0.0
    )
    assert outcome_of(bare).failed, "a result without figures says nothing"
