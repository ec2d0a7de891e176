"""What a job must be for the PyTorch stacks; what they refuse or ignore, each with its source."""

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.answer import Rejection
from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.base.fields import spelled
from advisor.base.units import divisors, either
from advisor.frameworks.names import Framework
from advisor.frameworks.torch.budget import unknown_operator
from advisor.frameworks.torch.expert_models import eager_experts
from advisor.frameworks.torch.setting import Granularity, TorchSetting
from advisor.job.job import AttnImplementation, Job, JobConfig
from advisor.job.layout import DataParallelSharding, ParallelLayout
from advisor.layers.shape import RankShape
from advisor.models.options import (
    Activation,
    AttentionBackend,
    CpCommType,
    CrossEntropyFusion,
    SoftmaxType,
    TransformerImpl,
)
from advisor.models.spec import ModelSpec
from advisor.models.variants import of_providers, variants

_ONE: Final = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)
_CP: Final = "context_parallel_size"
_CP_KIND: Final = "cp_comm_type"
_OWN: Final = (_CP, _CP_KIND, "data_parallel_size", "data_parallel_sharding", "sequence_parallel")
_CHECKPOINT: Final = "torch 2.13 utils/checkpoint.py"


class Problem(Struct, frozen=True):
    """One reason against a setting."""

    rule: str
    reason: str
    fix: str
    source: str

    def rejection(self, setting: TorchSetting) -> Rejection:
        """The reason as the reports list it."""
        return Rejection(
            setting=setting, rule=self.rule, reason=self.reason, fix=self.fix, source=self.source
        )


_MEGATRON_LAYERS: Final = (
    ("softmax_type", SoftmaxType.VANILLA),
    ("qk_l2_norm", False),
    ("no_rope_freq", None),
    ("attention_chunk_size", None),
    ("attention_output_gate", False),
    ("experimental_attention_variant", None),
    ("hybrid_layer_pattern", None),
)
"""Options of a model that only Megatron's layers have here, with their defaults."""
_UNFUSED: Final = AttentionBackend.UNFUSED
_WITHOUT_MTP: Final = "model.mtp_num_layers=null"


def configured(
    framework: str,
    model: ModelSpec,
    config: JobConfig,
    impl: TransformerImpl,
    given: frozenset[str],
    precisions: tuple[Precision, ...],
) -> tuple[ModelSpec, JobConfig]:
    """Model and job as eager torch runs them, in one of `precisions`; vocabulary not padded.

    The layers are those of `impl` unless the user chose another eager one.
    """
    if config.precision not in precisions:
        legal = f"use {' or '.join(precisions)}"
        raise UserError(
            "job.precision", config.precision, f"is not modelled for {framework}", legal
        )
    for field, default in _MEGATRON_LAYERS:
        if getattr(model, field) != default:
            raise UserError(
                "--framework",
                framework,
                f"is not modelled with {field}",
                _megatron(model),
            )
    if "transformer_impl" in given:
        if not model.transformer_impl.is_eager:
            raise UserError(
                "model.transformer_impl",
                model.transformer_impl,
                f"is Megatron's, not {framework}'s",
                "torch or transformers",
            )
        impl = model.transformer_impl
    _check_plain(model, impl)
    _check_kernels(model, config, impl)
    asked = model
    if model.num_moe_experts is not None:
        model = eager_experts(model, impl, given)
    if model.mtp_num_layers is not None:
        nearest = f"{_WITHOUT_MTP}, or {_megatron(model)}"
        raise UserError(
            "--framework",
            framework,
            "is not modelled with mtp_num_layers",
            nearest,
        )
    multiple = 1
    if "make_vocab_size_divisible_by" in given:
        multiple = model.make_vocab_size_divisible_by
    model = replace(
        model,
        transformer_impl=impl,
        gradient_accumulation_fusion=False,
        cross_entropy_fusion=CrossEntropyFusion.NONE,
        make_vocab_size_divisible_by=multiple,
    )
    _check_given(framework, asked, model, given)
    return model, replace(config, create_attention_mask=False)


