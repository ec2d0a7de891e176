"""A GPU and a calibration of round numbers: eight GPUs a node, NVLink 45 bytes a second reached,
an adapter 5."""

from advisor.hardware.calibration import Calibration, Provenance
from advisor.hardware.gpu import Gpu

GPU = Gpu(
    name="toy",
    memory_bytes=10,
    memory_bandwidth_bytes_per_second=1000.0,
    bf16_flops=400.0,
    fp16_flops=200.0,
    fp8_flops=800.0,
    sm_count=4,
    compute_capability=9.0,
    nvlink_bytes_per_second=90.0,
    nvlink_domain_size=8,
    internode_bytes_per_second=10.0,
    host_link_bytes_per_second=20.0,
)
CALIBRATION = Calibration(
    name="toy",
    provenance=Provenance.MEASURED,
    gemm_efficiency=0.5,
    fp8_gemm_efficiency=0.25,
    attention_forward_efficiency=0.2,
    attention_backward_efficiency=0.1,
    bandwidth_efficiency=0.8,
    nvlink_efficiency=0.5,
    internode_efficiency=0.5,
    hidden_fraction=0.75,
    kernel_seconds=0.001,
    collective_seconds=0.002,
    step_seconds=0.003,
    step_time_error=0.1,
)
