"""Constants of the time model that are fitted on whole steps: prior, width, and why.

A prior is what a source says or what a fit on kernels alone gives (research.kernels);
its width is how far training may lie from that.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.configuration import ConfigGroup, load_config
from advisor.base.fields import read_record
from advisor.hardware.calibration import Calibration
from research.kernels.least_squares import Constant

GENERATIONS: Final = ("a100", "h100", "b200")
"""Names of the calibrations: Ampere, Hopper, Blackwell."""


CONSTANTS: Final = (
    Constant(
        field="gemm_training_share",
        value=0.9,
        sigma=0.1,
        unit="of the rate of isolated GEMMs",
        reason="a step has real data, other streams, and lower clocks under load",
    ),
    Constant(
        field="power_exponent",
        value=0.67,
        sigma=0.4,
        unit="exponent",
        reason="1 where a FLOP takes the same energy at any clock, 1/3 where the voltage follows "
        "the clock",
    ),
    Constant(
        field="fp4_speed_exponent",
        value=0.5,
        sigma=0.3,
        unit="exponent",
        reason="Transformer Engine's GEMMs of B300 in 4 bits over 8: 1.72 times, of a peak 3 times "
        "as high (results/published/kernels)",
    ),
    Constant(
        field="bandwidth_efficiency",
        value=0.795,
        sigma=0.03,
        unit="of the memory's rate",
        reason="isolated norms, activations and losses, of which a GPU that is left out is up to "
        "3 % off (research.kernels.traffic)",
    ),
    Constant(
        field="hidden_fraction",
        value=0.6,
        sigma=0.4,
        unit="of the time that can be hidden",
        reason="between no overlap and perfect overlap",
    ),
    Constant(
        field="dispatch_training_share",
        value=0.9,
        sigma=0.3,
        unit="of the rate of isolated dispatches",
        reason="as for GEMMs; ranks wait for each other",
    ),
    Constant(
        field="scan_share",
        value=0.4,
        sigma=0.5,
        unit="of the rate of 16-bit GEMMs",
        reason="Triton kernels of many small products (state-spaces/mamba, ssd_combined)",
    ),
    Constant(
        field="kernel_seconds",
        value=4e-6,
        sigma=0.3,
        unit="s",
        reason="launch latency and tail of one kernel",
    ),
    Constant(
        field="step_seconds",
        value=1e-2,
        sigma=0.7,
        unit="s",
        reason="launches of the optimizer, loss reduction, data",
    ),
    Constant(
        field="host_wrapped_call_seconds",
        value=20e-6,
        sigma=0.5,
        unit="s",
        reason="one torch operation inside a framework's own Python functions, hooks and timers",
    ),
    Constant(
        field="host_module_seconds",
        value=60e-6,
        sigma=0.7,
        unit="s",
        reason="on Grace, Transformer Engine's Linear takes 60 us more than torch's "
        "(TransformerEngine issue 2053)",
    ),
    Constant(
        field="host_quantize_seconds",
        value=10e-6,
        sigma=0.7,
        unit="s",
        reason="on Grace, forward and backward of a grouped MLP of 64 experts take 3.3 ms "
        "(TransformerEngine PR 2897)",
    ),
    Constant(
        field="host_memory_bytes_per_second",
        value=30e9,
        sigma=0.7,
        unit="B/s",
        reason="eight processes share two sockets of 300 GB/s each; gradients and copies use them "
        "too",
    ),
    Constant(
        field="grace_slowdown",
        value=1.5,
        sigma=0.4,
        unit="",
        reason="torch's Linear takes 2.5 times as long on Grace as on a Xeon "
        "(TransformerEngine issue 2053)",
    ),
)
"""One for all GPUs: what differs between them is told by isolated kernels and datasheets."""


class Isolated(Struct, frozen=True):
    """Seconds that several constants make up together, measured apart from any step: to every fit
    it is one more row, whatever is left out. sigma: relative."""

    source: str
    seconds: float
    sigma: float
    predict: Callable[[Calibration], float]


def _linear_on_grace(calibration: Calibration) -> float:
    """Of the processor, for a forward of Transformer Engine's Linear (advisor.time.launches)."""
    calls = 2 * calibration.host_wrapped_call_seconds
    return calibration.grace_slowdown * (calls + calibration.host_module_seconds)


ISOLATED: Final = (
    Isolated(
        source="TransformerEngine issue 2053: 90.5 us on GH200, 99.7 on GB200; two machines with "
        "the same processor differ by 10 %, releases may as much",
        seconds=95e-6,
        sigma=0.15,
        predict=_linear_on_grace,
    ),
)


@lru_cache(maxsize=8)
def prior_calibration(generation: str) -> Calibration:
    """Every constant at its prior, next to what a fit on kernels alone gave. That DeepEP blocks is
    left out: two rows run it under EP overlap, and they check it (research.steps.pairs)."""
    document = load_config(ConfigGroup.CALIBRATION, generation, None, "calibration")
    of_kernels = read_record(Calibration, document.values, document.path)
    values: dict[str, Any] = {constant.field: constant.value for constant in CONSTANTS}
    return replace(of_kernels, **values, deepep_blocks=False)
