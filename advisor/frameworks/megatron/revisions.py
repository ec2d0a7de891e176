"""What each release of megatron-core accepts, and which one belongs to a framework's version.

Both are read from configs/rules/megatron_releases.json, which says where they stand.
"""

import re
from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct, convert
from msgspec.structs import replace

from advisor.base.errors import UserError, either
from advisor.base.rule import rows_of
from advisor.frameworks.names import Framework
from advisor.frameworks.newer_releases import is_newer
from advisor.job.job import JobConfig


class CheckpointKind(StrEnum):
    """How a recompute module is replayed."""

    PLAIN = "plain"
    """An ordinary checkpoint: the module's output stays alive for whoever saved it."""
    OUTPUT_DISCARDING = "output_discarding"
    """CheckpointWithoutOutput: the output's storage is freed and written again in the backward."""


_FILE: Final = rows_of("megatron_releases.json")


def checkpoint_kind(module: str) -> CheckpointKind:
    """Kind of the checkpoint around `module`; the same in every release that has the module.

    Source: megatron-core 0.16.1 and 0.19.2 transformer_layer.py, attention.py, moe/*.py.
    """
    discards = module in _FILE["output_discarding"]
    return CheckpointKind.OUTPUT_DISCARDING if discards else CheckpointKind.PLAIN


# Compared by identity: each revision is one object, and caches keyed by it stay cheap.
class Revision(Struct, frozen=True, kw_only=True, eq=False):
    """One release: what its configuration accepts and how it spells it.

    version: the framework's own (megatron-core's for Megatron-LM). core: the release of
    megatron-core, `read_at` the patch whose source the line numbers refer to. cuda_graph_impls is
    empty where the field does not exist yet (enable_cuda_graph and external_cuda_graph then), and
    so are recompute_modules (0.11: selective is core attention) and offload_modules.
    uniform_must_divide: `uniform` crashes unless N divides the layers of a model chunk.
    transformer_engine: the newest release of it that the requirements admit.
    """

    framework: Framework
    version: str
    core: str
    read_at: str
    number: tuple[int, int]
    recompute_modules: tuple[str, ...]
    offload_modules: tuple[str, ...] = ()
    cuda_graph_impls: tuple[str, ...] = ()
    cuda_graph_modules: tuple[str, ...] = ()
    cuda_graph_field: str = "cuda_graph_scope"
    uniform_must_divide: bool = False
    transformer_engine: str

    @property
    def splits_by_text(self) -> bool:
        """Whether it reads pipeline_model_parallel_layout (transformer_config.py of the wheels:
        not in 0.12.3, in 0.13.1)."""
        return self.at_least(0, 13)

    @property
    def splits_unevenly(self) -> bool:
        """Whether its options say how many layers which stage gets: in NeMo 1's YAML none does."""
        return self.framework != Framework.NEMO or self.version != "1"

    @property
    def refuses_engine_loss(self) -> bool:
        """Whether its command line refuses Transformer Engine's fused loss (arguments.py)."""
        return self.framework == Framework.MEGATRON_LM and self.at_least(0, 18)

    @property
    def label(self) -> str:
        """``megatron-core 0.19``, for reasons and headers."""
        if self.framework == Framework.MEGATRON_LM:
            return f"megatron-core {self.core}"
        return f"{_TITLES[self.framework]} {self.version} (megatron-core {self.core})"

    @property
    def promotions(self) -> tuple[str, ...]:
        """What the release runs beyond what is written, and what it makes of odd numbers."""
        said = ["selective with recompute_modules unset means core_attn"]
        if self.at_least(0, 12):
            said.append("moe_layer_recompute means selective with moe added to the list")
        if self.uniform_must_divide:
            said.append("uniform N crashes unless N divides the layers of the chunk")
        else:
            said.append("uniform N may have a shorter last group")
        return (*said, "block N above the chunk's layers means the whole chunk")

    def at_least(self, major: int, minor: int) -> bool:
        """Whether the megatron-core release is this one or newer."""
        return self.number >= (major, minor)


def _of_core() -> Iterator[Revision]:
    """What a row does not say is as in the release before."""
    said: dict[str, Any] = {"framework": Framework.MEGATRON_LM}
    for row in _FILE["megatron_core"]:
        said = {**said, **row, "core": row["version"]}
        yield convert(said, Revision)


