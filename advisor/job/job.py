"""One training job: model, layout, hardware, batch and precision, checked together."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, Final

from msgspec import Struct

from advisor.base.dtypes import DType, Precision
from advisor.base.errors import UserError, nearest_divisors
from advisor.base.rule import Match, Rule, refusals, refuse
from advisor.hardware.gpu import Gpu, Vendor
from advisor.job.layout import ParallelLayout, check_model_fits_layout
from advisor.job.loss_head import LossHead
from advisor.job.pipeline_split import pipeline_stages
from advisor.job.reinforcement import Reinforcement
from advisor.job.samples import Samples
from advisor.job.tuning import Tuning
from advisor.models.options import CpCommType
from advisor.models.spec import ModelSpec

_CAPABILITIES = {
    Precision.FP8_BLOCKWISE: (9.0, "Hopper"),
    Precision.MXFP8: (10.0, "Blackwell"),
    Precision.NVFP4: (10.0, "Blackwell"),
}
"""Compute capability from which NVIDIA's Transformer Engine runs a recipe (TE 2.20
pytorch/quantization.py)."""
_AMPERE = 8.0
_WITHOUT_MXFP8 = 12.0
"""Compute capability from which it runs none of that (same file, _compute_mxfp8_support)."""


class CudaGraphImpl(StrEnum):
    """`--cuda-graph-impl` of Megatron."""

    NONE = "none"
    LOCAL = "local"
    TRANSFORMER_ENGINE = "transformer_engine"
    FULL_ITERATION = "full_iteration"


class Optimizer(StrEnum):
    """`--optimizer` of Megatron, `optim` of transformers. Muon orthogonalizes the weights of
    linear layers, one whole tensor at a time, and leaves the others to Adam; dist_muon
    deals the tensors to data-parallel ranks. Adam's moments take 8 or 4 bits in bitsandbytes
    (adamw_8bit) and torchao (adamw_torch_8bit, adamw_torch_4bit)."""

    ADAM = "adam"
    MUON = "muon"
    DIST_MUON = "dist_muon"
    BITSANDBYTES_8BIT = "adamw_8bit"
    PAGED_32BIT = "paged_adamw_32bit"
    PAGED_8BIT = "paged_adamw_8bit"
    TORCHAO_8BIT = "adamw_torch_8bit"
    TORCHAO_4BIT = "adamw_torch_4bit"

    @property
    def is_muon(self) -> bool:
        """Whether tensors stay whole."""
        return self in (Optimizer.MUON, Optimizer.DIST_MUON)

    @property
    def is_quantized(self) -> bool:
        """Whether Adam is another than the framework's own: bitsandbytes' or torchao's."""
        return self is not Optimizer.ADAM and not self.is_muon

    @property
    def is_paged(self) -> bool:
        """Whether the moments are in memory that the GPU and the host share (bitsandbytes)."""
        return self in (Optimizer.PAGED_32BIT, Optimizer.PAGED_8BIT)


class OptimizerImplementation(StrEnum):
    """How torch's Adam runs over its tensors: one kernel for all, a kernel an operation for all, or
    an operation after the other for each."""

    FUSED = "fused"
    FOREACH = "foreach"
    FOR_LOOP = "for-loop"


class AttnImplementation(StrEnum):
    """`attn_implementation` of transformers; sdpa is torch's scaled_dot_product_attention."""

    SDPA = "sdpa"
    FLASH_ATTENTION_2 = "flash_attention_2"
    FLASH_ATTENTION_3 = "flash_attention_3"
    EAGER = "eager"


class Fp8Recipe(StrEnum):
    """`--fp8-recipe` of Megatron (megatron-core enums.py, Fp8Recipe)."""

    DELAYED = "delayed"
    TENSORWISE = "tensorwise"
    BLOCKWISE = "blockwise"
    MXFP8 = "mxfp8"


RECIPES_OF_PRECISIONS: Final = {
    Precision.FP8_DELAYED: Fp8Recipe.DELAYED,
    Precision.FP8_CURRENT: Fp8Recipe.TENSORWISE,
    Precision.FP8_BLOCKWISE: Fp8Recipe.BLOCKWISE,
    Precision.MXFP8: Fp8Recipe.MXFP8,
}
"""The recipe of each 8-bit precision."""


GRADIENTS_AT_ONCE = 2**28
"""Elements of which the harness's native step makes fp32 copies together."""


