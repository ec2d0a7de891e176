"""Efficiencies that turn datasheet peaks into times, with what they were fitted on."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.configuration import ConfigGroup, load_config
from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.base.fields import convert, field_types, read_record
from advisor.hardware.gpu import Gpu
from advisor.models.spec import ModelSpec


class Provenance(StrEnum):
    """Where a calibration's efficiencies come from."""

    MEASURED = "measured"
    PUBLISHED = "published"
    DATASHEET = "datasheet"


class Layers(StrEnum):
    """What a model's layers are, as far as published runs tell them apart."""

    DENSE = "dense layers"
    EXPERTS = "experts"
    LATENT_EXPERTS = "experts and latent attention"

    @classmethod
    def of_model(cls, model: ModelSpec) -> "Layers":
        """Those of a model."""
        if model.num_moe_experts is None:
            return cls.DENSE
        return cls.LATENT_EXPERTS if model.multi_latent_attention else cls.EXPERTS


class JobClass(Struct, frozen=True, kw_only=True):
    """Jobs whose published runs are told together. eager: layers of plain torch.
    exposed_tensor_parallelism: of many ranks, and nothing runs next to its collectives."""

    gpu: str
    precision: Precision
    layers: Layers
    eager: bool = False
    exposed_tensor_parallelism: bool = False

    @property
    def description(self) -> str:
        """``experts in bf16 on GB200-186GB``."""
        exposed = ", TP 8 or more without overlap" if self.exposed_tensor_parallelism else ""
        layers = f"{self.layers} of plain torch" if self.eager else self.layers
        return f"{layers} in {self.precision} on {self.gpu}{exposed}"


class KnownError(Struct, frozen=True, kw_only=True):
    """Published runs of a class of jobs that all lie on one side of what is predicted: so many
    rows; mean, low, high: predicted over measured, less one."""

    of: JobClass
    rows: int
    mean: float
    low: float
    high: float

    @property
    def in_words(self) -> str:
        """``8 published runs like this (experts in bf16 on GB200-186GB)``."""
        return f"{self.rows} published runs like this ({self.of.description})"

    @property
    def description(self) -> str:
        """``25 % too fast in the mean, 20 to 32 %``."""
        mean, *ends = (abs(error) * 100 for error in (self.mean, self.low, self.high))
        side = "slow" if self.mean > 0 else "fast"
        return f"{mean:.0f} % too {side} on average ({min(ends):.0f} to {max(ends):.0f} %)"


class OwnErrors(Struct, frozen=True, kw_only=True):
    """Half-widths of the band of a GPU that has published runs of its own, by class of jobs as in
    Calibration; 0: it has none of them."""

    gpu: str
    step_time_error: float = 0.0
    experts_step_time_error: float = 0.0
    eager_step_time_error: float = 0.0


