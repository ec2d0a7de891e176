"""Which jobs the PyTorch stacks run, and what differs between them."""

from collections.abc import Collection
from typing import Any

from msgspec import Struct

from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.base.units import either
from advisor.frameworks.framework_parts import JobSupport
from advisor.frameworks.option import Option
from advisor.frameworks.part_types import Degrees
from advisor.frameworks.torch.rules import configured, data_parallel_layout
from advisor.frameworks.torch.setting import Granularity, Modifier, OpPolicy
from advisor.job.job import JobConfig
from advisor.job.layout import DataParallelSharding, ParallelLayout
from advisor.models.options import CpCommType, TransformerImpl
from advisor.models.spec import ModelSpec


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

    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        """See rules.configured."""
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
