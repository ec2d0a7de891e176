"""An Adam that works on the host: what of it stays on the GPU.

Megatron's HybridDeviceOptimizer goes over a rank's shard in the order of the model, norms and
biases last, and moves whole parameters until they are the fraction that is asked for. What stays is
at most the rest; a rank whose parameters do not add up to the fraction keeps less. Left out: by how
much, and a first one of them, of whole parameters, which Megatron builds before it shards them and
drops: its fp32 copies wait for Python's garbage collection (docs/limits.md).
Sources: megatron-core 0.16.1 and 0.19.2 optimizer/cpu_offloading/hybrid_optimizer.py, the same in
both, and optimizer/distrib_optimizer.py, _build_model_and_main_param_groups.
"""

from collections.abc import Sequence
from typing import Final

from advisor.base.dtypes import DType
from advisor.job.job import JobConfig
from advisor.memory.static import GRADIENT_COPIES

HOST_WORDS: Final = (
    ("fp32 main parameters, moments not on the host", "4 bytes per parameter, 8 more of the rest"),
    ("optimizer states not on the host", "fp32: 12 bytes per parameter that stays"),
)
"""What held_on_gpu counts, without and with the precision-aware optimizer: name and source."""
STEP_WORDS: Final = (GRADIENT_COPIES, "a parameter on its way to or from the host")
"""What taken_by_step counts, without and with it."""
_WIDE: Final = DType.FP32.itemsize


def held_on_gpu(shard: int, config: JobConfig) -> int:
    """Bytes of a shard's main parameters and moments.

    The precision-aware optimizer leaves main parameters to Adam, which has them where it works; of
    what stays all is fp32, whatever types are given, as are copies of its 16-bit gradients, which
    nothing frees. Any other has the main parameters of the whole shard on the GPU, and only moments
    on the host.
    """
    stays = int((1 - config.offloaded_fraction) * shard)
    if not config.use_precision_aware_optimizer:
        return (shard + 2 * stays) * _WIDE
    copied = config.main_grads_dtype is not DType.FP32
    return (3 + copied) * stays * _WIDE


def held_on_host(shard: int, config: JobConfig) -> int:
    """Bytes of host memory of what a shard moves: a copy of each main parameter, its gradient and
    two moments, fp32 each. Gradients are pinned, main parameters only without the precision-aware
    optimizer, moments never; left out: torch rounds pinned blocks up to a power of two."""
    return 4 * (shard - int((1 - config.offloaded_fraction) * shard)) * _WIDE


def taken_by_step(shards: Sequence[int], largest: int, config: JobConfig) -> int:
    """Bytes that the step adds: fp32 copies of all 16-bit gradients; under the precision-aware
    optimizer those of one parameter on its way, of at most `largest` elements (torch
    aten/src/ATen/native/cuda/Copy.cu converts on the GPU)."""
    if config.use_precision_aware_optimizer:
        return min(largest, max(shards)) * _WIDE
    return 0 if config.main_grads_dtype is DType.FP32 else sum(shards) * _WIDE
