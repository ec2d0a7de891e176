"""What a held GEMM leaves of a burst's rate."""

import pytest

from harness.calibration.bench.cases import Sample
from harness.calibration.bench.shapes import BURST, SUSTAINED
from harness.calibration.remarks import Lasting, lasting
from harness.trial.result import GpuLoad

FAST = Sample(case=BURST, seconds=2.7e-3)


@pytest.mark.parametrize(("seconds", "ratio"), [(3.0e-3, 0.9), (2.7e-3, 1.0), (2.5e-3, 1.0)])
def test_the_ratio_is_of_one_gemm_and_never_more_than_one(seconds: float, ratio: float) -> None:
    found = lasting([FAST, Sample(case=SUSTAINED, seconds=seconds)])
    assert found is not None
    assert found.ratio == pytest.approx(ratio)
    assert found.load == GpuLoad()


def test_it_takes_both() -> None:
    assert lasting([FAST]) is None
    assert lasting([Sample(case=SUSTAINED, seconds=1.0)]) is None
    assert lasting([]) is None


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (GpuLoad(), "sustained 0.93 of the burst rate"),
        (GpuLoad(sm_clock_mhz=1755.0), "sustained 0.93 of the burst rate, SM clock 1,755 MHz"),
        (
            GpuLoad(
                sm_clock_mhz=1755.0,
                max_sm_clock_mhz=1980,
                power_watts=689.7,
                throttle_reasons=("gpu_idle", "sw_power_cap"),
            ),
            "sustained 0.93 of the burst rate, SM clock 1,755 of 1,980 MHz, 690 W, sw_power_cap",
        ),
    ],
)
def test_words(load: GpuLoad, words: str) -> None:
    assert Lasting(ratio=0.931, load=load).words == words
