"""Which jobs the PyTorch stacks run, how they complete them, and what differs between them."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.base.errors import UserError, divisors, either
from advisor.base.fields import spelled
from advisor.base.record import defaults
from advisor.base.rule import Rule, refusals, refuse
from advisor.frameworks.framework_parts import JobSupport
from advisor.frameworks.loss_heads import check_head, head_changes
from advisor.frameworks.names import Framework
from advisor.frameworks.newer_releases import is_newer
from advisor.frameworks.option import Option
from advisor.frameworks.part_types import Degrees, Effect, JobChange
from advisor.frameworks.torch.setting import Granularity, Modifier, OpPolicy
from advisor.job.job import Job, JobConfig
from advisor.job.layout import DataParallelSharding, ParallelLayout
from advisor.job.loss_head import HeadImplementation
from advisor.job.tuning import ALL_LINEAR, Tuning
from advisor.layers.eager.adapters import target_names
from advisor.layers.operators import WIDEST_FLASH_HEAD
from advisor.layers.shape import RankShape
from advisor.models.options import (
    AttentionBackend,
    CpCommType,
    CrossEntropyFusion,
    LoadBalancing,
    TokenDispatcher,
    TransformerImpl,
)
from advisor.models.spec import ModelSpec
from advisor.models.variants import PLAIN, of_providers


def eager_experts(model: ModelSpec, impl: TransformerImpl) -> ModelSpec:
    """`model` with one grouped GEMM over all experts, and nothing that is Megatron's alone: a
    router in fp32 is transformers' as well."""
    transformers = impl is TransformerImpl.TRANSFORMERS
    return replace(
        model,
        moe_grouped_gemm=True,
        moe_token_dispatcher_type=TokenDispatcher.ALLTOALL,
        moe_router_dtype=model.moe_router_dtype if transformers else None,
        moe_aux_loss_coeff=0.0,
        moe_z_loss_coeff=None,
        moe_router_load_balancing_type=LoadBalancing.NONE,
        moe_shared_expert_overlap=False,
        moe_router_fusion=False,
        moe_permute_fusion=False,
        moe_use_legacy_grouped_gemm=False,
    )


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


REPLICAS: Final = "data_parallel_replicate_size"
_FSDPS: Final = (DataParallelSharding.FULL, DataParallelSharding.GRADIENTS)
KERNEL_OPTIONS: Final = ("torch_compile", "attn_implementation", "use_liger_kernel", "tiled_mlp")
"""Options of a job by which transformers' layers run on other kernels."""
EAGER_OPTIONS: Final = (
    *("weights_dtype", "optimizer_implementation", "quantized_adam", "flat_parameters"),
    *KERNEL_OPTIONS,
)
"""Those of FSDP and torch's optimizers in addition."""


class StackFacts(Struct, frozen=True, kw_only=True):
    """What a stack of data and context parallelism takes. Of shardings and context_kinds the first
    is its default. replicates: whether it has replicas of shards (HSDP). loops: whether the
    user's own program trains, with layers of any package. offloads_all: whether all that layers
    keep can wait on the host. has_ddp: whether a job may ask for no sharding
    (DistributedDataParallel), which no search does. key_options: keys of its configuration.
    own_options: see own_options.refuse_options."""

    framework: str
    label: str
    versions: tuple[str, ...]
    source: str
    granularities: tuple[Granularity, ...]
    newest_with_experts: str | None = None
    impl: TransformerImpl = TransformerImpl.TORCH
    policies: tuple[OpPolicy, ...] = ()
    options: tuple[Modifier, ...] = ()
    shardings: tuple[DataParallelSharding, ...] = _FSDPS
    context_kinds: tuple[CpCommType, ...] = (CpCommType.ALL_GATHER, CpCommType.P2P)
    precisions: tuple[Precision, ...] = (Precision.BF16,)
    replicates: bool = False
    has_ddp: bool = False
    offloads_all: bool = False
    loops: bool = False
    key_options: Collection[Option] = ()
    own_options: tuple[str, ...] = ()


