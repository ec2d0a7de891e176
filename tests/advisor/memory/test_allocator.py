"""From allocated to reserved bytes: the terms, and how sure they are."""

from math import hypot

import pytest

from advisor.base.dtypes import Precision
from advisor.base.units import GIB, MIB
from advisor.job.layout import ParallelLayout
from advisor.memory.allocator import communicator_names, model_error, reserved_memory
from advisor.memory.static import NamedBytes

ALONE = ParallelLayout()


def test_a_rank_alone_takes_what_allocators_usually_leave_unused_and_a_context() -> None:
    found = reserved_memory(70 * GIB, ALONE, expandable_segments=False)
    assert found.fragmentation == int((0.039 + 0.0014) * 70 * GIB)
    assert [term.name for term in found.terms if term.num_bytes] == [
        "fragmentation",
        "CUDA context",
    ]
    assert found.total == 70 * GIB + found.fragmentation + 751 * MIB
    expandable = reserved_memory(70 * GIB, ALONE, expandable_segments=True)
    assert expandable.fragmentation == int((0.005 + 0.0038) * 70 * GIB)


def test_a_simulation_takes_the_place_of_the_usual_share_and_is_surer() -> None:
    usual = reserved_memory(70 * GIB, ALONE, expandable_segments=False)
    found = reserved_memory(70 * GIB, ALONE, expandable_segments=False, unused=GIB)
    assert found.fragmentation == int(GIB + 0.0014 * 70 * GIB)
    assert found.spread < 0.7 * usual.spread
    assert found.terms[0].source != usual.terms[0].source


def test_spreads_are_shares_of_what_is_allocated() -> None:
    """By hand, of 100 GiB: 2 % of the model's; 3.4 and 2.6 % unused and beyond, or 2.6 alone; and
    of the context 150 MiB, of what other streams hold a half."""
    pool = NamedBytes("a stream's cache", 4 * GIB, "")
    arguments = {"expandable_segments": False, "error": 0.02, "pools": (pool,), "unsure": GIB}
    usual, known = (reserved_memory(100 * GIB, ALONE, **arguments, unused=n) for n in (None, 0))
    model, unused, outside = usual.spreads
    assert model == pytest.approx(2 * GIB)
    assert unused == pytest.approx(hypot(3.4, 2.6) * GIB)
    assert outside == pytest.approx(hypot(150 * MIB, 2 * GIB))
    assert known.spreads == (model, pytest.approx(2.6 * GIB), outside)
    assert usual.spread == pytest.approx(hypot(model, unused, outside, GIB))


def test_expandable_segments_are_surer() -> None:
    """The order of every request counts without them."""
    segments, expandable = (
        reserved_memory(70 * GIB, ALONE, expandable_segments=one, unused=GIB)
        for one in (False, True)
    )
    assert segments.spread > 3 * expandable.spread


def test_transformer_engine_leaves_more_unused_and_is_less_sure() -> None:
    plain, engine = (
        reserved_memory(70 * GIB, ALONE, expandable_segments=True, unused=0, engine=engine)
        for engine in (False, True)
    )
    assert engine.fragmentation == int(0.0075 * 70 * GIB)
    assert engine.spread > plain.spread


def test_pools_of_other_streams_are_reserved_and_unsure() -> None:
    pool = NamedBytes("a stream's cache", 4 * GIB, "")
    alone, with_pool = (
        reserved_memory(70 * GIB, ALONE, expandable_segments=True, pools=pools)
        for pools in ((), (pool,))
    )
    assert with_pool.total - alone.total == 4 * GIB
    assert with_pool.spread**2 - alone.spread**2 == pytest.approx((2 * GIB) ** 2)


def test_a_sequence_over_ranks_is_less_sure_and_never_promised() -> None:
    """Of 150 GiB, by as much as the one published run was more than predicted: no likelihood of
    0.9995 where 139 GiB are predicted, and none of 0.95 however much room there is."""
    ring = ParallelLayout(context_parallel_size=8)
    alone, over = (
        reserved_memory(139 * GIB, one, expandable_segments=True, unused=0) for one in (ALONE, ring)
    )
    assert over.spread > 0.08 * 139 * GIB > 5 * alone.spread
    assert over.fit_probability(155 * GIB) < 0.9
    assert alone.fit_probability(155 * GIB) > 0.9995
    assert over.fit_probability(1000 * GIB) < 0.95 < alone.fit_probability(1000 * GIB)


TP2, EXPERTS = {"tensor_model_parallel_size": 2}, "expert_model_parallel_size"
PIPELINE = {"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 2}


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        ({}, ""),
        ({"data_parallel_size": 8}, "world, data parallel"),
        (
            TP2 | {"pipeline_model_parallel_size": 2, "data_parallel_size": 2},
            "world, tensor parallel, data parallel, pipeline parallel, model parallel",
        ),
        (
            PIPELINE | {"data_parallel_size": 16, EXPERTS: 8},
            "world, data parallel, previous stage, next stage, model parallel, expert parallel, "
            "expert tensor and model parallel, expert data parallel",
        ),
        (
            TP2 | {"data_parallel_size": 4, EXPERTS: 4},
            "world, tensor parallel, data parallel, model parallel, expert parallel, "
            "expert tensor parallel, expert tensor and model parallel",
        ),
    ],
)
def test_communicators_of_the_groups_that_a_layout_makes(
    layout: dict[str, int], names: str
) -> None:
    assert ", ".join(communicator_names(ParallelLayout(**layout))) == names


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
    found = model_error(precision, derived=linear)
    assert found == error
    wide = reserved_memory(70 * GIB, ALONE, expandable_segments=True, error=found)
    sure = reserved_memory(70 * GIB, ALONE, expandable_segments=True, error=0.0)
    assert wide.spread**2 - sure.spread**2 == pytest.approx((error * 70 * GIB) ** 2)
