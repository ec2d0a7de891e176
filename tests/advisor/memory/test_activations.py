import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.memory.activations import activation_peak
from advisor.memory.chunk import ChunkFootprint
from advisor.memory.events import Peak
from advisor.plan.schedule import held_tensors, passes
from tests.advisor.toys import SHARD


def footprint(kept: int, forward: int, backward: int) -> ChunkFootprint:
    return ChunkFootprint(
        kept=kept, forward=Peak(forward, "an operator"), backward=Peak(backward, "another")
    )


CHUNK = footprint(1000, 1200, 1500)


def test_one_stage_needs_one_microbatch() -> None:
    peak = activation_peak(SHARD, (CHUNK,), (0,), 1, 0, 7)
    assert (peak.kept, peak.transient, peak.total) == (1000, 500, 1500)
    assert peak.phase == "backward of chunk 0: another"


@pytest.mark.parametrize("stage", range(4))
def test_1f1b_adds_a_microbatch_a_stage(stage: int) -> None:
    """And the gradient of the backward before, on every stage but the first."""
    peak = activation_peak(SHARD, (footprint(10**6, 10**6, 2 * 10**6),), (0,), 4, stage, 8)
    assert peak.in_flight == (4 - stage,)
    assert peak.kept == (4 - stage) * 10**6
    assert peak.transient == 10**6 + (SHARD if stage else 0)


def test_a_forward_can_be_the_peak() -> None:
    peak = activation_peak(SHARD, (footprint(1000, 3000, 1500),), (0,), 1, 0, 1)
    assert peak.phase == "forward of chunk 0: an operator"
    assert peak.total == 3000


def test_a_stage_that_holds_nothing_has_a_peak_of_nothing() -> None:
    """What a graph's pool needs on a last stage that is the loss alone."""
    assert activation_peak(0, (footprint(0, 0, 0),), (0,), 4, 3, 8).total == 0


def test_fewer_microbatches_than_stages_are_all_in_flight() -> None:
    assert activation_peak(SHARD, (CHUNK,), (0,), 8, 0, 3).in_flight == (3,)


def walked(chunks: tuple[ChunkFootprint, ...], pp: int, stage: int, microbatches: int) -> int:
    """The peak over every pass of the step."""
    vpp, best = len(chunks), 0
    counts = [0] * vpp
    held = held_tensors(pp, vpp, microbatches, stage)
    for step, extra in zip(passes(pp, vpp, microbatches, stage), held, strict=True):
        counts[step.chunk] += 0 if step.backward else 1
        chunk = chunks[step.chunk]
        peak = chunk.backward if step.backward else chunk.forward
        kept = sum(n * c.kept for n, c in zip(counts, chunks, strict=True))
        best = max(best, kept - chunk.kept + peak.num_bytes + extra * SHARD)
        counts[step.chunk] -= 1 if step.backward else 0
    return best


SIZES = st.integers(1, 50).map(lambda n: n * 1000)
CHUNKS = st.tuples(SIZES, SIZES, SIZES).map(lambda n: footprint(n[0], n[0] + n[1], n[0] + n[2]))


@settings(max_examples=150, deadline=None)
@given(
    distinct=st.lists(CHUNKS, min_size=1, max_size=3, unique=True),
    pp=st.integers(2, 5),
    vpp=st.integers(1, 4),
    data=st.data(),
)
def test_the_peak_is_that_of_a_walk_over_every_pass(
    distinct: list[ChunkFootprint], pp: int, vpp: int, data: st.DataObject
) -> None:
    """Any chunks of a stage may be alike."""
    stage = data.draw(st.integers(0, pp - 1))
    microbatches = pp * data.draw(st.integers(1, 6))
    drawn = data.draw(st.lists(st.sampled_from(distinct), min_size=vpp, max_size=vpp))
    alike = list(dict.fromkeys(drawn))
    classes = tuple(alike.index(chunk) for chunk in drawn)
    chunks = tuple(drawn)
    peak = activation_peak(SHARD, tuple(alike), classes, pp, stage, microbatches)
    assert peak.total == walked(tuple(chunks), pp, stage, microbatches)
    assert peak.kept + peak.transient == peak.total
    assert peak.kept == sum(
        count * chunk.kept for count, chunk in zip(peak.in_flight, chunks, strict=True)
    )
