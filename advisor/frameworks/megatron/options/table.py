"""All options of Megatron, and what they are found by."""

import re
from functools import lru_cache
from typing import Final

from msgspec import Struct

from advisor.frameworks.megatron.options.attention import Attention, Hybrid, Shape
from advisor.frameworks.megatron.options.experts import Experts
from advisor.frameworks.megatron.options.harmless import ASIDE
from advisor.frameworks.megatron.options.implementation import (
    Batch,
    Dropout,
    Implementation,
    Inference,
    Loop,
    Loss,
    Precision,
)
from advisor.frameworks.megatron.options.optimizer import Adapters, DataParallel, OptimizerStep
from advisor.frameworks.megatron.options.parallelism import Communication, Parallelism
from advisor.frameworks.megatron.options.recompute import CudaGraphs, Recompute
from advisor.frameworks.option import Option, Options, Status, dashed, keys
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
from advisor.job.tuning import Tuning
from advisor.models.spec import ModelSpec


class AllOptions(
    Parallelism,
    Experts,
    Attention,
    Hybrid,
    Shape,
    Implementation,
    Dropout,
    Loss,
    Precision,
    Recompute,
    CudaGraphs,
    Communication,
    OptimizerStep,
    DataParallel,
    Adapters,
    Batch,
    Loop,
    Inference,
):
    """Every option as an attribute with its default."""


SECTIONS: Final[tuple[type[Options], ...]] = AllOptions.__bases__
SETTINGS: Final = {row.name: row for section in SECTIONS for row in section.rows}
"""Options that RawSettings has, by name."""


PARTS: Final[dict[str, type[Struct]]] = {
    "model": ModelSpec,
    "layout": ParallelLayout,
    "job": JobConfig,
    "tuning": Tuning,
}
"""What options mean fields of, by the first word of `ours`."""


@lru_cache(maxsize=1)
def options() -> dict[str, Option]:
    """Every option that is known, by name."""
    return SETTINGS | {row.name: row for row in keys(Status.HARMLESS, "", ASIDE, str)}


@lru_cache(maxsize=1)
def other_names() -> dict[str, Option]:
    """Options by names that are not their own: another release's, NeMo 1's, the command line's."""
    found = {}
    for row in options().values():
        flag, nemo_1 = row.flag.removeprefix("--"), row.nemo_1.removeprefix("model.")
        for other in (row.was, *row.also, nemo_1, flag.replace("-", "_")):
            if other and other not in options():
                found[other] = row
    return found


def option_of_field(name: str) -> Option | None:
    """The option of a field of any release's configuration; None where none is known."""
    return options().get(name) or other_names().get(name)


@lru_cache(maxsize=1)
def _off_flags() -> dict[str, Option]:
    """Flags that switch off: --no-X, which Megatron-LM also takes as --disable-X."""
    off = {row.off: row for row in options().values() if row.off}
    return {re.sub("^--no-", "--disable-", flag): row for flag, row in off.items()} | off


def switches_off(flag: str) -> bool:
    """Whether a word of a command line is a switch whose presence is a False."""
    return flag in _off_flags()


def option_of_flag(flag: str) -> Option | None:
    """The option of a word of a command line; None where none is known. ASIDE ones may be negated.

    >>> option_of_flag("--fp8-format").name
    'fp8'
    """
    if not flag.startswith("--") or "_" in flag.replace(
        "opt_param", ""
    ):  # which Megatron-LM has so
        return None
    name = flag.removeprefix("--").replace("-", "_")
    other = {re.sub("^(no|disable)_", "", name), re.sub("^disable_", "no_", name)} - SETTINGS.keys()
    found = _off_flags().get(flag) or option_of_field(name)
    return found or options().get(min(other & options().keys(), default=""))


@lru_cache(maxsize=1)
def known_spellings() -> tuple[str, ...]:
    """Every spelling on a command line that some release has."""
    own = {row.flag for row in options().values() if row.flag}
    return tuple(sorted(own.union(_off_flags(), map(dashed, other_names()))))
