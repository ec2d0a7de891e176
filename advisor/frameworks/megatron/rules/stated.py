"""What a rule of Megatron looks at, whose it is, and where it stands in the releases.

A rule is a row of a table of configs/rules/megatron.json, in the order in which Megatron checks.
The modules next to this one have its condition by its id, where that is code.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, Final

from msgspec import Struct

from advisor.base import rule
from advisor.base.errors import nearest_names
from advisor.base.rule import rows_of, rules_of
from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import Revision, releases
from advisor.frameworks.option import number


class Authority(StrEnum):
    """Whose rule it is."""

    CONFIG = "TransformerConfig"
    LAUNCHER = "Megatron-LM arguments"
    BRIDGE = "Megatron Bridge"
    NEMO = "NeMo"
    TRAINING = "training step"


class Lines(Struct, frozen=True):
    """Where the condition or the raise stands in the wheels of consecutive releases.

    numbers: one line a release, the last that of 0.19; 0 where the release lacks the rule, none
    at all where the lines were not looked up. Releases before and after those that were looked up
    are like the first and the last of them.
    """

    file: str
    numbers: tuple[int, ...]

    def stated_in(self, revision: Revision) -> bool:
        """Whether the release has the rule."""
        column = min(max(self._column(revision), 0), len(self.numbers) - 1)
        return not self.numbers or self.numbers[column] > 0

    def cited(self, revision: Revision) -> str:
        """``megatron-core 0.19.2 transformer_config.py:1733``; without the line where it was not
        looked up."""
        if revision.core == "main":
            return f"Megatron-LM main d98e8a6 {self.file}"
        column = self._column(revision)
        line = self.numbers[column] if 0 <= column < len(self.numbers) else 0
        return f"megatron-core {revision.read_at} {self.file}" + (f":{line}" if line else "")

    def _column(self, revision: Revision) -> int:
        return revision.number[1] - (20 - len(self.numbers))


class Rule(rule.Rule[[RawSettings, Revision]], frozen=True, kw_only=True):
    """A rule on Megatron's settings in a release. fix: as `fixes` reads it. example: NAME=VALUE,
    a list separated by commas."""

    names: ClassVar[tuple[str, ...]] = ("raw", "revision")

    source: Lines | str = ""
    authority: str = Authority.CONFIG

    def stated_in(self, revision: Revision) -> bool:
        """Whether the release has the rule."""
        stated = isinstance(self.source, str) or self.source.stated_in(revision)
        return stated and revision.at_least(*self.since)

    def cited(self, revision: Revision) -> str:
        """Where the rule stands in the release."""
        return self.source if isinstance(self.source, str) else self.source.cited(revision)


def marked(name: str, *values: str) -> str:
    """The change of an option, as `fixes` reads it; without values back to its default."""
    return f"[{name}={' '.join(values)}]" if values else f"[{name}]"


def names(modules: Sequence[str]) -> str:
    """Modules as a sentence lists them."""
    return ", ".join(modules)


_SIDE: Final = re.compile(r"([\w.]+)(?:(=|!=|>=|>|<=|:)(.+))?")
_SIGNS: Final = {"=": " = ", "!=": " other than ", ">": " > ", "<=": " <= "}


def stated(table: str, **whens: Callable[[RawSettings, Revision], object]) -> dict[str, Rule]:
    """The rules of a table of configs/rules/megatron.json, with those conditions that are code.

    The others are data: the sides that hold `when` a rule applies, or the two sides of a `clash`,
    which cannot be combined; `given`: those that hold next to a condition or a clash. A side is
    ``name`` where it is set, ``name=value|value``, ``name!=value``, ``name>1``, ``name<=1``,
    ``name:value`` where its list has the value, ``not side``, or ``side or side``; a name is an
    attribute of the settings, of their ``graphs.`` or of the ``revision.``. ``release=0.14|0.15``
    and ``release>=0.16`` are about megatron-core. source: where it was read, or a file and its line
    in each release.
    """
    return rules_of(Rule, rows_of("megatron.json")[table], whens, fields)


def fields(row: dict[str, Any]) -> dict[str, Any]:
    """What a row says, as a rule takes it."""
    if "clash" in row:
        row = _clash(*row.pop("clash")) | row
    for name in row.keys() & {"when", "given"}:
        row[name] = _condition(row[name])
    if not isinstance(row["source"], str):
        row["source"] = Lines(row["source"][0], tuple(row["source"][1:]))
    return row | {"authority": Authority(row.get("authority", Authority.CONFIG))}


def _clash(one: str, other: str) -> dict[str, Any]:
    """That two settings cannot be combined; the example is such settings."""
    return {
        "summary": f"{_in_words(one)} cannot be combined with {_in_words(other)}.",
        "when": (one, other),
        "reason": f"{_with_value(one)} cannot be combined with {_with_value(other)}",
        "example": " ".join(filter(None, (_example(one), _example(other)))),
    }


def _condition(sides: Iterable[str]) -> Callable[[RawSettings, Revision], bool]:
    first, *others = map(holds, sides)
    return lambda *given: first(*given) and all(one(*given) for one in others)


@cache
def holds(side: str) -> Callable[[RawSettings, Revision], bool]:
    """Whether settings have a side in a release, as `stated` reads it."""
    if " or " in side:
        either = [*map(holds, side.split(" or "))]
        return lambda *given: any(one(*given) for one in either)
    if side.startswith("not "):
        other = holds(side[4:])
        return lambda *given: not other(*given)
    name, sign, text = _parts(side)
    if name == "release":
        named = [*map(number, text.split("|"))]
        if sign == "=":
            return lambda _, revision: revision.number in named
        return lambda _, revision: revision.number >= named[0]
    value = _getter(name)
    if not sign:
        return lambda *given: str(value(*given)) not in ("None", "False", "()")
    if sign == ":":
        return lambda *given: text in (value(*given) or ())
    if sign in (">", "<="):
        return lambda *given: ((value(*given) or 0) > int(text)) == (sign == ">")
    values = text.split("|")
    return lambda *given: (str(value(*given)) in values) == (sign == "=")


def _getter(name: str) -> Callable[[RawSettings, Revision], Any]:
    part, _, field = name.rpartition(".")
    if part == "graphs":
        return lambda raw, revision: getattr(graphs_of(raw, revision), field)
    if part == "revision":
        return lambda _, revision: getattr(revision, field)
    return lambda raw, _: getattr(raw, field)


def _parts(side: str) -> tuple[str, str, str]:
    found = _SIDE.fullmatch(side)
    assert found is not None, side
    return found[1], found[2] or "", found[3] or ""


def _example(side: str) -> str:
    """What holds of it; empty where its default does."""
    name, sign, text = _parts(side)
    values = {"": "true", "=": text.partition("|")[0], ">": "2"}
    return f"{name}={values[sign]}" if sign in values else ""


def _in_words(side: str) -> str:
    name, sign, text = _parts(side)
    return f"{name}{_SIGNS[sign]}{text.replace('|', ' or ')}" if sign else name


def _with_value(side: str) -> str:
    name = _parts(side)[0]
    return name if SETTINGS[name].kind is bool else f"{name} = {{raw.{name}}}"


INSIDE_MOE: Final = ("moe_act", "expert_fc1", "fused_group_mlp")
"""What of offload_modules lies in the experts."""


def lists(raw: RawSettings, module: str) -> bool:
    """Whether selective recompute has `module` in a list that somebody wrote."""
    return raw.selective and raw.recompute_modules is not None and module in raw.recompute_modules


def selects(raw: RawSettings, module: str) -> bool:
    """Whether selective recompute has `module` in its list, the promoted one included."""
    return raw.selective and module in raw.effective_modules


def replayed(raw: RawSettings, *modules: str) -> list[str]:
    """Those of `modules` that recompute replays after all of Megatron's promotions."""
    return [module for module in modules if module in raw.recomputed_modules]


