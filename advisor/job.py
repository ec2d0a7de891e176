"""One training job: model, layout, hardware, batch and precision, checked together."""

from dataclasses import dataclass
from enum import StrEnum

from advisor.cost.hardware import Gpu
from advisor.dtypes import DType, Precision
from advisor.errors import UserError
from advisor.layout import ParallelLayout, check_model_fits_layout
from advisor.models.spec import ModelSpec, nearest_divisors

_CAPABILITIES = {
    Precision.FP8_BLOCKWISE: (9.0, "Hopper"),
    Precision.MXFP8: (10.0, "Blackwell"),
}
"""Compute capability from which Transformer Engine runs a recipe (TE pytorch/fp8.py)."""


class CudaGraphImpl(StrEnum):
    """`--cuda-graph-impl` of Megatron."""

    NONE = "none"
    LOCAL = "local"
    TRANSFORMER_ENGINE = "transformer_engine"
    FULL_ITERATION = "full_iteration"


class Framework(StrEnum):
    """Whose recompute settings are ranked and whose flags are printed."""

    MEGATRON_LM = "megatron_lm"
    MEGATRON_BRIDGE = "megatron_bridge"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """What `job.KEY=VALUE` reaches: batch, precision and run-time options.

    ``main_grads_dtype`` is the type of Megatron's contiguous gradient buffer (bf16 where
    grad_reduce_in_fp32 is off). ``framework_version`` is megatron-core's for Megatron-LM and
    Bridge's own for Megatron Bridge. ``create_attention_mask`` is Megatron-LM's
    create_attention_mask_in_dataloader. ``expandable_segments`` is that option of
    PYTORCH_CUDA_ALLOC_CONF. ``memory_budget_bytes`` None means: what the GPU gives.
    """

    seq_length: int
    micro_batch_size: int
    global_batch_size: int
    precision: Precision = Precision.BF16
    framework: Framework = Framework.MEGATRON_LM
    framework_version: str = ""
    main_grads_dtype: DType = DType.FP32
    cuda_graph_impl: CudaGraphImpl = CudaGraphImpl.NONE
    cuda_graph_modules: tuple[str, ...] = ()
    create_attention_mask: bool = True
    expandable_segments: bool = False
    memory_budget_bytes: int | None = None

    def __post_init__(self) -> None:
        for field in ("seq_length", "micro_batch_size", "global_batch_size"):
            value = getattr(self, field)
            if value < 1:
                raise UserError(f"job.{field}", value, "must be at least 1")
        if self.main_grads_dtype not in (DType.FP32, DType.BF16):
            raise UserError("job.main_grads_dtype", self.main_grads_dtype, "must be fp32 or bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A complete, legal job; construction raises UserError on a relation that does not hold."""

    model: ModelSpec
    layout: ParallelLayout
    config: JobConfig
    gpu: Gpu
    num_gpus: int

    def __post_init__(self) -> None:
        layout, config = self.layout, self.config
        if layout.world_size != self.num_gpus:
            model_parallel = layout.world_size // layout.data_parallel_size
            raise UserError(
                "layout TP x CP x PP x DP", layout.world_size, f"must be {self.num_gpus} GPUs",
                f"TP x CP x PP = {model_parallel} must divide {self.num_gpus}: nearest "
                f"{nearest_divisors(self.num_gpus, model_parallel)}",
            )  # fmt: skip
        check_precision(config.precision, self.gpu)
        check_model_fits_layout(self.model, layout)
        _check_sequence(config, layout)
        _check_batch(config, layout)

    @property
    def num_microbatches(self) -> int:
        """Microbatches of one step on one data-parallel rank."""
        per_pass = self.config.micro_batch_size * self.layout.data_parallel_size
        return self.config.global_batch_size // per_pass


def check_precision(precision: Precision, gpu: Gpu) -> None:
    """Raise UserError where the GPU has no tensor cores for `precision`."""
    if precision.is_fp8 and gpu.fp8_flops is None:
        raise UserError(
            "job.precision", precision, f"{gpu.name} has no 8-bit tensor cores", "use bf16"
        )
    needed, chip = _CAPABILITIES.get(precision, (0.0, ""))
    if gpu.compute_capability < needed:
        raise UserError(
            "job.precision", precision, f"needs {chip}, and {gpu.name} is older",
            "use fp8_current",
        )  # fmt: skip


def _check_sequence(config: JobConfig, layout: ParallelLayout) -> None:
    # Context parallelism cuts the sequence into 2 x CP pieces to balance the causal mask.
    cp = layout.context_parallel_size
    shards = layout.sequence_shards * (2 * cp if cp > 1 else 1)
    if config.seq_length % shards:
        down = config.seq_length // shards * shards
        raise UserError(
            "job.seq_length", config.seq_length,
            f"must be divisible by {shards} (TP with sequence parallelism x 2 CP)",
            f"nearest: {' or '.join(str(n) for n in (down, down + shards) if n)}",
        )  # fmt: skip


def _check_batch(config: JobConfig, layout: ParallelLayout) -> None:
    per_pass = config.micro_batch_size * layout.data_parallel_size
    if config.global_batch_size % per_pass:
        down = config.global_batch_size // per_pass * per_pass
        raise UserError(
            "job.global_batch_size", config.global_batch_size,
            f"must be divisible by micro_batch_size x DP = {config.micro_batch_size} x "
            f"{layout.data_parallel_size}",
            f"nearest: {' or '.join(str(n) for n in (down, down + per_pass) if n)}",
        )  # fmt: skip
    pp, vpp = layout.pipeline_model_parallel_size, layout.virtual_pipeline_model_parallel_size
    microbatches = config.global_batch_size // per_pass
    if vpp > 1 and microbatches % pp:
        down = microbatches // pp * pp
        raise UserError(
            "job.global_batch_size", config.global_batch_size,
            f"gives {microbatches} microbatches, and the interleaved schedule (VPP {vpp}) needs a "
            f"multiple of PP = {pp}",
            f"nearest: {' or '.join(str(n * per_pass) for n in (down, down + pp) if n)}",
        )  # fmt: skip