MEGATRON_CORE: Final = tuple(_of_core())
"""Releases of megatron-core, oldest first."""

_TITLES: Final = {Framework.MEGATRON_BRIDGE: "Megatron Bridge", Framework.NEMO: "NeMo"}


def _built_on(framework: Framework) -> tuple[Revision, ...]:
    """Releases of a framework, by the megatron-core that each has."""
    by_core = {revision.core: revision for revision in MEGATRON_CORE}
    return tuple(
        replace(by_core[core], framework=framework, version=version)
        for version, core in _FILE[framework].items()
    )


MEGATRON_BRIDGE: Final = _built_on(Framework.MEGATRON_BRIDGE)
"""Releases of Megatron Bridge, oldest first, with the megatron-core that each pins."""

NEMO: Final = _built_on(Framework.NEMO)
"""NeMo 1 and NeMo 2, neither of which pins a megatron-core."""

_RELEASES: Final[dict[str, tuple[Revision, ...]]] = {
    Framework.MEGATRON_LM: MEGATRON_CORE,
    Framework.MEGATRON_BRIDGE: MEGATRON_BRIDGE,
    Framework.NEMO: NEMO,
}
_NEWEST: Final[dict[str, str]] = {
    Framework.MEGATRON_LM: "0.19",
    Framework.MEGATRON_BRIDGE: "0.6",
    Framework.NEMO: "2",
}
"""The version that is meant where none is given."""
_VERSION: Final = re.compile(r"(?:core[_-])?[vr]?(\d+)\.(\d+)(?:\.\d+)?(?:(?:\.?dev|rc|a|b)\d*)?")


def releases(framework: str) -> tuple[Revision, ...]:
    """Every release of `framework` that is known, oldest first; UserError for one that does not
    build on Megatron Core."""
    if framework not in _RELEASES:
        reason = "does not build on Megatron Core"
        raise UserError("job.framework", framework, reason, f"use {either(_RELEASES)}")
    return _RELEASES[framework]


@lru_cache(maxsize=256)
def resolve_revision(framework: str, version_text: str = "") -> Revision:
    """The revision that `version_text` means; empty means the newest release, of Megatron-LM where
    no framework is named.

    Reads ``0.16``, ``0.16.1``, ``core_v0.16.1``, ``v0.6.0`` and ``main``; of NeMo ``2`` or ``2.5``.
    One that is newer than all in the table means the newest of it. Raises UserError on any other
    that is not there, naming those that are.
    """
    framework = framework or Framework.MEGATRON_LM
    known = releases(framework)
    text = version_text.strip().lower() or _NEWEST[framework]
    match = _VERSION.fullmatch(text)
    name = f"{int(match.group(1))}.{int(match.group(2))}" if match else text
    if framework == Framework.MEGATRON_LM and name == "0.20":
        name = "main"
    if framework == Framework.NEMO:  # one scheme of keys for 1.x, another for 2.x
        name = name.removeprefix("v").partition(".")[0]
    for revision in known:
        if revision.version == name:
            return revision
    whole = match or framework == Framework.NEMO  # 16 alone is a slip for 0.16
    if whole and is_newer(text, (revision.version for revision in known)):
        return known[-1]
    fix = f"use {either(revision.version for revision in known)}"
    raise UserError(
        "--framework-version", version_text, f"is not a known version of {framework}", fix
    )


FIRST_WITH_MUON: Final = (0, 16)
"""The release of megatron-core that has optimizer/muon.py."""


def revision_of(framework: str, config: JobConfig) -> Revision:
    """The job's release of its own framework; the newest one of another framework."""
    own = (config.framework or Framework.MEGATRON_LM) == framework
    return resolve_revision(framework, config.framework_version if own else "")


class MegatronPart:
    """A part of Megatron-LM, Bridge or NeMo, which share the releases of megatron-core."""

    def __init__(self, framework: Framework) -> None:
        self.framework = framework

    def revision(self, config: JobConfig) -> Revision:
        """The release of a job with such options."""
        return revision_of(self.framework, config)


def known_recompute_modules() -> tuple[str, ...]:
    """Every label that some release accepts."""
    return MEGATRON_CORE[-1].recompute_modules
