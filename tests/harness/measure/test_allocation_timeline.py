"""Points, phases and thinning."""

import threading
import time

import pytest

from harness.measure.allocation_timeline import Timeline, sampled, thinned
from harness.trial.result import Phase, TimelinePoint


def point(seconds: float, allocated: int, phase: Phase = Phase.FORWARD) -> TimelinePoint:
    return TimelinePoint(seconds=seconds, allocated=allocated, phase=phase)


def test_a_phase_is_marked_with_the_bytes_of_that_moment() -> None:
    now = iter([100.0, 101.0, 102.5, 103.0])
    live = iter([10, 30])
    timeline = Timeline(lambda: next(live), lambda: next(now))
    timeline.phase(Phase.FORWARD)
    timeline.add(70)
    timeline.phase(Phase.BACKWARD)
    assert timeline.points() == (
        point(1.0, 10),
        point(2.5, 70),
        point(3.0, 30, Phase.BACKWARD),
    )


def test_a_replay_is_a_stretch_of_the_backward() -> None:
    timeline = Timeline(lambda: 10, lambda: 0.0)
    timeline.phase(Phase.BACKWARD)
    timeline.replay(True)
    timeline.replay(False)
    seen = [one.phase for one in timeline.points()]
    assert seen == [Phase.BACKWARD, Phase.REPLAY, Phase.BACKWARD]


def test_few_points_stay_as_they_are() -> None:
    points = [point(i, i) for i in range(5)]
    assert thinned(points, 5) == tuple(points)


def test_thinning_keeps_peaks_ends_and_borders_of_phases() -> None:
    points = [
        point(i, 500 if i == 777 else i % 7, Phase.FORWARD if i < 600 else Phase.BACKWARD)
        for i in range(1000)
    ]
    kept = thinned(points, 50)
    assert len(kept) <= 54
    assert max(p.allocated for p in kept) == 500
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert points[599] in kept
    assert points[600] in kept
    assert [p.seconds for p in kept] == sorted(p.seconds for p in kept)


def test_a_sampler_takes_at_once_and_stops_with_its_block() -> None:
    taken: list[int] = []
    with sampled(lambda: taken.append(threading.get_ident()), interval=0.001):
        deadline = time.monotonic() + 5
        while len(taken) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
    count = len(taken)
    assert count >= 3
    assert threading.get_ident() not in taken
    time.sleep(0.01)
    assert len(taken) == count


def test_a_failing_block_stops_the_sampler() -> None:
    taken: list[int] = []
    with pytest.raises(RuntimeError), sampled(lambda: taken.append(1), interval=0.001):
        raise RuntimeError
    count = len(taken)
    time.sleep(0.01)
    assert len(taken) == count