LIKELY: Final = 0.9
"""Probability to fit that a job is asked for, as a rule: one in ten may be unlucky."""
COMPILED: Final = ("model", "loss")
"""What torchtitan compiles unless it is told otherwise (0.2.2 config/job_config.py Compile)."""


class JobConfig(Struct, frozen=True, kw_only=True):
    """What `job.KEY=VALUE` reaches: batch, precision and run-time options.

    ``main_grads_dtype`` is the type of Megatron's contiguous gradient buffer (the weights' 16 bits
    where grad_reduce_in_fp32 is off), and that of FSDP2's reduce-scatter. The other types of the
    optimizer's tensors need ``use_precision_aware_optimizer``, as does ``optimizer_cpu_offload``
    in Megatron-LM (arguments.py), which moves ``optimizer_offload_fraction`` of the optimizer's
    states and work to the host (DeepSpeed's offload_optimizer with its ratio);
    ``param_cpu_offload`` is DeepSpeed's offload_param or FSDP's; ``sync_each_batch`` is
    Accelerate's, which reduces gradients with every microbatch instead of the last alone;
    ``fp8_param_gather`` keeps the linear layers' weights in 8 bits alone (torchtitan's
    enable_fsdp_float8_all_gather: as they are gathered). ``copies_gradients`` is
    our own: Megatron's optimizer makes fp32 copies of its shard of 16-bit gradients all at once,
    the harness's native step a few at a time. ``fp8_recipe`` is what Megatron's OptimizerConfig
    names where no linear layer computes in 8 bits; None: what the framework leaves there
    (adam_holds_main_params). ``optimizer`` is Megatron's; main_params_dtype and
    the moments' types are Adam's. ``framework_version`` is megatron-core's for Megatron-LM, and the
    framework's own for Megatron Bridge and NeMo; ``trainer`` is the dialect that calls DeepSpeed,
    in whose words options are written; ``transformer_engine_version`` is the release of Transformer
    Engine beneath it, by default the newest that the framework's asks for.
    ``create_attention_mask`` is Megatron-LM's create_attention_mask_in_dataloader, of the same name
    in NeMo; see loads_attention_mask. ``moe_load_imbalance`` is our own: tokens that reach the
    busiest expert-parallel rank over the mean. At 1, its default, bytes are those of balanced
    routing, and what fits is told of a published imbalance (memory/imbalance.py) unless
    ``moe_router_force_load_balancing`` balances it. ``expandable_segments`` is that option of
    PYTORCH_CUDA_ALLOC_CONF. ``deterministic_mode`` is Megatron's: attention and cuBLAS take what
    repeats to the bit; times stay those of the usual kernels. ``memory_budget_bytes`` None means:
    what the GPU gives; ``host_memory_bytes``, of one server, None: it is not known, and decides
    nothing. ``certainty`` is the probability from which a setting counts as one that fits.
    ``mean_packed_length`` is that of packed sequences as attention weighs them: the sum of their
    squared lengths over the sum of their lengths.
    The PyTorch stacks alone have: ``weights_dtype``, the type of the weights between steps (None:
    what the framework loads them in); ``optimizer_implementation``; ``optimizer_in_backward``,
    which steps each weight when its gradient is there; ``torch_compile``, and torchtitan's
    ``compile_components``, what it compiles; ``attn_implementation``;
    ``use_liger_kernel``, Liger's norms, rotary embedding, SwiGLU and loss; ``tiled_mlp``,
    DeepSpeed's TiledMLP over ceil(sequence / hidden) parts of a sequence; ``flat_parameters``,
    torch's FSDP1 in place of FSDP2. ``tuning``, ``head``, ``samples`` and ``rl`` are groups of keys
    of their own: what is trained, how the loss is computed, how long samples are, and the phases of
    reinforcement learning.
    """

    seq_length: int
    micro_batch_size: int
    global_batch_size: int
    precision: Precision = Precision.BF16
    framework: str = ""
    framework_version: str = ""
    trainer: str = ""
    transformer_engine_version: str = ""
    main_grads_dtype: DType = DType.FP32
    copies_gradients: bool = True
    fp8_recipe: Fp8Recipe | None = None
    optimizer: Optimizer = Optimizer.ADAM
    fp8_param_gather: bool = False
    use_precision_aware_optimizer: bool = False
    main_params_dtype: DType = DType.FP32
    exp_avg_dtype: DType = DType.FP32
    exp_avg_sq_dtype: DType = DType.FP32
    optimizer_cpu_offload: bool = False
    optimizer_offload_fraction: float = 1.0
    overlap_cpu_optimizer_d2h_h2d: bool = False
    param_cpu_offload: bool = False
    sync_each_batch: bool = False
    cuda_graph_impl: CudaGraphImpl = CudaGraphImpl.NONE
    cuda_graph_modules: tuple[str, ...] = ()
    moe_load_imbalance: float = 1.0
    moe_router_force_load_balancing: bool = False
    create_attention_mask: bool | None = None
    expandable_segments: bool = False
    deterministic_mode: bool = False
    memory_budget_bytes: int | None = None
    host_memory_bytes: int | None = None
    certainty: float = LIKELY
    mean_packed_length: int | None = None
    weights_dtype: DType | None = None
    optimizer_implementation: OptimizerImplementation = OptimizerImplementation.FUSED
    optimizer_in_backward: bool = False
    torch_compile: bool = False
    compile_components: tuple[str, ...] = COMPILED
    attn_implementation: AttnImplementation = AttnImplementation.SDPA
    use_liger_kernel: bool = False
    tiled_mlp: bool = False
    flat_parameters: bool = False
    tuning: Tuning = Tuning()
    head: LossHead = LossHead()
    samples: Samples = Samples()
    rl: Reinforcement = Reinforcement()

    @property
    def transformer_engine(self) -> tuple[int, int]:
        """Major and minor number of its release."""
        text = self.transformer_engine_version or NEWEST_TRANSFORMER_ENGINE
        major, minor = text.split(".")[:2]
        return int(major), int(minor)

    @property
    def loads_attention_mask(self) -> bool:
        """Whether a boolean mask [b, 1, s, s] comes with each microbatch. If neither the request
        nor the framework says it, wherever sequences are not packed."""
        if self.create_attention_mask is not None:
            return self.create_attention_mask
        return not self.is_packed

    @property
    def is_packed(self) -> bool:
        """Whether a row holds several samples."""
        return self.mean_packed_length is not None or self.samples.packed

    @property
    def offloaded_fraction(self) -> float:
        """Part of the optimizer that works on the host."""
        return self.optimizer_offload_fraction if self.optimizer_cpu_offload else 0.0

    @property
    def adam_holds_main_params(self) -> bool:
        """Whether main parameters are Adam's and it reads the gradients where they are, instead of
        an fp32 parameter with an fp32 gradient next to each shard.

        Source: megatron-core 0.16.1 and 0.19.2 optimizer_config.py,
        use_precision_aware_optimizer_no_fp8_or_ds_fp8, which asks for the recipe, not for FP8."""
        recipe = RECIPES_OF_PRECISIONS.get(self.precision, self.fp8_recipe)
        return self.use_precision_aware_optimizer and (
            self.main_params_dtype is not DType.FP32
            or recipe in (None, Fp8Recipe.DELAYED)
            or self.optimizer_cpu_offload
        )

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of main parameter and Adam moments of one element. Of an fp32 main parameter that
        it holds, Adam keeps the 16 bits that its bf16 weight lacks (store_param_remainders, from
        Transformer Engine 2.1 on)."""
        main = self.main_params_dtype.itemsize
        remainders = (
            self.adam_holds_main_params
            and self.main_params_dtype is DType.FP32
            and self.precision is not Precision.FP16
            and self.transformer_engine >= (2, 1)
        )
        if remainders:
            main -= self.precision.parameter_dtype.itemsize
        return main + self.exp_avg_dtype.itemsize + self.exp_avg_sq_dtype.itemsize

    @property
    def compiles_loss(self) -> bool:
        """Whether torchtitan compiles the loss with the model."""
        return self.torch_compile and "loss" in self.compile_components

    def __post_init__(self) -> None:
        refuse(_CONFIG_RULES.values(), self)


_MOMENTS: Final = (DType.FP32, DType.FP16, DType.BF16, DType.FLOAT8)
_OPTIMIZER_DTYPES: Final = {
    "main_params_dtype": (DType.FP32, DType.FP16),
    "exp_avg_dtype": _MOMENTS,
    "exp_avg_sq_dtype": _MOMENTS,
}
"""Megatron-LM arguments.py: choices of --main-params-dtype, --exp-avg-dtype, --exp-avg-sq-dtype."""


NEWEST_TRANSFORMER_ENGINE = "2.20"
"""The newest release whose sources were read."""


class _ConfigRule(Rule[[JobConfig]], frozen=True, kw_only=True):
    """A rule on the options of a job."""

    names: ClassVar[tuple[str, ...]] = ("job",)


def _reduces_in(name: str, job: JobConfig) -> bool:
    return getattr(job, name) not in (None, DType.FP32, DType.BF16, job.precision.parameter_dtype)


def _held_in(name: str, job: JobConfig) -> Match | None:
    """Types of the optimizer's tensors other than fp32 need the precision-aware optimizer."""
    value, allowed = getattr(job, name), _OPTIMIZER_DTYPES[name]
    legal = allowed if job.use_precision_aware_optimizer else (DType.FP32,)
    switch = "set job.use_precision_aware_optimizer=true" if value in allowed else ""
    return None if value in legal else Match(f"must be {' or '.join(legal)}", switch)


