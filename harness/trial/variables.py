"""Environment variables that change times or memory: recorded with every trial, never compared
away. Others may hold secrets, and are not read."""

from collections.abc import Mapping
from typing import Final

from advisor.job.job import JobConfig
from harness.trial.trial import Device

RECORDED: Final = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "NVTE_FUSED_ATTN",
    "NVTE_FLASH_ATTN",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "KMP_AFFINITY",
)
_THREADS: Final = "OMP_NUM_THREADS"
_ALLOCATOR: Final = "PYTORCH_CUDA_ALLOC_CONF"
_ALLOCATOR_OF_TORCH_2_9: Final = "PYTORCH_ALLOC_CONF"


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of `environment` that a result records."""
    return {name: environment[name] for name in RECORDED if name in environment}


def variables_of_trials(
    config: JobConfig, device: Device, environment: Mapping[str, str]
) -> tuple[str, ...]:
    """KEY=VALUE of everything recorded that a trial's processes will find set, by name.

    What the user has set stands. Beyond that, on a GPU the allocator's option that the preset asks
    for; on a CPU one thread, as threads that wait for a busy core cost a small step many times its
    length.
    """
    given = recorded(environment)
    wanted = {}
    if device is Device.CPU:
        wanted = {_THREADS: "1"}
    elif config.expandable_segments and _ALLOCATOR_OF_TORCH_2_9 not in given:
        wanted = {_ALLOCATOR: "expandable_segments:True"}
    return tuple(sorted(f"{name}={value}" for name, value in (wanted | given).items()))