class TorchJobs(JobSupport):
    """Jobs of a stack; subclasses say what differs. Layers of transformers see."""

    sees = True

    untuned: tuple[str, ...] = ("job.torch_compile", "job.flat_parameters", "job.tiled_mlp")

    def __init__(self, facts: StackFacts) -> None:
        self.facts, self.framework = facts, facts.framework
        self.own_options, self.precisions = facts.own_options, facts.precisions
        self.degrees = Degrees(context=facts.context_kinds, shardings=facts.shardings)

    def version(self, text: str, model: ModelSpec | None = None) -> str:
        """A known release, by its first two numbers or in full; the newest for a newer one."""
        newest = self.facts.versions[-1]
        if model is not None and model.num_moe_experts is not None:
            newest = self.facts.newest_with_experts or newest
        wanted = text.strip().lower().removeprefix("v") or newest
        for version in self.facts.versions:
            if wanted == version or wanted.startswith(f"{version}."):
                return version
        if is_newer(wanted, self.facts.versions):
            return self.facts.versions[-1]
        relation = f"is not a known version of {self.framework}"
        raise UserError("--framework-version", text, relation, f"use {either(self.facts.versions)}")

    def job_changes(self, job: Job) -> Iterator[JobChange]:
        """Liger's kernels in layers of transformers."""
        fused = replace(job.config, use_liger_kernel=True)
        why = "norms and MLPs keep fewer tensors"
        if job.config.head.implementation is HeadImplementation.DEFAULT:
            why = "the loss is fused with the output layer: no logits of a whole microbatch"
        if job.model.transformer_impl is TransformerImpl.TRANSFORMERS and fused != job.config:
            yield JobChange(
                "job.use_liger_kernel=true (package liger-kernel)",
                why,
                lambda: replace(job, config=fused),
                Effect.PACKAGE,
            )
        yield from head_changes(job)

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
            relation = "has MoE layers of another kind, which are not modelled"
            instead = f"use --framework-version {known}"
            raise UserError("--framework-version", version, relation, instead)
        return configured(Asked(self.facts, model, config, given))

    def layout(self, given: dict[str, Any], num_gpus: int) -> ParallelLayout | None:
        """Data parallel, and context parallel where that is asked for."""
        return data_parallel_layout(self.facts, given, num_gpus)


class Asked(Struct, frozen=True):
    """A job as somebody asked a stack for it. given: names of fields that were said, those of the
    job as ``job.NAME``."""

    facts: StackFacts
    model: ModelSpec
    job: JobConfig
    given: frozenset[str]

    @property
    def impl(self) -> TransformerImpl:
        """Whose layers it runs: the stack's own unless the user chose other ones; a plain loop's
        are transformers' where parts are frozen, or the model sees."""
        if "transformer_impl" in self.given:
            return self.model.transformer_impl
        needs = not self.tuning.trains_all or self.model.vision is not None
        if self.facts.loops and needs and not self.job.torch_compile:
            return TransformerImpl.TRANSFORMERS
        return self.facts.impl

    @property
    def tuning(self) -> Tuning:
        """What is trained."""
        return self.job.tuning

    @property
    def is_transformers(self) -> bool:
        """Whether these are transformers'."""
        return self.impl is TransformerImpl.TRANSFORMERS

    @property
    def adapts_experts(self) -> bool:
        """Whether experts have adapters."""
        return any(name.startswith("experts.") for name in self.tuning.target_modules)

    @property
    def megatron(self) -> str:
        """The framework of Megatron's family that builds the model."""
        provided = next(of_providers(self.model), None) is not None
        return f"--framework {Framework.MEGATRON_BRIDGE if provided else Framework.MEGATRON_LM}"


class AskedRule(Rule[[Asked]], frozen=True, kw_only=True):
    """A rule on a job as it is asked for."""

    names: ClassVar[tuple[str, ...]] = ("asked",)

    def stands_in(self, field: str, values: Mapping[str, object]) -> object:
        """See Rule; the framework where that is the field."""
        asked = values["asked"]
        assert isinstance(asked, Asked)
        group, _, name = field.partition(".")
        owner = asked if hasattr(asked, group) else asked.job
        return getattr(getattr(owner, group), name) if name else asked.facts.framework


_DEFAULTS: Final = defaults(ModelSpec)


def _not_default(name: str, asked: Asked) -> bool:
    return bool(getattr(asked.model, name) != _DEFAULTS[name])


def _unknown_targets(asked: Asked) -> dict[str, str] | None:
    """A name that no linear layer of the model has, and those that some have."""
    wanted, model = asked.tuning.target_modules, replace(asked.model, transformer_impl=asked.impl)
    if not asked.tuning.has_adapter or not asked.is_transformers:
        return None
    if model.num_moe_experts is not None:
        model = eager_experts(model, asked.impl)
    known = target_names(RankShape(model=model, seq_length=1, micro_batch_size=1))
    unknown = next((name for name in wanted if name not in (ALL_LINEAR, *known)), "")
    return {"name": unknown, "known": either((ALL_LINEAR, *known))} if unknown else None


_RULES: Final = refusals(
    AskedRule,
    "eager_torch",
    {
        "job.precision": lambda asked: (
            asked.job.precision not in asked.facts.precisions
            and " or ".join(asked.facts.precisions)
        ),
        "megatrons": _not_default,
        "sinks": _not_default,
        "variants": _not_default,  # torchtitan's layers: no windows, of one kind
        "widest_head": lambda asked: (
            asked.model.widest_head > WIDEST_FLASH_HEAD and WIDEST_FLASH_HEAD
        ),
        "experts_of_torchtitan": _not_default,
        "experts_of_transformers": _not_default,
        "tuning.target_modules": _unknown_targets,
    },
    {"variants": ("window_size", *dict(PLAIN))},
)


def configured(asked: Asked) -> tuple[ModelSpec, JobConfig]:
    """Model and job as eager torch runs them; vocabulary not padded."""
    model, given = asked.model, asked.given
    has_experts = model.num_moe_experts is not None
    refuse(_RULES.values(), asked)
    padded = "make_vocab_size_divisible_by" in given
    run = replace(
        eager_experts(model, asked.impl) if has_experts else model,
        transformer_impl=asked.impl,
        mtp_num_layers=None if asked.is_transformers else model.mtp_num_layers,  # in no class
        gradient_accumulation_fusion=False,
        cross_entropy_fusion=CrossEntropyFusion.NONE,
        make_vocab_size_divisible_by=model.make_vocab_size_divisible_by if padded else 1,
    )
    _check_given(asked, run)
    check_head(run, asked.job)
    return run, replace(asked.job, create_attention_mask=False)


