"""Order of passes and what is in flight, against closed forms and a walk over every pass."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.plan.schedule import (
    chunk_order,
    first_in_flight,
    held_tensors,
    num_warmup_passes,
    passes,
    schedule_points,
)

Load = tuple[int, ...]


@st.composite
def schedules(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """PP, VPP, microbatches and stage that Megatron accepts."""
    pp = draw(st.integers(1, 6))
    vpp = draw(st.integers(1, 4)) if pp > 1 else 1
    count = draw(st.integers(1, 5)) * pp if vpp > 1 else draw(st.integers(1, 5 * pp))
    return pp, vpp, count, draw(st.integers(0, pp - 1))


@settings(max_examples=150, deadline=None)
@given(schedule=schedules())
def test_every_microbatch_goes_forward_and_back_once_through_every_chunk(schedule) -> None:
    pp, vpp, microbatches, stage = schedule
    steps = list(passes(pp, vpp, microbatches, stage))
    for chunk in range(vpp):
        of_chunk = [step.backward for step in steps if step.chunk == chunk]
        assert of_chunk.count(False) == of_chunk.count(True) == microbatches
    in_flight = [0] * vpp
    for step in steps:
        in_flight[step.chunk] += -1 if step.backward else 1
        assert min(in_flight) >= 0
    assert in_flight == [0] * vpp
    assert len(held_tensors(pp, vpp, microbatches, stage)) == len(steps)


@pytest.mark.parametrize("microbatches", [1, 2, 3, 4, 7, 20])
@pytest.mark.parametrize("stage", range(4))
def test_1f1b_holds_pp_minus_stage_microbatches(stage: int, microbatches: int) -> None:
    peak = max(moment.in_flight[0] for moment in schedule_points(4, 1, microbatches, stage, (0,)))
    assert peak == min(4 - stage, microbatches)


@pytest.mark.parametrize(("pp", "vpp"), [(2, 2), (4, 2), (4, 5), (8, 3)])
def test_the_interleaved_schedule_holds_its_warmup_and_one(pp: int, vpp: int) -> None:
    """2 (pp - stage - 1) + (vpp - 1) pp forwards of warm-up, and the one that runs."""
    for stage in range(pp):
        warmup = 2 * (pp - stage - 1) + (vpp - 1) * pp
        assert num_warmup_passes(pp, vpp, 3 * pp, stage) == warmup
        peak = max(
            sum(moment.in_flight) for moment in schedule_points(pp, vpp, 3 * pp, stage, (0,) * vpp)
        )
        assert peak == warmup + 1
        assert num_warmup_passes(pp, vpp, pp, stage) == min(warmup, pp * vpp)


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (4, 1), (2, 2), (4, 5)])
@pytest.mark.parametrize("rounds", [1, 3])
def test_what_is_in_flight_before_the_first_backward(pp: int, vpp: int, rounds: int) -> None:
    for stage in range(pp):
        forwards = itertools.takewhile(
            lambda one: not one.backward, passes(pp, vpp, rounds * pp, stage)
        )
        begun = [one.chunk for one in forwards]
        counted = tuple(begun.count(chunk) for chunk in range(vpp))
        assert first_in_flight(pp, vpp, rounds * pp, stage) == counted


def test_without_pipeline_one_microbatch_is_in_flight() -> None:
    assert {moment.in_flight for moment in schedule_points(1, 1, 5, 0, (0,))} == {(1,)}
    assert {moment.held for moment in schedule_points(1, 1, 5, 0, (0,))} == {0}


def test_groups_of_pp_microbatches_go_through_chunk_after_chunk() -> None:
    assert chunk_order(2, 3, 4) == (0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2)
    assert chunk_order(4, 1, 3) == (0, 0, 0)


def test_order_of_a_small_pipeline() -> None:
    """Stage 0 of 2 with three microbatches: one forward of warm-up, then one of each."""
    order = ["B" if step.backward else "F" for step in passes(2, 1, 3, 0)]
    assert "".join(order) == "FFBFBB"
    last = ["B" if step.backward else "F" for step in passes(2, 1, 3, 1)]
    assert "".join(last) == "FBFBFB"


def test_tensors_that_1f1b_holds() -> None:
    """The gradient of the backward before, and in a steady forward what it has read as well."""
    assert held_tensors(4, 1, 4, 0) == [0, 0, 0, 0, 0, 0, 0, 0]  # F F F | F B | B B B
    middle = held_tensors(4, 1, 4, 1)  # F F | F B F B | B B
    assert middle == [0, 0, 0, 0, 3, 1, 1, 1]
    assert held_tensors(4, 1, 3, 3) == [0, 0, 2, 1, 2, 1]  # F B F B F B


def brute_force(
    pp: int, vpp: int, microbatches: int, stage: int, classes: tuple[int, ...]
) -> dict[tuple[bool, int], set[Load]]:
    """Every pass of the step: microbatches in flight by class of chunks, and held tensors."""
    counts = [0] * (max(classes) + 1)
    loads: dict[tuple[bool, int], set[Load]] = {}
    held = held_tensors(pp, vpp, microbatches, stage)
    for step, extra in zip(passes(pp, vpp, microbatches, stage), held, strict=True):
        alike = classes[step.chunk]
        counts[alike] += 0 if step.backward else 1
        loads.setdefault((step.backward, alike), set()).add((*counts, extra))
        counts[alike] -= 1 if step.backward else 0
    return loads


def maximal(loads: set[Load]) -> set[Load]:
    def below(load: Load) -> bool:
        others = (other for other in loads if other != load)
        return any(all(x <= y for x, y in zip(load, o, strict=True)) for o in others)

    return {load for load in loads if not below(load)}


def classes_of(vpp: int) -> list[tuple[int, ...]]:
    """All alike; one end apart, either one; all different."""
    ends = [(0,) + (1,) * (vpp - 1), (0,) * (vpp - 1) + (1,)] if vpp > 1 else []
    return list(dict.fromkeys([(0,) * vpp, *ends, tuple(range(vpp))]))


@pytest.mark.parametrize(
    ("pp", "vpp", "rounds"),
    [
        *itertools.product((1, 2, 3, 4), (1,), (1, 4, 9)),
        *itertools.product((2, 3, 4), (2, 5), (1, 2, 4, 7)),
    ],
)
def test_moments_are_the_maxima_of_the_whole_step(pp: int, vpp: int, rounds: int) -> None:
    """Also where the step is longer than the rounds that are walked."""
    for stage, classes in itertools.product(range(pp), classes_of(vpp)):
        found: dict[tuple[bool, int], set[Load]] = {}
        for moment in schedule_points(pp, vpp, rounds * pp, stage, classes):
            kind = moment.backward, classes[moment.chunk]
            found.setdefault(kind, set()).add((*moment.by_class, moment.held))
        every = brute_force(pp, vpp, rounds * pp, stage, classes)
        assert found == {kind: maximal(loads) for kind, loads in every.items()}


def test_a_forward_lets_go_of_the_last_input_of_its_chunk() -> None:
    """Traced in megatron-core 0.16.1: PP 2, VPP 2, last stage, four microbatches. The third and
    fourth forward of its last chunk hold the sticky input with its gradient, and a sent one."""
    held = held_tensors(2, 2, 4, 1)
    forwards = [
        n
        for step, n in zip(passes(2, 2, 4, 1), held, strict=True)
        if not step.backward and step.chunk == 1
    ]
    assert forwards == [0, 2, 3, 3]


@settings(max_examples=100, deadline=None)
@given(schedule=schedules(), data=st.data())
def test_moments_of_any_step_cover_every_pass(schedule, data) -> None:
    pp, vpp, microbatches, stage = schedule
    classes = data.draw(st.sampled_from(classes_of(vpp)))
    found = list(schedule_points(pp, vpp, microbatches, stage, classes))
    for kind, loads in brute_force(pp, vpp, microbatches, stage, classes).items():
        same = [(*m.by_class, m.held) for m in found if (m.backward, classes[m.chunk]) == kind]
        for load in loads:
            assert any(all(x <= y for x, y in zip(load, o, strict=True)) for o in same)
