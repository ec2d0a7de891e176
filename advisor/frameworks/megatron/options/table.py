"""All options of Megatron, and what they are found by: sections of configs/options/megatron.json.

A section has `rows` of options that are modelled or that rules read, and `others` by their status
and by what is to be said of them. A row has the fields of `Option`, and of `Emitted` where it
differs from the form that it names; what follows from the name is left out. `ours` may be the part
of a job where the field has its name. What a job says is a path in the job, sides of it with "and"
between them (see `rule.refusals`), a function of `values`, or [a function that makes one, what it
is given]. Sides next to a field are those without which Megatron-LM's arguments.py refuses it.
--bf16 alone reduces gradients in fp32, --fp16 alone does not. Muon's needs are emitted apart
(muon_overrides). Chunks go by their number where an uneven split has no text.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from math import inf
from operator import attrgetter
from typing import Any, Final, NamedTuple

from msgspec import Struct

from advisor.base.rule import all_of
from advisor.frameworks.megatron.options import values
from advisor.frameworks.megatron.options.harmless import ASIDE
from advisor.frameworks.option import (
    Emitted,
    Format,
    Option,
    Status,
    When,
    dashed,
    keys,
    number,
    options_file,
)
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
from advisor.job.tuning import Tuning
from advisor.models.spec import ModelSpec

_FILE: Final = options_file("megatron")
_KINDS: Final = {kind.__name__: kind for kind in (bool, int, float, str, tuple, object)}


class Section(NamedTuple):
    """Options of one subject, in the order in which they are emitted."""

    title: str
    rows: tuple[Option, ...]


def _code(said: str | list[Any]) -> Any:
    if isinstance(said, list):
        return getattr(values, said[0])(said[1])
    if "." not in said:
        return getattr(values, said)
    if re.search("[ =]", said):
        holds = all_of(("model", "layout", "config"), said.split(" and "))
        return lambda job, *_: holds(job.model, job.layout, job.config)
    path = attrgetter(said)
    return lambda job, *_: path(job)


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("value", "means", "recipe_value", "only_if"), _code),
    **dict.fromkeys(("line", "recipe"), lambda said: When(**_read(said))),
    **dict.fromkeys(("since", "until", "renamed"), number),
    "format": Format,
    "status": Status,
}


def _read(said: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: tuple(v) if isinstance(v, list) else v for name, v in said.items()}
    return plain | {name: _READERS[name](said[name]) for name in said.keys() & _READERS.keys()}


def _option(name: str, said: Mapping[str, Any]) -> Option:
    """An option by its row; a default without a kind is of its kind."""
    form = _FILE["emitted"].get(said.get("emitted"), {})
    fields = _read({**form, **said, "name": name})
    kind = _KINDS[fields.pop("kind", type(fields.get("default")).__name__)]
    if kind is float and fields.get("default") == "inf":  # which JSON has no number for
        fields["default"] = inf
    if "." not in (part := fields.get("ours", ".")):
        fields["ours"] = f"{part}.{name}"
    spelled = {key: fields.pop(key) for key in Emitted.__struct_fields__ if key in fields}
    return Option(**fields | {"kind": kind, "emitted": Emitted(**spelled)})


def _rows(said: Mapping[str, Any]) -> Iterator[Option]:
    home = {"home": said.get("home", "model")}
    for name, row in said["rows"].items():
        yield _option(name, home | row)
    for status, notes in said.get("others", {}).items():
        for note, options in notes.items():
            for name, row in options.items():
                yield _option(name, {**home, "status": status, "note": note, **row})


SECTIONS: Final = {
    name: Section(said["title"], tuple(_rows(said))) for name, said in _FILE["sections"].items()
}
"""By name."""
SETTINGS: Final = {row.name: row for section in SECTIONS.values() for row in section.rows}
"""Options that RawSettings has, by name."""


def sections(names: str) -> tuple[Section, ...]:
    """Those of these names; KeyError for another one."""
    return tuple(SECTIONS[name] for name in names.split())


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