def _check_given(asked: Asked, run: ModelSpec) -> None:
    """Refuse what somebody asked for and the layers do not run as."""
    unfused = AttentionBackend.UNFUSED
    reason = f"is not modelled for {asked.facts.framework}"
    for field in run.__struct_fields__:
        value, becomes = getattr(asked.model, field), getattr(run, field)
        if field in asked.given and value != becomes:
            nearest = f"model.{field}={spelled(becomes)}, or {asked.megatron}"
            raise UserError(f"model.{field}", value, reason, nearest)
    if "attention_backend" in asked.given and asked.model.attention_backend is unfused:
        nearest = f"model.attention_backend=flash, or {asked.megatron}"
        raise UserError("model.attention_backend", unfused, f"is Megatron's and {reason}", nearest)


def data_parallel_layout(facts: StackFacts, given: dict[str, Any], num_gpus: int) -> ParallelLayout:
    """Data parallel over what context parallelism leaves of the GPUs."""
    shardings = f"layout.data_parallel_sharding={'|'.join(facts.shardings)}"
    modelled = f"only data and context parallelism are modelled, with {shardings}"
    sharding = given_sharding(facts, given, DATA_PARALLEL_ONLY, modelled)
    if num_gpus == 1 and facts.has_ddp:  # where there is nothing to shard
        sharding = facts.shardings[0]
    if given.get("sequence_parallel"):
        relation = f"needs tensor parallelism, which is not modelled for {facts.framework}"
        raise UserError("layout.sequence_parallel", True, relation, "leave it out")
    ranks, kind = context_ranks(facts, given, num_gpus)
    size, replicas = given.get("data_parallel_size", num_gpus // ranks), given.get(REPLICAS, 1)
    if replicas != 1 and (replicas < 1 or ranks > 1 or size % replicas or size == replicas):
        divide = f"must divide DP {size} into groups of two or more"
        relation = "is not modelled with CP" if ranks > 1 else divide
        raise UserError(f"layout.{REPLICAS}", replicas, relation, "use 1")
    return ParallelLayout(
        context_parallel_size=ranks,
        cp_comm_type=kind,
        data_parallel_size=size,
        data_parallel_sharding=sharding,
        data_parallel_replicate_size=replicas,
    )


def context_ranks(
    facts: StackFacts, given: dict[str, Any], num_gpus: int
) -> tuple[int, CpCommType]:
    """Degree and kind of context parallelism that are given; UserError where `num_gpus` are no
    multiple, or the framework has no such kind."""
    kinds = facts.context_kinds
    ranks, kind = given.get(_CP, 1), given.get(_CP_KIND) or kinds[0]
    if ranks < 1 or num_gpus % ranks:
        legal = f"use {either(map(str, divisors(num_gpus)))}"
        relation = f"must divide the number of GPUs = {num_gpus}"
        raise UserError(f"layout.{_CP}", ranks, relation, legal)
    if kind not in kinds:
        relation = f"is a kind of context parallelism that {facts.framework} does not have"
        raise UserError(f"layout.{_CP_KIND}", kind, relation, " or ".join(kinds))
    return ranks, kind


def given_sharding(
    facts: StackFacts, given: dict[str, Any], ones: tuple[str, ...], modelled: str
) -> DataParallelSharding:
    """The sharding of the `given` fields of a layout, the stack's first by default. UserError on a
    degree of `ones` that is not 1, with what is modelled; on a field that is Megatron's alone; on
    another sharding."""
    framework = facts.framework
    shardings = (*facts.shardings, *[DataParallelSharding.NONE] * facts.has_ddp)
    for name in ones:
        if given.get(name, 1) != 1:
            own = (framework, name) == (Framework.DEEPSPEED, DATA_PARALLEL_ONLY[0])
            relation = f"is not modelled for {framework}{' (AutoTP)' if own else ''}: {modelled}"
            instead = "leave it out, or --framework megatron_lm"
            raise UserError(f"layout.{name}", given[name], relation, instead)
    for name, value in given.items():
        if name == REPLICAS and value != 1 and not facts.replicates:
            relation = f"HSDP is not modelled for {framework}"
            raise UserError(f"layout.{name}", value, relation, "--framework fsdp2, or 1")
        if name not in (*DATA_PARALLEL_ONLY, *_OWN, REPLICAS):
            relation = f"is an option of Megatron, not of {framework}"
            raise UserError(f"layout.{name}", value, relation, "leave it out")
    sharding: DataParallelSharding = given.get("data_parallel_sharding") or shardings[0]
    if sharding not in shardings:
        field, relation = "layout.data_parallel_sharding", f"{framework} has no such sharding"
        raise UserError(field, sharding, relation, " or ".join(shardings))
    return sharding