_CONFIG_RULES: Final = refusals(
    _ConfigRule,
    "config",
    {
        "job.transformer_engine_version": lambda job: (
            not re.fullmatch(r"(\d+\.\d+(\.\w+)*)?", job.transformer_engine_version)
            and NEWEST_TRANSFORMER_ENGINE
        ),
        "reduces_in": _reduces_in,
        "held_in": _held_in,
        "job.compile_components": lambda job: (
            not {*job.compile_components} <= {*COMPILED}
            or (job.torch_compile and "model" not in job.compile_components)
        ),
        "job.fp8_recipe": lambda job: (
            job.fp8_recipe not in (None, RECIPES_OF_PRECISIONS.get(job.precision, job.fp8_recipe))
        ),
    },
)


class Job(Struct, frozen=True, kw_only=True):
    """A complete, legal job; construction raises UserError on a relation that does not hold."""

    model: ModelSpec
    layout: ParallelLayout
    config: JobConfig
    gpu: Gpu
    num_gpus: int

    def __post_init__(self) -> None:
        layout, config = self.layout, self.config
        refuse(_WORLD_RULES.values(), layout, config, self.num_gpus)
        check_precision(config.precision, self.gpu)
        check_model_fits_layout(self.model, layout)
        pipeline_stages(self.model, layout)
        refuse(_BATCH_RULES.values(), layout, config, self.num_gpus)

    @property
    def num_microbatches(self) -> int:
        """Microbatches of one step on one data-parallel rank."""
        per_pass = self.config.micro_batch_size * self.layout.data_parallel_size
        return self.config.global_batch_size // per_pass

    @property
    def gpus_of_a_server(self) -> int:
        """GPUs of the job that share the memory of one host."""
        return min(self.num_gpus, _SERVER)

    @property
    def has_te_linear(self) -> bool:
        """Whether eager layers have Transformer Engine's linear layers in 8 bits (Accelerate)."""
        eager = self.model.transformer_impl.is_eager
        return eager and self.config.precision is Precision.FP8_DELAYED

    @property
    def has_eager_fp8(self) -> bool:
        """Whether eager layers compute in 8 bits without torch.compile."""
        eager = self.model.transformer_impl.is_eager and not self.config.torch_compile
        return eager and self.config.precision.is_fp8


