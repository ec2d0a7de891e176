"""Shifts of measured peaks, by hand."""

from math import sqrt

import pytest
from msgspec.structs import replace

from advisor.learning.memory_residual import MemoryResidual, MemoryRow, Width

WIDTH = Width(allocated=0.003, unused=0.01, outside=0.2)
ROW = MemoryRow(
    fixed=600,
    allocated=1000,
    unused=20,
    outside=100,
    measured_allocated=1004,
    measured_unused=30,
    measured_outside=90,
)


def test_nothing_measured_is_as_shipped() -> None:
    found = MemoryResidual(rows=(), width=WIDTH)
    assert found.unused.mean == found.outside.mean == found.allocated(600, 1000).mean == 0
    assert found.unused.sigma == pytest.approx(WIDTH.unused)


def test_activations_and_states_are_distinguished_by_their_shares() -> None:
    lean = replace(ROW, fixed=900, measured_allocated=1001)  # 1 % of activations in both rows
    found = MemoryResidual(rows=(ROW, lean), width=replace(WIDTH, allocated=1.0))
    assert found.states.mean == pytest.approx((0.0, 0.01), abs=1e-4)


def test_what_is_unused_is_drawn_half_way_by_one_run_and_further_by_more() -> None:
    """Runs in common and each by itself scatter alike: n runs count n / (n + 1)."""
    one = MemoryResidual(rows=(ROW,), width=WIDTH).unused
    three = MemoryResidual(rows=(ROW,) * 3, width=WIDTH).unused
    assert one.mean == pytest.approx(0.01 / 2)
    assert three.mean == pytest.approx(0.01 * 3 / 4)
    assert one.sigma == pytest.approx(0.01 * sqrt(3 / 4))
    assert three.sigma < one.sigma < WIDTH.unused


def test_bytes_that_nobody_measured_say_nothing() -> None:
    bare = replace(ROW, measured_allocated=None, measured_unused=None, measured_outside=None)
    found = MemoryResidual(rows=(bare,), width=WIDTH)
    assert found.states.mean == (0.0, 0.0)
    assert not found.measures_unused
    assert MemoryResidual(rows=(bare, ROW), width=WIDTH).measures_unused
    assert found.outside.mean == 0.0
