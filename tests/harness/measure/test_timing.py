"""The clocks."""

from harness.measure.timing import HOST, Stopwatch, differences, slowest_rank, stopwatch
from harness.trial.trial import Device


def test_laps_are_the_distances_of_marks() -> None:
    ticks = iter([10.0, 10.5, 12.0, 20.0, 21.0])
    watch = Stopwatch(lambda: next(ticks))
    for _ in range(3):
        watch.mark()
    assert watch.laps() == (0.5, 1.5)
    watch.mark()
    watch.mark()
    assert watch.laps() == (1.0,)
    assert watch.host_laps() == (1.0,)


def test_differences_of_too_few() -> None:
    assert differences([]) == differences([1.0]) == ()


def test_a_cpu_is_timed_by_the_host_clock_and_says_so() -> None:
    assert stopwatch(Device.CPU).clock == HOST


def test_without_a_process_group_a_rank_is_alone() -> None:
    assert slowest_rank(1.25, Device.CPU) == 1.25
