"""Order, budget and correction of guesses, on a clock that the test turns."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from harness.calibration.bench.case_order import Pace, Schedule, queued, scattered, turns
from harness.calibration.bench.cases import HOST_TIMES, Case, CaseKind
from harness.calibration.bench.shapes import preset_cases

PACE = Pace(flops_per_second=1e12, bytes_per_second=1e11, least_seconds=0.01)


class Clock:
    """A device that takes `seconds(case)` for each case."""

    def __init__(self, seconds: Callable[[Case], float]) -> None:
        self.now = 1000.0
        self.timed: list[Case] = []
        self._seconds = seconds

    def time(self) -> float:
        return self.now

    def measure(self, case: Case) -> None:
        self.timed.append(case)
        self.now += self._seconds(case)


def copies(count: int) -> list[Case]:
    return [Case(kind=CaseKind.COPY, sizes=(1000 * size,)) for size in range(1, count + 1)]


def run(clock: Clock, cases: list[Case], budget: float) -> bool:
    schedule = Schedule(budget_seconds=budget, pace=PACE, measure=clock.measure, now=clock.time)
    return schedule.run(cases)


def test_scattered_covers_all_and_any_beginning_evenly() -> None:
    assert scattered(8) == [0, 4, 2, 6, 1, 5, 3, 7]
    assert scattered(5) == [0, 4, 2, 1, 3]
    assert scattered(1) == [0]
    assert scattered(0) == []
    first = sorted(scattered(1000)[:16])
    assert max(b - a for a, b in pairwise(first)) <= 130


def test_the_largest_of_a_kind_comes_first_and_gemms_most_often() -> None:
    assert queued(copies(9))[CaseKind.COPY][0] == copies(9)[-1]
    queues = queued(preset_cases())
    others = {CaseKind.ALL_REDUCE, CaseKind.SUSTAINED_GEMM, *HOST_TIMES}
    assert set(turns(queues)) == set(CaseKind) - others
    assert turns(queues).count(CaseKind.GEMM) == 3
    assert sorted(c.key for q in queues.values() for c in q) == [c.key for c in preset_cases()]


def test_everything_is_timed_where_there_is_time_and_nothing_where_there_is_none() -> None:
    clock = Clock(lambda _: 0.01)
    assert not run(clock, copies(3), budget=0.0)
    assert clock.timed == []
    assert run(clock, copies(50), budget=100.0)
    assert set(clock.timed) == set(copies(50))
    assert len(clock.timed) == 50


@pytest.mark.parametrize("true_over_guessed", [0.1, 1.0, 3.0, 10.0])
def test_the_budget_is_kept(true_over_guessed: float) -> None:
    """At most one case is under way when time is up, and none takes more than its share once the
    guess is corrected; the first, before any correction, may be wrong by the whole factor."""
    budget = 20.0
    clock = Clock(lambda case: PACE.seconds(case) * true_over_guessed)
    assert not run(clock, list(preset_cases()), budget)
    assert clock.timed
    assert clock.now - 1000.0 <= budget * (1 + 0.05 * max(1.0, true_over_guessed))


def test_a_case_that_is_too_long_waits_and_the_next_of_its_kind_is_timed() -> None:
    long = Case(kind=CaseKind.COPY, sizes=(10**12,))
    clock = Clock(lambda _: 0.02)
    assert not run(clock, [long, *copies(3)], budget=10.0)
    assert set(clock.timed) == set(copies(3))


def test_a_fast_device_gets_to_what_was_too_long_at_first() -> None:
    cases = [Case(kind=CaseKind.COPY, sizes=(10**9 * n,)) for n in range(1, 60)]
    clock = Clock(lambda case: PACE.seconds(case) / 100)
    assert run(clock, cases, budget=8.0)
    assert len(clock.timed) == len(cases)
