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


def test_one_process_and_its_cpu() -> None:
    assert differences([]) == differences([1.0]) == ()
    assert stopwatch(Device.CPU).clock == HOST
    assert slowest_rank(1.25, Device.CPU) == 1.25