class Calibration(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Reached fractions of a GPU's datasheet rates, and how far a predicted step time may be off.

    gemm_efficiency, fp8_gemm_efficiency: of the dense peak, GEMMs at full clock within a tile of
        their result. fp4_speed_exponent: in 4 bits they gain that power of what their peak has
        over that of 8 bits.
    gemm_sustained_share: of that, what the power limit leaves the clock under lasting load, on a
        GPU of `watts_per_teraflop` (board power over dense 16-bit peak; 0: on any GPU); on others
        by `power_exponent` of how much more power they have for it.
    gemm_training_share: of the rate under lasting load, what whole training steps reach.
    grouped_gemm_share: of a dense GEMM's rate, what torch's one kernel of several experts reaches.
    gemm_tile_seconds: fill and drain of a tile of a GEMM's result.
    gemm_bandwidth_efficiency: of memory bandwidth, operands and results of thin GEMMs.
    attention_forward_efficiency, attention_backward_efficiency: of the 16-bit peak, FLOPs of the
        causal half, the backward's replayed scores included; of endlessly many rows at head size
        128, by FlashAttention-2 (advisor.time.attention for the rest).
    fused_attention_forward_efficiency, fused_attention_backward_efficiency: the same of kernels
        written for the GPU's architecture (cuDNN's, FlashAttention-3); 0: as FlashAttention-2.
    attention_half_rate_rows: rows of queries (sequences x heads x tokens) at which flash attention
        reaches half of that: blocks of rows are spread over the GPU, and under a causal mask the
        longest of them is still at work when the others have ended. 0: the same at any number.
    attention_half_rate_tokens: tokens of a sequence at which it does: a block of rows computes
        whole blocks of the triangle, and begins and ends. 0: the same at any length.
    bandwidth_efficiency: of memory bandwidth, elementwise kernels and the optimizer.
    eager_bandwidth_share: of that, what torch's own kernels of norms, activations and rotary
        embeddings reach; additions, casts and softmaxes reach it all.
    optimizer_bandwidth_efficiency: of the optimizer alone, where that was measured; else 0. Its one
        fused kernel streams better than norms and activations do.
    nvlink_efficiency, internode_efficiency: bus bandwidth of rings over the datasheet link.
    nvls_efficiency: of the ring's, the bytes of an all-reduce's tensor where NVLink's switches add.
    all_to_all_efficiency: of the ring's on NVLink, what a GPU sends to all others at once.
    hidden_fraction: of a collective that runs next to an operator, the part that costs no time.
    scan_share: of the rate of 16-bit GEMMs, the scans of linear attention and Mamba.
    kernel_seconds: fixed cost of one kernel on the GPU (launch, ramp, tail).
    collective_seconds: fixed cost of one collective.
    hop_seconds, internode_hop_seconds: what each further rank of a ring adds to it, on NVLink and
        over the network.
    ring_ramp: how the chunks that fill a ring lengthen it; 0: not at all.
    dispatch_seconds: what a dispatch or combine of DeepEP and HybridEP costs more than an NCCL
        collective: the layout of the exchange, and barriers.
    dispatch_training_share: of the rate of isolated ones, what they reach in training steps.
    deepep_sm_bytes_per_second: bytes that each SM of a DeepEP dispatch moves over NVLink.
    deepep_blocks: DeepEP's dispatch keeps the processor, EP overlap or not.
    speed_spread: relative standard deviation of the speed of a job's GPUs; the slowest is awaited.
    step_seconds: fixed cost of one step (optimizer launches, synchronization, data).
    host_call_seconds, host_wrapped_call_seconds, host_module_seconds, host_quantize_seconds,
        host_answer_seconds: of an x86 server's processor, for one operation of torch, for one in
        Megatron's functions around Transformer Engine, for a module of the latter beyond its
        kernels, for a tensor that is quantized, and for a result that it waits for.
    host_native_call_seconds: of the same, for one operation of the harness's native layers, views
        of tensors included.
    host_memory_bytes_per_second: of one GPU's process, Adam on the host.
    grace_slowdown: how much longer NVIDIA's Grace takes for any of them.
    step_time_error: relative half-width of the band around a predicted step time: nine of ten
        measured runs lie inside. experts_step_time_error, eager_step_time_error: of models with
        experts, and of eager torch layers; 0: as of others. own_errors: the same of GPUs with runs
        that were fitted on; the others are of GPUs without.
    known_errors: classes of jobs whose published runs all lie on one side of their predictions.
    fitted_on: the published or measured rows; empty for a datasheet calibration.
    fit_error, left_out_error: how far predictions are off the rows that were fitted, and off rows
        that a fit did not see; in words.
    """

    name: str
    provenance: Provenance
    gemm_efficiency: float
    fp8_gemm_efficiency: float
    attention_forward_efficiency: float
    attention_backward_efficiency: float
    bandwidth_efficiency: float
    nvlink_efficiency: float
    internode_efficiency: float
    hidden_fraction: float
    kernel_seconds: float
    collective_seconds: float
    step_seconds: float
    step_time_error: float
    fp4_speed_exponent: float = 0.6
    gemm_sustained_share: float = 1.0
    watts_per_teraflop: float = 0.0
    power_exponent: float = 0.62
    gemm_training_share: float = 1.0
    dispatch_training_share: float = 1.0
    scan_share: float = 0.19
    grouped_gemm_share: float = 1.0
    gemm_tile_seconds: float = 2.24e-6
    gemm_bandwidth_efficiency: float = 0.698
    eager_bandwidth_share: float = 1.0
    optimizer_bandwidth_efficiency: float = 0.0
    fused_attention_forward_efficiency: float = 0.0
    fused_attention_backward_efficiency: float = 0.0
    nvls_efficiency: float = 0.703
    all_to_all_efficiency: float = 0.842
    hop_seconds: float = 6.23e-7
    internode_hop_seconds: float = 5e-6
    ring_ramp: float = 0.497
    dispatch_seconds: float = 7.05e-5
    deepep_sm_bytes_per_second: float = 1.9e10
    deepep_blocks: bool = True
    speed_spread: float = 0.0235
    attention_half_rate_rows: float = 0.0
    attention_half_rate_tokens: float = 0.0
    host_call_seconds: float = 10e-6
    host_wrapped_call_seconds: float = 24e-6
    host_module_seconds: float = 24e-6
    host_quantize_seconds: float = 9e-6
    host_answer_seconds: float = 40e-6
    host_native_call_seconds: float = 10e-6
    grace_slowdown: float = 1.4
    host_memory_bytes_per_second: float = 17e9
    experts_step_time_error: float = 0.0
    eager_step_time_error: float = 0.0
    own_errors: tuple[OwnErrors, ...] = ()
    known_errors: tuple[KnownError, ...] = ()
    fitted_on: tuple[str, ...] = ()
    fit_error: str = ""
    left_out_error: str = ""

    def __post_init__(self) -> None:
        for fields, holds, relation in _BOUNDS:
            for field in fields:
                value = getattr(self, field)
                if not holds(value):
                    raise UserError(f"calibration.{field}", value, relation)

    def error_of(self, gpu: str, *, experts: bool, eager: bool) -> float:
        """Half-width of the band of a class of jobs; of two that both apply, the wider."""
        own, fields = self._own(gpu), _fields(experts=experts, eager=eager)
        errors = [getattr(own, field, 0.0) or getattr(self, field) for field in fields]
        return max(errors) or self.step_time_error

    def has_runs_of(self, gpu: str, *, experts: bool, eager: bool) -> bool:
        """Whether it was fitted on runs of a class of jobs on `gpu`; of one that does not tell its
        GPUs apart, on any."""
        own, fields = self._own(gpu), _fields(experts=experts, eager=eager)
        return not self.own_errors or all(getattr(own, field, 0.0) for field in fields)

    def _own(self, gpu: str) -> OwnErrors | None:
        return next((errors for errors in self.own_errors if errors.gpu == gpu), None)

    def summary(self, error: float | None = None) -> str:
        """What a predicted step time is good for, in a few words; error: of a class of jobs."""
        band = f"step time {band_text(self.step_time_error if error is None else error)}"
        return f"uncalibrated, {band}" if self.provenance is Provenance.DATASHEET else band


def band_ends(error: float) -> tuple[float, float]:
    """Of a band of this half-width, relative to the prediction: both ends are as far off, of a wide
    band as factors."""
    return (1 / (1 + error) - 1 if error > _WIDE else -error), error


def band_text(error: float) -> str:
    """``±12 %``, or ``-43 % to +74 %``."""
    low, high = (end * 100 for end in band_ends(error))
    return f"±{high:.0f} %" if -low == high else f"{low:.0f} % to +{high:.0f} %"


_WIDE: Final = 0.5
"""From which a share less and the same share more are no longer alike (a judgement)."""


def _fields(*, experts: bool, eager: bool) -> tuple[str, ...]:
    """Bands of the classes that a job is of."""
    of_experts = ("experts_step_time_error",) if experts else ()
    return (*of_experts, "eager_step_time_error") if eager else of_experts or ("step_time_error",)


EFFICIENCIES = (
    *("gemm_efficiency", "fp8_gemm_efficiency", "attention_forward_efficiency"),
    *("attention_backward_efficiency", "bandwidth_efficiency"),
    *("nvlink_efficiency", "internode_efficiency", "hidden_fraction"),
    *("gemm_sustained_share", "gemm_training_share", "grouped_gemm_share"),
    *("gemm_bandwidth_efficiency", "scan_share", "dispatch_training_share"),
)
AT_MOST_ONE = (
    *("eager_bandwidth_share", "optimizer_bandwidth_efficiency"),
    *("fused_attention_forward_efficiency", "fused_attention_backward_efficiency"),
)
SHARED_EFFICIENCIES = ("nvls_efficiency", "all_to_all_efficiency")
"""Of the network's parts, whose values serve every GPU until one is measured."""
POSITIVE = ("deepep_sm_bytes_per_second",)
NON_NEGATIVE = tuple(
    name
    for name, kind in field_types(Calibration).items()
    if kind is float and name not in EFFICIENCIES + SHARED_EFFICIENCIES + POSITIVE
)
_BOUNDS: Final[tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...]] = (
    (EFFICIENCIES + SHARED_EFFICIENCIES, lambda x: 0 < x <= 1, "must be above 0 and at most 1"),
    (AT_MOST_ONE, lambda x: x <= 1, "must be at most 1"),
    (POSITIVE, lambda x: x > 0, "must be positive"),
    (NON_NEGATIVE, lambda x: x >= 0, "must not be negative"),
)


def load_calibration(gpu: Gpu, config_dir: Path | None = None) -> Calibration:
    """The calibration that configs/hardware names for `gpu`, else the datasheet one."""
    name = gpu.calibration or "datasheet"
    document = load_config(ConfigGroup.CALIBRATION, name, config_dir, "calibration")
    return read_calibration(document.values, document.path)


_NARROW: Final = "quantized_training_share"
_RETIRED = (_NARROW, "attention_training_share", "fp4_gemm_efficiency", "exchange_hidden_fraction")


def read_calibration(values: Mapping[str, object], file: object) -> Calibration:
    """Of the keys of a file. Of those that only earlier releases have, the share of 8-bit GEMMs
    becomes part of their efficiency; nobody measured the others."""
    kept = {key: value for key, value in values.items() if key not in _RETIRED}
    found = read_record(Calibration, kept, file)
    share = convert(values.get(_NARROW, 1.0), float, file, _NARROW)
    return replace(found, fp8_gemm_efficiency=found.fp8_gemm_efficiency * share)