def offloaded(raw: RawSettings, *modules: str) -> list[str]:
    """Those of `modules` that are in offload_modules, whether anything reads it or not."""
    return [module for module in modules if module in raw.offload_modules]


class Unknown(Struct, frozen=True):
    """Names that are not accepted, printed with commas. known: those that are; instead: what to
    write for the first of them, if it is no near name. has_others: known ones were given, too."""

    names: tuple[str, ...]
    known: Sequence[str] = ()
    instead: str = ""
    has_others: bool = False

    def __str__(self) -> str:
        return ", ".join(self.names)

    @property
    def first(self) -> str:
        """The name that the advice is about."""
        return self.names[0]

    @property
    def advice(self) -> str:
        """What to write for the first name: looked for late, as that takes a while."""
        advice = self.instead or nearest_names(self.first, self.known)
        far = self.has_others and advice.startswith("use ")
        return f"drop {self}, or {advice}" if far else advice


def unknown(wanted: Iterable[str | None], known: Sequence[str]) -> Unknown | None:
    """The names in `wanted` that are not in `known`; None stands for an option that is not set."""
    given = [name for name in wanted if name is not None]
    names = tuple(name for name in given if name not in known)
    return Unknown(names, known, has_others=len(names) < len(given)) if names else None


def unknown_to(revision: Revision, field: str, wanted: Iterable[str]) -> Unknown | None:
    """The names in `wanted` that a field of the release has not; where other versions have the
    first of them, these are the advice."""
    found = unknown(wanted, getattr(revision, field))
    if found is None:
        return None
    others = releases(revision.framework)
    versions = [other.version for other in others if found.first in getattr(other, field)]
    if not versions:
        return found
    instead = f"{found.first} needs --framework-version {' or '.join(versions)}"
    return Unknown(found.names, instead=instead)