_SERVER: Final = 8
"""GPUs of a server at most; trays of Grace have fewer, and less memory."""


def predates_ampere(gpu: Gpu) -> bool:
    """Whether its tensor cores have no bf16, and Transformer Engine only unfused attention (2.20
    attention/dot_product_attention/utils.py)."""
    return gpu.vendor is Vendor.NVIDIA and gpu.compute_capability < _AMPERE


def sixteen_bits(gpu: Gpu) -> Precision:
    """The 16-bit type of its tensor cores."""
    return Precision.FP16 if predates_ampere(gpu) else Precision.BF16


def _lacked(precision: Precision, gpu: Gpu) -> str:
    if precision.is_quantized:
        return "8-bit" if gpu.fp8_flops is None else ""
    return "bf16" if precision is Precision.BF16 and predates_ampere(gpu) else ""


def check_precision(precision: Precision, gpu: Gpu) -> None:
    """Raise UserError where the GPU has no tensor cores for `precision`."""
    needed, chip = _CAPABILITIES.get(precision, (0.0, ""))
    refused, instead = "", "use fp8_current"
    if lacked := _lacked(precision, gpu):
        refused, instead = f"{gpu.name} has no {lacked} tensor cores", f"use {sixteen_bits(gpu)}"
    elif needed and gpu.vendor is not Vendor.NVIDIA:
        refused = f"is a recipe of NVIDIA's Transformer Engine, which does not run on {gpu.name}"
    elif precision is Precision.MXFP8 and gpu.cuda_capability >= _WITHOUT_MXFP8:
        capability = f"compute capability {gpu.compute_capability}"
        refused = f"is refused by Transformer Engine on {gpu.name} ({capability})"
    elif gpu.compute_capability < needed:
        refused = f"needs {chip}; {gpu.name} is older"
    if refused:
        raise UserError("job.precision", precision, refused, instead)


