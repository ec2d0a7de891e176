"""The golden layouts of Megatron-LM and Megatron Bridge, with the traps of real files."""

import math
from typing import Any

import pytest

from advisor.base.errors import UserError
from harness.judge.goldens.foreign import guess_layout, read_layout, write_layout
from harness.judge.goldens.series import Process, Series
from harness.judge.metrics import ALLOCATED, LOSS, RESERVED, STEP_TIME, TFLOPS
from harness.logs.golden_layouts import Layout


def series(values: dict[str, Any]) -> dict[str, Any]:
    steps = [int(step) for step in values]
    return {
        "start_step": steps[0],
        "end_step": steps[-1],
        "step_interval": steps[1] - steps[0],
        "values": values,
    }


MEGATRON = {
    "iteration-time": series({"1": 53.0, "2": 0.25, "5": 0.24, "6": 0.23, "7": 0.22}),
    "lm loss": series({"1": 10.8, "2": 10.7, "5": "nan", "6": 9.0, "7": 8.5}),
    "mem-allocated-bytes": series({"1": 5, "2": 5}),
    "mem-max-allocated-bytes": series({"1": 7_000_000, "2": 9_000_000, "7": 8_000_000}),
    "num-zeros": series({"1": 3.0, "2": 4.0}),
}
BRIDGE = {
    "0": {"lm loss": "1.2E+01", "elapsed time per iteration (ms)": 53000.0, "GPU utilization": 1.0},
    "1": {"lm loss": 11.5, "elapsed time per iteration (ms)": 231.5, "GPU utilization": 701.25},
    "2": {"lm loss": "nan", "elapsed time per iteration (ms)": 230.1, "GPU utilization": 709.93},
    "alloc": 35.2,
    "max_alloc": 55.61234,
    "max_reserved": 60.5,
}


def test_megatron_keeps_losses_and_drops_the_warm_up() -> None:
    found = read_layout(MEGATRON, Layout.MEGATRON_LM, "f").series
    assert found[STEP_TIME] == Series(steps=(5, 6, 7), values=(0.24, 0.23, 0.22))
    assert found[LOSS].steps == (1, 2, 5, 6, 7)
    assert math.isnan(found[LOSS].values[2])
    assert found[ALLOCATED] == Series(steps=(7,), values=(9_000_000.0,))
    assert set(found) == {STEP_TIME, LOSS, ALLOCATED}


def test_bridge_counts_from_zero_in_milliseconds_and_decimal_gigabytes() -> None:
    found = read_layout(BRIDGE, Layout.MEGATRON_BRIDGE, "f", first_step=2).series
    assert found[STEP_TIME].steps == (2, 3)
    assert found[STEP_TIME].values == pytest.approx((0.2315, 0.2301))
    assert found[TFLOPS].values == (701.25, 709.93)  # TFLOP/s a GPU, not per cent
    assert found[LOSS].steps == (1, 2, 3)
    assert found[LOSS].values[0] == 12.0
    assert found[ALLOCATED].values == (55_612_340_000,)  # GB = 10^9, not 2^30
    assert found[RESERVED].values == (60_500_000_000,)


def test_the_layout_is_seen_from_the_keys() -> None:
    assert guess_layout(MEGATRON) is Layout.MEGATRON_LM
    assert guess_layout(BRIDGE) is Layout.MEGATRON_BRIDGE


OURS = Process(
    name="x",
    series={
        STEP_TIME: Series(steps=(4, 5, 6), values=(0.2317, 0.23, 0.1)),
        TFLOPS: Series(steps=(4, 5, 6), values=(700.1, 701.0, 702.5)),
        LOSS: Series(steps=(4, 5, 6), values=(3.0, 2.5, 2.25)),
        ALLOCATED: Series(steps=(6,), values=(55_612_340_000.0,)),
    },
)


@pytest.mark.parametrize("layout", list(Layout))
def test_what_is_exported_is_imported_as_it_was(layout: Layout) -> None:
    written = write_layout(OURS, layout)
    assert guess_layout(written) is layout
    back = read_layout(written, layout, "f", first_step=1).series
    assert set(back) == set(OURS.series)
    for name, one in OURS.series.items():
        assert back[name].steps == one.steps
        assert back[name].values == pytest.approx(one.values, rel=1e-12)


@pytest.mark.parametrize(
    ("values", "layout"), [(MEGATRON, Layout.MEGATRON_LM), (BRIDGE, Layout.MEGATRON_BRIDGE)]
)
def test_a_foreign_file_survives_the_way_there_and_back(
    values: dict[str, Any], layout: Layout
) -> None:
    """What we compare of it is the same after export; the rest is dropped by design."""
    once = read_layout(values, layout, "f", first_step=1)
    twice = read_layout(write_layout(once, layout), layout, "f", first_step=1)
    assert repr(once) == repr(twice)  # repr, as nan is unequal to itself


def test_exported_names_and_units_are_theirs() -> None:
    bridge = write_layout(OURS, Layout.MEGATRON_BRIDGE)
    assert bridge["3"] == {
        "lm loss": 3.0,
        "elapsed time per iteration (ms)": 231.7,
        "GPU utilization": 700.1,
    }
    assert bridge["max_alloc"] == 55.61234
    megatron = write_layout(OURS, Layout.MEGATRON_LM)
    assert megatron["iteration-time"] == {
        "start_step": 4,
        "end_step": 6,
        "step_interval": 1,
        "values": {"4": 0.2317, "5": 0.23, "6": 0.1},
    }
    assert megatron["mem-max-allocated-bytes"]["values"]["4"] == 55_612_340_000


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"iteration-time": 3},
        {"iteration-time": {"values": {"a": 1}}},
        {"iteration-time": {"values": {"1": True}}},
        {"num-zeros": series({"1": 1, "2": 2})},
        {"iteration-time": series({"5": 0.0, "6": 0.1})},
        {"iteration-time": series({"5": -1, "6": 0.1})},
        {"iteration-time": series({"5": 10**400, "6": 0.1})},
        {"iteration-time": {"values": {"9" * 400: 0.1}}},
        {"lm loss": series({"5": 1e300, "6": 0.1})},
        {"lm loss": series({"5": None, "6": 0.1})},
    ],
)
def test_other_files_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        read_layout(values, Layout.MEGATRON_LM, "f")


@pytest.mark.parametrize("size", ["inf", "nan", 1e308, 10**400, None])
def test_a_size_that_is_none_is_refused(size: object) -> None:
    with pytest.raises(UserError):
        read_layout({**BRIDGE, "max_alloc": size}, Layout.MEGATRON_BRIDGE, "f")
