"""What the PyTorch stacks refuse or what comes to nothing, each with its source.

Texts and sources are rows of configs/rules/torch.json. A stack's tables are those of this module
with its own after them. A layout that it does not have is refused first: rules on settings assume
one that it has.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import ClassVar, Final

from advisor.base.dtypes import DType
from advisor.base.errors import either
from advisor.base.rule import Match, Rule, rows_of, rules_of, with_sides
from advisor.frameworks.names import Framework
from advisor.frameworks.torch.block_regimes import INPUT, decisions
from advisor.frameworks.torch.budget import unknown_operator
from advisor.frameworks.torch.setting import ALL_TO_HOST, FULL, NONE, TorchSetting
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
Condition = Callable[[TorchSetting, Job, StackFacts], object]


def stated(table: str, whens: Mapping[str, Condition] | None = None) -> dict[str, TorchRule]:
    """The rules of a table of configs/rules/torch.json with their conditions."""
    rows = rows_of("torch.json")[table]
    return rules_of(TorchRule, rows, whens or {}, partial(with_sides, TorchRule))


def in_release(rules: Rules, version: str) -> Rules:
    """Those that a release has."""
    return {name: one for name, one in rules.items() if version in (one.versions or (version,))}


CONTEXT_RULES: Final = stated(
    "context",
    {
        "layout.cp_comm_type": lambda _, job, facts: (
            job.layout.cp_comm_type not in facts.context_kinds
        )
    },
)
"""Attention that does not run over context-parallel ranks, and groups that they do not share."""

LAYOUT_RULES: Final[Rules] = {  # a remedy or a search may ask for other degrees
    **stated(
        "layout",
        {
            "layout.data_parallel_only": lambda _, job, __: any(
                getattr(job.layout, name) not in (1, None) for name in DATA_PARALLEL_ONLY
            )
        },
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
    known = () if setting == ALL_TO_HOST and not facts.offloads_all else facts.options
    unknown = (option for option in setting.options if option not in known)
    return (Match(found=option, fix=fix, source=facts.source) for option in unknown)


def _unknown_graph(setting: TorchSetting, job: Job, _: StackFacts) -> str | None:
    if setting.budget is None:
        return None
    return unknown_operator(block_shape(job), job.model.layer_kinds)


SETTING_RULES: Final[Rules] = stated(
    "setting",
    {
        "setting.unknown_to_framework": lambda setting, _, facts: (
            setting.granularity not in facts.granularities
            and Match(fix=f"use {either(facts.granularities)}", source=facts.source)
        ),
        "op.unknown_policy": _unknown_policy,
        "option.unknown_to_framework": _unknown_options,
        "checkpoint.shared_keys": lambda setting, job, facts: (
            job.model.num_kv_shared_layers > 0
            and setting != NONE
            and (setting, facts.framework, job.config.framework_version)
            != (FULL, Framework.HUGGINGFACE, facts.versions[-1])
        ),
        "checkpoint_sequential.segments": lambda setting, job, _: (
            (setting.segments or 0) > job.model.num_layers
        ),
        "checkpoint.every_n_blocks": lambda setting, job, _: (
            (setting.num_layers or 0) > job.model.num_layers
        ),
        "budget.unknown_graph": _unknown_graph,
    },
)
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
        "frozen weights and adapters": not config.tuning.trains_all,
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


BLOCK_RULES: Final[Rules] = stated(
    "blocks",
    {
        "blocks.number": _other_number,
        "blocks.calls": lambda setting, job, facts: (
            _planned(setting, job, facts) and _unknown_calls(setting, job, facts)
        ),
        "blocks.unknown": lambda setting, job, facts: (
            _planned(setting, job, facts) and _unknown_names(setting, job, facts)
        ),
        "blocks.on_host": lambda setting, job, facts: (
            _planned(setting, job, facts)
            and any(one.on_host for one in setting.blocks)
            and (job.config.torch_compile or job.layout.tensor_model_parallel_size > 1)
        ),
    },
)
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