def _check_given(framework: str, asked: ModelSpec, run: ModelSpec, given: frozenset[str]) -> None:
    """Refuse what somebody asked for and the layers do not run as."""
    for field in asked.__struct_fields__:
        value = getattr(asked, field)
        if field in given and value != getattr(run, field):
            nearest = f"model.{field}={spelled(getattr(run, field))}, or {_megatron(asked)}"
            raise UserError(f"model.{field}", value, f"is not modelled for {framework}", nearest)
    if "attention_backend" in given and asked.attention_backend is _UNFUSED:
        relation = f"is Megatron's and is not modelled for {framework}"
        nearest = f"model.attention_backend=flash, or {_megatron(asked)}"
        raise UserError("model.attention_backend", asked.attention_backend, relation, nearest)


def _megatron(model: ModelSpec) -> str:
    """The framework of Megatron's family that builds `model`."""
    provided = next(of_providers(model), None) is not None
    return f"--framework {Framework.MEGATRON_BRIDGE if provided else Framework.MEGATRON_LM}"


def _check_plain(model: ModelSpec, impl: TransformerImpl) -> None:
    """torchtitan's blocks have no windows and are of one kind; transformers' have all of these, but
    no latent attention here."""
    if model.multi_latent_attention and impl is TransformerImpl.TRANSFORMERS:
        without = "" if model.mtp_num_layers is None else f" {_WITHOUT_MTP}"
        raise UserError(
            "model.multi_latent_attention",
            True,
            "is not modelled with transformers' layers",
            f"--framework torchtitan{without}, or {_megatron(model)}",
        )
    field = "window_size" if model.window_size is not None else next(variants(model), None)
    if field is not None and impl is TransformerImpl.TORCH:
        raise UserError(
            f"model.{field}",
            getattr(model, field),
            "is not modelled with plain torch layers",
            "use --framework huggingface, or model.transformer_impl=transformers",
        )


def _check_kernels(model: ModelSpec, config: JobConfig, impl: TransformerImpl) -> None:
    """Kernels for transformers' layers alone; Liger's and the tiled MLP are gated ones here."""
    attention = config.attn_implementation
    if attention is not AttnImplementation.SDPA and impl is not TransformerImpl.TRANSFORMERS:
        raise UserError(
            "job.attn_implementation",
            attention,
            "needs transformers' layers",
            "model.transformer_impl=transformers, or --framework huggingface",
        )
    for field in ("use_liger_kernel", "tiled_mlp"):
        if not getattr(config, field):
            continue
        if impl is not TransformerImpl.TRANSFORMERS:
            raise UserError(
                f"job.{field}",
                True,
                "needs transformers' layers",
                "model.transformer_impl=transformers, or --framework huggingface",
            )
        if model.activation is not Activation.SWIGLU or not model.norm_placement.before:
            raise UserError(
                f"job.{field}",
                True,
                f"is modelled only for Llama, Mistral and Qwen, not for {model.name}",
            )
        if model.num_moe_experts is not None:
            raise UserError(f"job.{field}", True, "is not modelled for MoE layers")