def sequence_shards(layout: ParallelLayout) -> tuple[int, str]:
    """What a row's tokens are a multiple of, and of which degrees: context parallelism cuts the
    sequence into 2 x CP pieces to balance the causal mask; DeepSpeed's has whole sequences by
    heads, and nothing to balance."""
    cp = layout.context_parallel_size
    if layout.data_parallel_sharding is not None and layout.cp_comm_type is CpCommType.A2A:
        return layout.sequence_shards * cp, "CP"
    return layout.sequence_shards * (2 * cp if cp > 1 else 1), "2 CP"


_Found = dict[str, int | str] | None


class _JobRule(Rule[[ParallelLayout, JobConfig, int]], frozen=True, kw_only=True):
    """A rule on options and degrees."""

    names: ClassVar[tuple[str, ...]] = ("layout", "job", "gpus")

    def stands_in(self, field: str, values: Mapping[str, object]) -> object:
        """See Rule; `rl` is of the job."""
        if field == _WORLD:
            field = "layout.world_size"
        group, _, name = field.partition(".")
        owner = values[group] if group in values else getattr(values["job"], group)
        return getattr(owner, name)


def _other_number(layout: ParallelLayout, _: JobConfig, gpus: int) -> _Found:
    if layout.world_size == gpus:
        return None
    degrees = layout.world_size // layout.data_parallel_size
    return {"degrees": degrees, "nearest": nearest_divisors(gpus, degrees)}


def _cut_sequence(layout: ParallelLayout, job: JobConfig, _: int) -> _Found:
    shards, pieces = sequence_shards(layout)
    if job.seq_length % shards == 0 or job.samples.varies:  # else rows are padded
        return None
    return {"shards": shards, "pieces": pieces, "nearest": _nearest(job.seq_length, shards)}


def _of_pass(layout: ParallelLayout, job: JobConfig) -> int:
    return job.micro_batch_size * layout.data_parallel_size


def _other_microbatches(layout: ParallelLayout, job: JobConfig, _: int) -> _Found:
    of_pass, pp = _of_pass(layout, job), layout.pipeline_model_parallel_size
    microbatches = job.global_batch_size // of_pass
    if microbatches % pp == 0 or job.samples.token_budget is not None:
        return None
    nearest = _nearest(job.global_batch_size, of_pass * pp)
    return {"microbatches": microbatches, "nearest": nearest}


def _nearest(size: int, step: int) -> str:
    down = size // step * step
    return f"nearest: {' or '.join(str(near) for near in (down, down + step) if near)}"


_WORLD: Final = "layout TP x CP x PP x DP"
_WORLD_RULES: Final = refusals(_JobRule, "job", {_WORLD: _other_number})
_BATCH_RULES: Final = refusals(
    _JobRule,
    "batch",
    {
        "job.mean_packed_length": lambda _, job, __: (
            job.mean_packed_length and job.mean_packed_length > job.seq_length
        ),
        "job.seq_length": _cut_sequence,
        "job.global_batch_size": lambda layout, job, _: (
            job.global_batch_size % _of_pass(layout, job)
            and _nearest(job.global_batch_size, _of_pass(layout, job))
        ),
        "interleaved": _other_microbatches,
        "rl.engine_tensor_parallel_size": lambda _, job, gpus: (
            gpus % job.rl.engine_tensor_parallel_size
            and nearest_divisors(gpus, job.rl.engine_tensor_parallel_size)
        ),
    },
)
