"""The golden files of other suites: under which names, units and steps they hold what we compare.

Megatron-LM (tests/functional_tests, golden_values_*.json): metric -> series, seconds and bytes,
steps from 1, NaN as the string "nan". Megatron Bridge: step -> metrics, steps from 0, milliseconds,
beside the steps three scalars in decimal GB rounded to 5 digits; its "GPU utilization" is model
TFLOP/s per GPU, not per cent. What the layouts have and we do not compare (num-zeros) is dropped.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct, field


class Layout(StrEnum):
    """Whose file it is."""

    MEGATRON_LM = "megatron_lm"
    MEGATRON_BRIDGE = "megatron_bridge"


class GoldenLayout(Struct, frozen=True, kw_only=True):
    """Where a layout has which of our metrics (harness.judge.metrics).

    label: whose it is. by_step: the keys of the file are steps from 0, each with its metrics; else
    they are metrics, each a series. metrics: by their name ours, and its unit in theirs. scalars:
    likewise, of the whole process, in as many digits.
    """

    label: str
    by_step: bool
    metrics: Mapping[str, tuple[str, float]]
    scalars: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    digits: int = 0


LAYOUTS: Final = {
    Layout.MEGATRON_LM: GoldenLayout(
        label="Megatron-LM",
        by_step=False,
        metrics={
            "iteration-time": ("step_time_seconds", 1.0),
            "mem-max-allocated-bytes": ("peak_allocated_bytes", 1.0),
            "lm loss": ("loss", 1.0),
            "throughput": ("tflops_per_gpu", 1.0),
        },
    ),
    Layout.MEGATRON_BRIDGE: GoldenLayout(
        label="Megatron Bridge",
        by_step=True,
        metrics={
            "lm loss": ("loss", 1.0),
            "elapsed time per iteration (ms)": ("step_time_seconds", 1e-3),
            "GPU utilization": ("tflops_per_gpu", 1.0),
        },
        scalars={
            "max_alloc": ("peak_allocated_bytes", 10**9),
            "max_reserved": ("peak_reserved_bytes", 10**9),
        },
        digits=5,
    ),
}
FIRST: Final = Layout.MEGATRON_LM
"""The layout of a file that is written where none is named."""