def data_parallel_layout(
    framework: str,
    given: dict[str, Any],
    num_gpus: int,
    shardings: tuple[DataParallelSharding, ...],
    kinds: tuple[CpCommType, ...],
) -> ParallelLayout:
    """Data parallel over what context parallelism leaves of the GPUs; the first of `shardings` and
    of `kinds` of context parallelism are the defaults."""
    legal = "|".join(shardings)
    modelled = (
        "only data and context parallelism are modelled, with "
        f"layout.data_parallel_sharding={legal}"
    )
    sharding = given_sharding(framework, given, shardings, _ONE, modelled)
    if given.get("sequence_parallel"):
        raise UserError(
            "layout.sequence_parallel",
            True,
            f"needs tensor parallelism, which is not modelled for {framework}",
            "leave it out",
        )
    ranks, kind = context_ranks(framework, given, num_gpus, kinds)
    return ParallelLayout(
        context_parallel_size=ranks,
        cp_comm_type=kind,
        data_parallel_size=given.get("data_parallel_size", num_gpus // ranks),
        data_parallel_sharding=sharding,
    )


def context_ranks(
    framework: str, given: dict[str, Any], num_gpus: int, kinds: tuple[CpCommType, ...]
) -> tuple[int, CpCommType]:
    """Degree and kind of context parallelism that are given, the first of `kinds` by default;
    UserError where `num_gpus` are no multiple, or the framework has no such kind."""
    ranks, kind = given.get(_CP, 1), given.get(_CP_KIND) or kinds[0]
    if ranks < 1 or num_gpus % ranks:
        legal = f"use {either(map(str, divisors(num_gpus)))}"
        relation = f"must divide the number of GPUs = {num_gpus}"
        raise UserError(f"layout.{_CP}", ranks, relation, legal)
    if kind not in kinds:
        relation = f"is a kind of context parallelism that {framework} does not have"
        raise UserError(f"layout.{_CP_KIND}", kind, relation, " or ".join(kinds))
    return ranks, kind


def given_sharding(
    framework: str,
    given: dict[str, Any],
    shardings: tuple[DataParallelSharding, ...],
    ones: tuple[str, ...],
    modelled: str,
) -> DataParallelSharding:
    """The sharding of the `given` fields of a layout, the first of `shardings` by default.

    UserError on a degree of `ones` that is not 1, with what is modelled; on a field that is
    Megatron's alone; on another sharding.
    """
    for name in ones:
        if given.get(name, 1) != 1:
            itself = " (AutoTP)" if (framework, name) == (Framework.DEEPSPEED, _ONE[0]) else ""
            raise UserError(
                f"layout.{name}",
                given[name],
                f"is not modelled for {framework}{itself}: {modelled}",
                "leave it out, or --framework megatron_lm",
            )
    for name, value in given.items():
        if name not in (*_ONE, *_OWN):
            relation = f"is an option of Megatron, not of {framework}"
            raise UserError(f"layout.{name}", value, relation, "leave it out")
    name = "data_parallel_sharding"
    sharding: DataParallelSharding = given.get(name) or shardings[0]
    if sharding not in shardings:
        relation = f"{framework} has no such sharding"
        raise UserError(f"layout.{name}", sharding, relation, " or ".join(shardings))
    return sharding


def refused_layout(job: Job, kinds: tuple[CpCommType, ...]) -> Iterator[Problem]:
    """A remedy or a search may ask for degrees that these stacks have not."""
    if any(getattr(job.layout, name) not in (1, None) for name in _ONE):
        reason = "only data and context parallelism are modelled"
        yield Problem("layout.data_parallel_only", reason, "use TP 1 and PP 1", "advisor")
    yield from context_problems(job, kinds)


def context_problems(job: Job, kinds: tuple[CpCommType, ...]) -> Iterator[Problem]:
    """Attention that does not run over context-parallel ranks, and groups that they do not share:
    masks are dropped, and Accelerate wants FSDP2. kinds: of context parallelism that there are."""
    if job.layout.context_parallel_size == 1:
        return
    if job.layout.cp_comm_type not in kinds:
        reason = f"{job.config.framework} has no context parallelism by {job.layout.cp_comm_type}"
        fix = f"layout.cp_comm_type={kinds[0]}"
        yield Problem("layout.cp_comm_type", reason, fix, "advisor")
    model, config = job.model, job.config
    eager = config.attn_implementation is AttnImplementation.EAGER
    if eager or model.window_size is not None or model.attn_logit_softcapping is not None:
        reason = (
            "context parallelism applies no attention mask, so it supports no window, no score "
            "cap and no eager attention"
        )
        source = "DeepSpeed 0.19.8 ulysses_sp.py, torch 2.13 _context_parallel/_attention.py"
        yield Problem("layout.context_parallel_attention", reason, "CP 1", source)
    if config.flat_parameters:
        source = "accelerate 1.15.0 commands/launch.py"
        reason = (
            "context parallelism (Accelerate's parallelism_config) needs FSDP2, but "
            "job.flat_parameters means FSDP1"
        )
        fix = "leave job.flat_parameters out"
        yield Problem("layout.context_parallel_fsdp1", reason, fix, source)


_HOPPER: Final = 9
"""Major compute capability."""
_FLASH_ATTENTION: Final = "Dao-AILab/flash-attention README.md, FlashAttention-3: H100 / H800 GPU"


def shared_problems(setting: TorchSetting, job: Job) -> Iterator[Problem]:
    """What torch itself refuses or what comes to nothing, whoever calls it."""
    if job.config.optimizer_in_backward and job.num_microbatches > 1:
        reason = (
            "the optimizer steps in the backward of each microbatch, so gradients cannot accumulate"
        )
        fix = "use one microbatch per step, or leave job.optimizer_in_backward out"
        yield Problem("optimizer_in_backward.accumulation", reason, fix, "advisor")
    third = job.config.attn_implementation is AttnImplementation.FLASH_ATTENTION_3
    if third and int(job.gpu.cuda_capability) != _HOPPER:
        reason = f"FlashAttention-3 needs a Hopper GPU; {job.gpu.name} does not qualify"
        fix = "job.attn_implementation=sdpa"
        yield Problem("attn_implementation.flash_attention_3", reason, fix, _FLASH_ATTENTION)
    layers, segments = job.model.num_layers, setting.segments
    if segments is not None and segments > layers:
        reason = (
            f"{segments} segments of {layers} blocks: torch fails (range() arg 3 must not be zero)"
        )
        fix = f"use at most {layers}"
        source = f"{_CHECKPOINT} checkpoint_sequential"
        yield Problem("checkpoint_sequential.segments", reason, fix, source)
    if segments == 1:
        reason = "one segment checkpoints nothing: the last segment is never checkpointed"
        fix = "use at least 2"
        source = f"{_CHECKPOINT} checkpoint_sequential"
        yield Problem("checkpoint_sequential.last_segment", reason, fix, source)
    number = setting.num_layers
    if number is not None and number > layers:
        reason = f"the model has only {layers} blocks"
        yield Problem("checkpoint.every_n_blocks", reason, f"use at most {layers}", "advisor")
    if setting.budget is not None and job.config.precision.is_quantized:
        reason = "what torch.compile keeps of 8-bit linear layers is not modelled"
        yield Problem("budget.float8", reason, "use full or an operator policy", "advisor")
    elif setting.budget is not None:
        unknown = unknown_operator(block_shape(job), job.model.layer_kinds)
        if unknown:
            reason = f"what torch.compile does with {unknown} is not modelled"
            yield Problem(
                "budget.unknown_graph", reason, "use full or an operator policy", "advisor"
            )


def block_shape(job: Job) -> RankShape:
    """Sizes of a block of `job` on one rank."""
    layout, config = job.layout, job.config
    return RankShape(
        model=job.model,
        seq_length=config.seq_length,
        micro_batch_size=config.micro_batch_size,
        tensor_model_parallel_size=layout.tensor_model_parallel_size,
        sequence_parallel=layout.sequence_parallel,
        context_parallel_size=layout.context_parallel_size,
        cp_comm_type=layout.cp_comm_type,
        precision=config.precision,
        use_liger_kernel=config.use_liger_kernel,
        tiled_mlp=config.tiled_mlp,
        eager_attention=config.attn_implementation is AttnImplementation.EAGER,
    )


def foreign_word(
    framework: str, setting: TorchSetting, known: tuple[Granularity, ...], source: str
) -> Iterator[Problem]:
    """A granularity that the framework has no option for."""
    if setting.granularity not in known:
        reason = f"{framework} has no setting {setting.granularity}"
        yield Problem("setting.unknown_to_framework", reason, f"use {either(known)}", source)
