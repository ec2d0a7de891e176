"""Megatron's Muon: what a job has to be for it, and what it keeps on a rank.

Source: megatron-core 0.16.1 and 0.17.1 optimizer/muon.py and layer_wise_optimizer.py, 0.18.2 and
0.19.2 optimizer/__init__.py (_get_megatron_emerging_optimizer) and training/training.py
(wrap_model_chunks_with_ddp); Megatron Bridge 0.6.0 training/optim.py.
"""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.base.errors import UserError
from advisor.frameworks.megatron.buffers import last_inputs, quantized_elements, stream_pools
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.part_types import FixedMemory, StaticLabels
from advisor.job.job import Job, JobConfig, Optimizer
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.shape import RankShape
from advisor.memory.muon_shares import fullest_share, muon_shares
from advisor.memory.resident import NamedBytes
from advisor.memory.static import (
    GRADIENT_COPIES,
    StaticMemory,
    stage_elements,
    static_memory,
)

FIRST_RELEASE: Final = (0, 16)
"""Of megatron-core, with optimizer/muon.py."""

STATIC_LABELS: Final = StaticLabels(
    weights=("16-bit weights", "2 bytes per parameter"),
    gradients=("main gradients", "contiguous gradient buffer"),
    optimizer=("master weights and Adam moments", "each in its type (fp32: 4 bytes), sharded"),
)
_MUON_WORDS: Final = replace(
    STATIC_LABELS,
    optimizer=(
        "fp32 master weights, momentum, Adam moments",
        "8 bytes per parameter of Muon, 12 per parameter of Adam",
    ),
)


def check_release(config: JobConfig, revision: Revision) -> None:
    """UserError where the release has no Muon."""
    if config.optimizer.is_muon and not revision.at_least(*FIRST_RELEASE):
        raise UserError(
            "job.optimizer",
            config.optimizer,
            f"is not in {revision.label}",
            "--framework-version 0.16 or newer, or job.optimizer=adam",
        )


def without_narrow_weights(
    static: StaticMemory, config: JobConfig, shape: RankShape, chunks: tuple[ModelChunk, ...]
) -> StaticMemory:
    """Under fp8_param_gather the 8-bit copies, which the buffers count, are the weights."""
    if not config.fp8_param_gather:
        return static
    narrow = quantized_elements(shape, chunks) * DType.BF16.itemsize
    return replace(static, weights=static.weights - narrow)


def muon_memory(
    job: Job,
    revision: Revision,
    shape: RankShape,
    chunks: tuple[ModelChunk, ...],
    buffers: tuple[NamedBytes, ...],
) -> FixedMemory:
    """Whole weights and gradients, and the states of the rank that is dealt most of them.

    The step makes fp32 copies of its own 16-bit gradients, which live until the next step, and then
    gathers everybody's weights: own tensors flattened, and a buffer for each rank (0.16 one for
    itself as well). Left out: what the orthogonalization itself takes, some copies of one tensor.
    """
    config, dealt = job.config, job.config.optimizer is Optimizer.DIST_MUON
    share = fullest_share(muon_shares(shape, chunks, job.layout, dealt=dealt))
    whole = static_memory(stage_elements(shape, chunks), 1, config.main_grads_dtype)
    static = replace(
        without_narrow_weights(whole, config, shape, chunks), optimizer=share.state_bytes
    )
    sixteen_bit = config.main_grads_dtype is not DType.FP32 and config.copies_gradients
    copies = share.elements * DType.FP32.itemsize if sixteen_bit else 0
    received = share.received + (share.sent if not revision.at_least(0, 17) else 0)
    return FixedMemory(
        static=static,
        words=_MUON_WORDS,
        buffers=buffers,
        pools=stream_pools(
            shape, chunks, overlaps_exchange=job.layout.overlap_moe_expert_parallel_comm
        ),
        optimizer_step=copies + received * DType.BF16.itemsize + last_inputs(shape, chunks),
        step_words="the weights gathered from all ranks" if received else GRADIENT_COPIES,
    )


def muon_overrides(job: Job) -> Iterator[str]:
    """Bridge's: it switches on both of a pair of which a recipe has one on (training/config.py)."""
    if not job.config.optimizer.is_muon:
        return
    yield f"optimizer.optimizer={job.config.optimizer}"
    for option in ("use_distributed_optimizer", "overlap_param_gather"):
        yield f"ddp.{option}=false"
        yield f"optimizer.{option}=false"
