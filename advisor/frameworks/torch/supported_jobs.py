"""Which jobs the PyTorch stacks run, how they complete them, and what differs between them."""

from collections.abc import Collection, Iterator
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.base.fields import spelled
from advisor.base.units import divisors, either
from advisor.frameworks.framework_parts import JobSupport
from advisor.frameworks.names import Framework
from advisor.frameworks.option import Option
from advisor.frameworks.part_types import Degrees
from advisor.frameworks.torch.expert_models import eager_experts
from advisor.frameworks.torch.setting import Granularity, Modifier, OpPolicy
from advisor.job.job import AttnImplementation, JobConfig
from advisor.job.layout import DataParallelSharding, ParallelLayout
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

DATA_PARALLEL_ONLY: Final = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)
_CP: Final = "context_parallel_size"
_CP_KIND: Final = "cp_comm_type"
_OWN: Final = (_CP, _CP_KIND, "data_parallel_size", "data_parallel_sharding", "sequence_parallel")


class StackFacts(Struct, frozen=True, kw_only=True):
    """What a stack of data and context parallelism takes. context_kinds: the first is its default.
    key_options: keys of its configuration. own_options: see own_options.refuse_options."""

    framework: str
    label: str
    versions: tuple[str, ...]
    source: str
    granularities: tuple[Granularity, ...]
    newest_with_experts: str | None = None
    impl: TransformerImpl = TransformerImpl.TORCH
    policies: tuple[OpPolicy, ...] = ()
    options: tuple[Modifier, ...] = ()
    shardings: tuple[DataParallelSharding, ...] = (
        DataParallelSharding.FULL,
        DataParallelSharding.GRADIENTS,
    )
    context_kinds: tuple[CpCommType, ...] = (CpCommType.ALL_GATHER, CpCommType.P2P)
    precisions: tuple[Precision, ...] = (Precision.BF16,)
    key_options: Collection[Option] = ()
    own_options: tuple[str, ...] = ()


class TorchJobs(JobSupport):
    """Jobs of a stack; subclasses say what differs."""

    def __init__(self, facts: StackFacts) -> None:
        self.facts, self.framework = facts, facts.framework
        self.own_options = facts.own_options
        self.degrees = Degrees(context=facts.context_kinds, shardings=facts.shardings)

    def version(self, text: str, model: ModelSpec | None = None) -> str:
        """A known release, by its first two numbers or in full."""
        newest = self.facts.versions[-1]
        if model is not None and model.num_moe_experts is not None:
            newest = self.facts.newest_with_experts or newest
        wanted = text.strip().lower().removeprefix("v") or newest
        for version in self.facts.versions:
            if wanted == version or wanted.startswith(f"{version}."):
                return version
        raise UserError(
            "--framework-version",
            text,
            f"is not a known version of {self.framework}",
            f"use {either(self.facts.versions)}",
        )

    def takes(self) -> Iterator[tuple[str, str]]:
        """Names of what the stack takes, and values."""
        facts = self.facts
        yield "granularities", " ".join(facts.granularities)
        yield "op:", " ".join(facts.policies) or "none"
        yield "options", " ".join(f"+{option}" for option in facts.options) or "none"
        yield "sharding", " ".join(facts.shardings)
        degrees = "FSDP, TP, CP and EP" if self.degrees.tensor else "data and context parallelism"
        yield "jobs", f"{' or '.join(facts.precisions)}; dense and MoE models; {degrees}"

    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        """See `configured`."""
        self.check_options(config)
        known, version = self.facts.newest_with_experts, config.framework_version
        if model.num_moe_experts is not None and known not in (None, version):
            raise UserError(
                "--framework-version",
                version,
                "has MoE layers of another kind, which are not modelled",
                f"use --framework-version {known}",
            )
        return configured(
            self.framework, model, config, self.facts.impl, given, self.facts.precisions
        )

    def layout(self, given: dict[str, Any], num_gpus: int) -> ParallelLayout | None:
        """Data parallel, and context parallel where that is asked for."""
        known = self.facts.shardings, self.facts.context_kinds
        return data_parallel_layout(self.framework, given, num_gpus, *known)


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
    sharding = given_sharding(framework, given, shardings, DATA_PARALLEL_ONLY, modelled)
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
            itself = (
                " (AutoTP)"
                if (framework, name) == (Framework.DEEPSPEED, DATA_PARALLEL_ONLY[0])
                else ""
            )
            raise UserError(
                f"layout.{name}",
                given[name],
                f"is not modelled for {framework}{itself}: {modelled}",
                "leave it out, or --framework megatron_lm",
            )
    for name, value in given.items():
        if name not in (*DATA_PARALLEL_ONLY, *_OWN):
            relation = f"is an option of Megatron, not of {framework}"
            raise UserError(f"layout.{name}", value, relation, "leave it out")
    name = "data_parallel_sharding"
    sharding: DataParallelSharding = given.get(name) or shardings[0]
    if sharding not in shardings:
        relation = f"{framework} has no such sharding"
        raise UserError(f"layout.{name}", sharding, relation, " or ".join(shardings))
    return sharding
