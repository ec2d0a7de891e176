"""What the PyTorch stacks refuse or what comes to nothing, each with its source.

A stack's tables are those of this module with its own after them. A layout that it does not have
is refused first: rules on settings assume one that it has.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import ClassVar, Final

from advisor.base.dtypes import DType
from advisor.base.rule import Match, Rule
from advisor.base.units import either
from advisor.frameworks.names import Framework
from advisor.frameworks.torch.block_regimes import INPUT, decisions
from advisor.frameworks.torch.budget import unknown_operator
from advisor.frameworks.torch.setting import FULL, NONE, TorchSetting
from advisor.frameworks.torch.supported_jobs import DATA_PARALLEL_ONLY, StackFacts
from advisor.job.job import AttnImplementation, Job
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer


class TorchRule(Rule[[TorchSetting, Job, StackFacts]], frozen=True, kw_only=True):
    """A rule on a setting of a job in a stack.

    versions: releases that have it, all by default. example: KEY=VALUE of a job and a SPEC.
    """

    names: ClassVar[tuple[str, ...]] = ("setting", "job", "facts")

    versions: tuple[str, ...] = ()


Rules = Mapping[str, TorchRule]


def in_release(rules: Rules, version: str) -> Rules:
    """Those that a release has."""
    return {name: one for name, one in rules.items() if version in (one.versions or (version,))}


_CHECKPOINT: Final = "torch 2.13 utils/checkpoint.py"
_SEQUENTIAL: Final = f"{_CHECKPOINT} checkpoint_sequential"
_HOPPER: Final = 9
"""Major compute capability."""


def _without_mask(_: TorchSetting, job: Job, __: StackFacts) -> bool:
    masked = job.model.window_size is not None or job.model.attn_logit_softcapping is not None
    return masked or job.config.attn_implementation is AttnImplementation.EAGER


def over_ranks(_: TorchSetting, job: Job, __: StackFacts) -> bool:
    """Whether ranks share a sequence."""
    return job.layout.context_parallel_size > 1


CONTEXT_RULES: Final[Rules] = {
    "layout.cp_comm_type": TorchRule(
        summary="the framework must have the kind of context parallelism",
        given=over_ranks,
        when=lambda _, job, facts: job.layout.cp_comm_type not in facts.context_kinds,
        reason="{facts.framework} has no context parallelism by {job.layout.cp_comm_type}",
        fix="layout.cp_comm_type={facts.context_kinds[0]}",
        source="advisor",
        example="layout.context_parallel_size=2 layout.cp_comm_type=a2a+p2p "
        "layout.hierarchical_context_parallel_sizes=2,1",
    ),
    "layout.context_parallel_attention": TorchRule(
        given=over_ranks,
        when=_without_mask,
        reason="context parallelism applies no attention mask, so it supports no window, no score "
        "cap and no eager attention",
        fix="CP 1",
        source="DeepSpeed 0.19.8 ulysses_sp.py, torch 2.13 _context_parallel/_attention.py",
        example="layout.context_parallel_size=2 job.attn_implementation=eager",
    ),
    "layout.context_parallel_fsdp1": TorchRule(
        given=over_ranks,
        when=lambda _, job, __: job.config.flat_parameters,
        reason="context parallelism (Accelerate's parallelism_config) needs FSDP2, but "
        "job.flat_parameters means FSDP1",
        fix="leave job.flat_parameters out",
        source="accelerate 1.15.0 commands/launch.py",
        example="layout.context_parallel_size=2 job.flat_parameters=true",
    ),
}
"""Attention that does not run over context-parallel ranks, and groups that they do not share."""

LAYOUT_RULES: Final[Rules] = {
    "layout.data_parallel_only": TorchRule(
        when=lambda _, job, __: any(
            getattr(job.layout, name) not in (1, None) for name in DATA_PARALLEL_ONLY
        ),
        reason="only data and context parallelism are modelled",
        fix="use TP 1 and PP 1",
        source="advisor",
        # a remedy or a search may ask for other degrees
        example="layout.tensor_model_parallel_size=2",
    ),
    **CONTEXT_RULES,
}


def _unknown_policy(setting: TorchSetting, _: Job, facts: StackFacts) -> Match | None:
    if setting.policy is None or setting.policy in facts.policies:
        return None
    fix = f"use {either(facts.policies)}" if facts.policies else "use none"
    return Match(fix=fix, source=facts.source)


def _unknown_options(setting: TorchSetting, _: Job, facts: StackFacts) -> Iterator[Match]:
    fix = f"use {either(facts.options)}" if facts.options else "leave it out"
    unknown = (option for option in setting.options if option not in facts.options)
    return (Match(found=option, fix=fix, source=facts.source) for option in unknown)


def _unknown_graph(setting: TorchSetting, job: Job, _: StackFacts) -> str | None:
    if setting.budget is None:
        return None
    return unknown_operator(block_shape(job), job.model.layer_kinds)


SETTING_RULES: Final[Rules] = {
    "setting.unknown_to_framework": TorchRule(
        summary="the framework must have an option for the setting",
        when=lambda setting, _, facts: (
            setting.granularity not in facts.granularities
            and Match(fix=f"use {either(facts.granularities)}", source=facts.source)
        ),
        reason="{facts.framework} has no setting {setting.granularity}",
        example="sequential:2 uniform:2",
    ),
    "op.unknown_policy": TorchRule(
        summary="the framework must have the policy over operators",
        when=_unknown_policy,
        reason="{facts.framework} has no policy {setting.policy}",
        example="op:torchtitan op:save_attention op:save_matmul",
    ),
    "option.unknown_to_framework": TorchRule(
        summary="the framework must have the setting's option",
        when=_unknown_options,
        reason="{facts.framework} has no option {found}",
        example="full+offload full+profile full+partition_activations",
    ),
    "checkpoint.shared_keys": TorchRule(
        given=lambda setting, job, _: job.model.num_kv_shared_layers > 0 and setting != NONE,
        when=lambda setting, job, facts: (
            (setting, facts.framework, job.config.framework_version)
            != (FULL, Framework.HUGGINGFACE, facts.versions[-1])
        ),
        reason="layers that attend to another layer's keys are not modelled under this setting",
        fix="use none, or full with the newest release of --framework huggingface",
        source="transformers 5.23.0 models/gemma4/modeling_gemma4.py, shared_kv_states",
        example="model.transformer_impl=transformers model.global_kv_channels=128 "
        "model.num_kv_shared_layers=2 sequential:2",
    ),
    "optimizer_in_backward.accumulation": TorchRule(
        when=lambda _, job, __: job.config.optimizer_in_backward and job.num_microbatches > 1,
        reason="the optimizer steps in the backward of each microbatch, so gradients cannot "
        "accumulate",
        fix="use one microbatch per step, or leave job.optimizer_in_backward out",
        source="advisor",
        example="job.optimizer_in_backward=true job.global_batch_size=128",
    ),
    "attn_implementation.flash_attention_3": TorchRule(
        summary="FlashAttention-3 needs a Hopper GPU",
        given=lambda _, job, __: (
            job.config.attn_implementation is AttnImplementation.FLASH_ATTENTION_3
        ),
        when=lambda _, job, __: int(job.gpu.cuda_capability) != _HOPPER,
        reason="FlashAttention-3 needs a Hopper GPU; {job.gpu.name} does not qualify",
        fix="job.attn_implementation=sdpa",
        source="Dao-AILab/flash-attention README.md, FlashAttention-3: H100 / H800 GPU",
        example="gpus=A100 job.attn_implementation=flash_attention_3",
    ),
    "checkpoint_sequential.segments": TorchRule(
        summary="checkpoint_sequential takes at most as many segments as there are blocks",
        when=lambda setting, job, _: (setting.segments or 0) > job.model.num_layers,
        reason="{setting.segments} segments of {job.model.num_layers} blocks: torch fails (range() "
        "arg 3 must not be zero)",
        fix="use at most {job.model.num_layers}",
        source=_SEQUENTIAL,
        example="sequential:33",
    ),
    "checkpoint_sequential.last_segment": TorchRule(
        when=lambda setting, _, __: setting.segments == 1,
        reason="one segment checkpoints nothing: the last segment is never checkpointed",
        fix="use at least 2",
        source=_SEQUENTIAL,
        example="sequential:1",
    ),
    "checkpoint.every_n_blocks": TorchRule(
        summary="a checkpoint of every n-th block needs n blocks",
        when=lambda setting, job, _: (setting.num_layers or 0) > job.model.num_layers,
        reason="the model has only {job.model.num_layers} blocks",
        fix="use at most {job.model.num_layers}",
        source="advisor",
        example="selective:33",
    ),
    "budget.unknown_graph": TorchRule(
        summary="a budget needs layers of which it is known what torch.compile does with them",
        when=_unknown_graph,
        reason="what torch.compile does with {found} is not modelled",
        fix="use full or an operator policy",
        source="advisor",
        example="model.activation=quick_geglu budget:0.5",
    ),
}
"""What torch itself refuses or what comes to nothing, whoever calls it."""
UNKNOWN: Final = (
    "setting.unknown_to_framework",
    "op.unknown_policy",
    "option.unknown_to_framework",
)
"""Of them, those whose example is a setting that the framework lacks."""


def _planned(setting: TorchSetting, job: Job, _: StackFacts) -> bool:
    return len(setting.blocks) == job.model.num_layers


def _other_number(setting: TorchSetting, job: Job, _: StackFacts) -> str:
    number = len(setting.blocks)
    if number in (0, job.model.num_layers):
        return ""
    return "1 block" if number == 1 else f"{number} blocks"


def _unknown_calls(_: TorchSetting, job: Job, __: StackFacts) -> Iterator[str]:
    """How blocks call their products and attention otherwise."""
    config = job.config
    calls = {
        "8-bit linear layers": config.precision.is_quantized,
        "DeepSpeed's tiled MLP": config.tiled_mlp,
        "attention that is not torch's own": (
            config.attn_implementation is not AttnImplementation.SDPA
        ),
        "autocast": job.num_gpus == 1 and config.weights_dtype is DType.FP32,
    }
    return (name for name, holds in calls.items() if holds)


def _unknown_names(setting: TorchSetting, job: Job, _: StackFacts) -> Iterator[dict[str, str]]:
    shape, kinds = block_shape(job), job.model.layer_kinds
    for kind in dict.fromkeys(kinds):
        known = decisions(transformer_layer(shape, kind))
        own = (one for one, its in zip(setting.blocks, kinds, strict=True) if its == kind)
        named = set(chain.from_iterable((*one.kept, *one.on_host) for one in own))
        for name in sorted(named - known.keys() - {INPUT}):
            yield {"name": name, "known": either(known)}


BLOCK_RULES: Final[Rules] = {
    "blocks.number": TorchRule(
        summary="a plan must have as many blocks as the model",
        when=_other_number,
        reason="the plan has {found}, but the model has {job.model.num_layers}",
        fix="use {job.model.num_layers}",
        source="advisor",
        example="blocks:1*loss",
    ),
    "blocks.calls": TorchRule(
        summary="a plan of blocks needs blocks that call torch's own products and attention",
        given=_planned,
        when=_unknown_calls,
        reason="with {found}, a plan of blocks cannot identify the operators of a block",
        fix="full, or a policy over operators",
        source=_CHECKPOINT,
        example="job.attn_implementation=eager blocks:32*full",
    ),
    "blocks.unknown": TorchRule(
        summary="a plan of blocks names operators whose output can be kept",
        given=_planned,
        when=_unknown_names,
        reason="blocks have no operator {name} whose output can be kept",
        fix="use {known}",
        source=_CHECKPOINT,
        example="blocks:32*loss",
    ),
    "blocks.on_host": TorchRule(
        given=lambda setting, job, facts: (
            _planned(setting, job, facts) and any(one.on_host for one in setting.blocks)
        ),
        when=lambda _, job, __: (
            job.config.torch_compile or job.layout.tensor_model_parallel_size > 1
        ),
        reason="only outputs of eager blocks without tensor parallelism can be offloaded to the "
        "host",
        fix="leave the ~ out",
        source=_CHECKPOINT,
        example="job.torch_compile=true blocks:32*input~",
    ),
}
"""What stands against a plan of blocks."""


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
