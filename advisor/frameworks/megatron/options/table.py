"""All options of Megatron, and what they are found by."""

import re
from collections.abc import Iterator
from functools import lru_cache
from inspect import get_annotations
from typing import Any, Final, NamedTuple

from advisor.frameworks.megatron.options.attention import Attention
from advisor.frameworks.megatron.options.communication import Communication
from advisor.frameworks.megatron.options.experts import Experts
from advisor.frameworks.megatron.options.graphs import CudaGraphs
from advisor.frameworks.megatron.options.harmless import ASIDE
from advisor.frameworks.megatron.options.hybrid import Hybrid
from advisor.frameworks.megatron.options.implementation import Dropout, Implementation, Loss
from advisor.frameworks.megatron.options.inference import Inference
from advisor.frameworks.megatron.options.model_shape import Shape
from advisor.frameworks.megatron.options.optimizer import DataParallel, OptimizerStep
from advisor.frameworks.megatron.options.option import (
    Default,
    Kind,
    Option,
    Options,
    Row,
    dashed,
    kind_of,
)
from advisor.frameworks.megatron.options.parallelism import Parallelism
from advisor.frameworks.megatron.options.precision import Precision
from advisor.frameworks.megatron.options.recompute import Recompute
from advisor.frameworks.megatron.options.training import Batch, Loop
from advisor.frameworks.option_status import Status


class Section(NamedTuple):
    """Rows of one subject; `bridge`: where Megatron Bridge keeps them, but for rows that say it."""

    rows: type[Options]
    title: str
    bridge: str = "model"


SECTIONS: Final = (
    Section(Parallelism, "Degrees of parallelism"),
    Section(Experts, "Experts"),
    Section(Attention, "Attention and multi-token prediction"),
    Section(Hybrid, "Mixers other than attention"),
    Section(Shape, "Shape of the model"),
    Section(Implementation, "Kernels and fusions"),
    Section(Dropout, "Dropout"),
    Section(Loss, "Loss"),
    Section(Precision, "Precision"),
    Section(Recompute, "Recompute and activation offload"),
    Section(CudaGraphs, "CUDA graphs"),
    Section(Communication, "Communication"),
    Section(OptimizerStep, "Optimizer", "optimizer"),
    Section(DataParallel, "Data parallelism", "ddp"),
    Section(Batch, "Batch", "train"),
    Section(Loop, "Training loop", "train"),
    Section(Inference, "Inference"),
)


def _release(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def _path(given: str | None, usual: str, name: str) -> str:
    """A path is given whole, or as the section that holds the name; the usual one by default."""
    section = usual if given is None else given
    if not section or name == section.rpartition(".")[2]:
        return section
    return f"{section}.{name}"


def _spelled(said: dict[str, Any], name: str, default: object) -> dict[str, str]:
    """The flag, and the one that switches off what is on by default."""
    on_by_default = default is True and "flag" not in said
    flag = said.get("flag", "" if on_by_default else dashed(name))
    return {"flag": flag, "off": said.get("off", dashed(f"no_{name}") if on_by_default else "")}


def _row(name: str, row: Row, annotation: object, section: Section) -> Option:
    said = dict(row.said)
    nemo = _path(said.pop("nemo", None), "model.config" if section.bridge == "model" else "", name)
    for key in ("since", "until", "renamed", "listed"):
        if key in said:
            said[key] = _release(said[key])
    older = said.pop("defaults", {})
    ours = said.pop("ours", "")
    return Option(
        **{
            **said,
            **_spelled(said, name, row.default),
            "name": name,
            "ours": f"{ours}.{name}" if ours and "." not in ours else ours,
            "kind": kind_of(annotation),
            "default": row.default,
            "defaults": tuple(Default(_release(text), value) for text, value in older.items()),
            "subject": section.title,
            "bridge": _path(said.get("bridge"), section.bridge, name),
            "nemo": nemo,
            "nemo_1": said.get("nemo_1", f"model.{name}" if nemo else ""),
        }
    )


def _rows(section: Section) -> Iterator[Option]:
    types = get_annotations(section.rows)
    for name, row in section.rows.option_rows.items():
        yield _row(name, row, types[name], section)


def _aside() -> list[Option]:
    return [
        Option(
            name=name,
            kind=Kind.TEXT,
            subject=subject,
            flag=dashed(name),
            status=Status.HARMLESS,
            note=subject,
        )
        for subject, names in ASIDE.items()
        for name in names.split()
    ]


_BY_SECTION: Final = {section.rows: tuple(_rows(section)) for section in SECTIONS}
SETTINGS: Final = {row.name: row for rows in _BY_SECTION.values() for row in rows}
"""Options that RawSettings has, by name."""


@lru_cache(maxsize=1)
def options() -> dict[str, Option]:
    """Every option that is known, by name."""
    return SETTINGS | {row.name: row for row in _aside()}


def rows_of(section: type[Options]) -> tuple[Option, ...]:
    """The rows of a section, in order."""
    return _BY_SECTION[section]


def _others_of(row: Option) -> Iterator[str]:
    """Names of one option in other releases and on the command line."""
    yield from (row.was, *row.also, row.nemo_1.removeprefix("model."))
    yield row.flag.removeprefix("--").replace("-", "_")


@lru_cache(maxsize=1)
def other_names() -> dict[str, Option]:
    """Options by names that are not their own: another release's, NeMo 1's, the command line's."""
    return {
        other: row
        for row in options().values()
        for other in _others_of(row)
        if other and other not in options()
    }


def option_of_field(name: str) -> Option | None:
    """The option behind a field of any release's configuration; None where none is known."""
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
    """The option behind a word of a command line; None where none is known.

    >>> option_of_flag("--fp8-format").name
    'fp8'
    """
    if not flag.startswith("--") or "_" in flag:
        return None
    return _off_flags().get(flag) or option_of_field(flag.removeprefix("--").replace("-", "_"))


@lru_cache(maxsize=1)
def known_spellings() -> tuple[str, ...]:
    """Every spelling on a command line that some release has."""
    own = {row.flag for row in options().values() if row.flag}
    return tuple(sorted(own.union(_off_flags(), map(dashed, other_names()))))
