"""From allocated to reserved bytes: the terms, and how sure they are."""

import pytest

from advisor.base.dtypes import Precision
from advisor.base.units import GIB, MIB
from advisor.job.layout import ParallelLayout
from advisor.memory.allocator import model_error, reserved_memory

ALONE = ParallelLayout()


def test_a_rank_alone_takes_fragmentation_and_a_context() -> None:
    found = reserved_memory(70 * GIB, 20 * GIB, ALONE, expandable_segments=False)
    assert found.fragmentation == int(0.04 * 70 * GIB)  # of 0.28 x 20 GiB, which is more
    assert [term.name for term in found.terms if term.num_bytes] == [
        "fragmentation",
        "CUDA context",
    ]
    assert found.total == 70 * GIB + found.fragmentation + 751 * MIB


def test_expandable_segments_leave_a_quarter_of_it() -> None:
    found = reserved_memory(70 * GIB, 4 * GIB, ALONE, expandable_segments=True)
    assert found.fragmentation == int(0.28 * 4 * GIB / 4)


@pytest.mark.parametrize(
    ("precision", "linear", "error"),
    [
        (Precision.BF16, False, 0.003),
        (Precision.FP16, False, 0.003),
        (Precision.FP8_CURRENT, False, 0.02),
        (Precision.FP8_DELAYED, False, 0.02),
        (Precision.MXFP8, False, 0.05),
        (Precision.NVFP4, False, 0.05),
        (Precision.BF16, True, 0.05),
    ],
)
def test_what_was_seen_on_a_gpu_is_surer(precision: Precision, linear: bool, error: float) -> None:
    found = model_error(precision, linear_attention=linear)
    assert found == error
    wide = reserved_memory(70 * GIB, 0, ALONE, expandable_segments=True, error=found)
    sure = reserved_memory(70 * GIB, 0, ALONE, expandable_segments=True, error=0.0)
    assert wide.spread**2 - sure.spread**2 == pytest.approx((error * 70 * GIB) ** 2)
