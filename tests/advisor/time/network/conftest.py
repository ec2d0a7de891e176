"""Round numbers: eight GPUs a node, NVLink 45 bytes a second reached, an adapter 5."""

import pytest
from msgspec.structs import replace

from advisor.hardware.calibration import Calibration, Provenance
from advisor.hardware.catalogue import load_gpu
from advisor.hardware.gpu import Gpu


@pytest.fixture
def gpu() -> Gpu:
    return replace(
        load_gpu("H100-SXM"),
        nvlink_bytes_per_second=90.0,
        nvlink_domain_size=8,
        internode_bytes_per_second=10.0,
        host_link_bytes_per_second=20.0,
    )


@pytest.fixture
def calibration() -> Calibration:
    return Calibration(
        name="toy",
        provenance=Provenance.MEASURED,
        gemm_efficiency=0.5,
        fp8_gemm_efficiency=0.25,
        attention_forward_efficiency=0.2,
        attention_backward_efficiency=0.1,
        bandwidth_efficiency=0.8,
        nvlink_efficiency=0.5,
        internode_efficiency=0.5,
        nvls_efficiency=0.8,
        all_to_all_efficiency=1.0,
        hidden_fraction=0.75,
        kernel_seconds=0.001,
        collective_seconds=0.002,
        hop_seconds=0.0,
        internode_hop_seconds=0.0,
        ring_ramp=0.0,
        dispatch_seconds=0.5,
        deepep_sm_bytes_per_second=1e9,
        step_seconds=0.003,
        step_time_error=0.1,
    )
