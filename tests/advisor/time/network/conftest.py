"""The toys, with the constants of collectives that tests add in the head."""

import pytest
from msgspec.structs import replace

from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu
from tests.advisor.time.toys import CALIBRATION, GPU


@pytest.fixture
def gpu() -> Gpu:
    return GPU


@pytest.fixture
def calibration() -> Calibration:
    return replace(
        CALIBRATION,
        nvls_efficiency=0.8,
        all_to_all_efficiency=1.0,
        hop_seconds=0.0,
        internode_hop_seconds=0.0,
        ring_ramp=0.0,
        dispatch_seconds=0.5,
        deepep_sm_bytes_per_second=1e9,
    )
