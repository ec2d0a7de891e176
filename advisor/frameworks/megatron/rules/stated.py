"""What a rule of Megatron looks at, whose it is, and where it stands in the releases.

The modules next to this one have tables of rules by id, in the order in which Megatron checks them.
Adding a rule is adding one entry to one table.
"""

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache, partial
from typing import Any, ClassVar, Final

from msgspec import Struct

from advisor.base import rule
from advisor.base.rule import Verdict
from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision


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


def config(*lines: int) -> Lines:
    """Lines of transformer/transformer_config.py, usually in the wheels 0.13.1, 0.14.0, 0.15.3,
    0.16.1, 0.17.1, 0.18.2 and 0.19.2."""
    return Lines("transformer_config.py", lines)


def arguments(*lines: int) -> Lines:
    """Lines of megatron/training/arguments.py, which the wheels have from 0.17 on."""
    return Lines("training/arguments.py", lines)


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


argument = partial(Rule, authority=Authority.LAUNCHER)
"""What the command line refuses."""
crashes = partial(Rule, authority=Authority.TRAINING, verdict=Verdict.CRASHES)
hangs = partial(Rule, authority=Authority.TRAINING, verdict=Verdict.HANGS)
ignored = partial(Rule, authority=Authority.TRAINING, verdict=Verdict.NO_EFFECT)
noted = partial(Rule, authority=Authority.TRAINING, verdict=Verdict.NOTE)
replaced = partial(Rule, authority=Authority.TRAINING, verdict=Verdict.REPLACED)
"""What the training step makes of what nobody refuses."""


def marked(name: str, *values: str) -> str:
    """The change of an option, as `fixes` reads it; without values back to its default."""
    return f"[{name}={' '.join(values)}]" if values else f"[{name}]"


def names(modules: Sequence[str]) -> str:
    """Modules as a sentence lists them."""
    return ", ".join(modules)


_SIDE: Final = re.compile(r"(\w+)(?:(=|!=|>|<=)(.+))?")
_SIGNS: Final = {"=": " = ", "!=": " other than ", ">": " > ", "<=": " <= "}


def clash(one: str, other: str, fix: str, **rest: Any) -> Rule:
    """A rule that two settings cannot be combined: ``name`` where it is set, ``name=value|value``,
    ``name!=value``, ``name>1`` or ``name<=1``; the example is such settings, where `rest` has
    none."""
    first, second = holds(one), holds(other)
    rest.setdefault("example", " ".join(filter(None, (_example(one), _example(other)))))
    return Rule(
        summary=f"{_in_words(one)} cannot be combined with {_in_words(other)}.",
        when=lambda raw, _: first(raw) and second(raw),
        reason=f"{_with_value(one)} cannot be combined with {_with_value(other)}",
        fix=fix,
        **rest,
    )


def _parts(side: str) -> tuple[str, str, str]:
    found = _SIDE.fullmatch(side)
    assert found is not None, side
    return found[1], found[2] or "", found[3] or ""


@cache
def holds(side: str) -> Callable[[RawSettings], bool]:
    """Whether settings have one side of a clash."""
    name, sign, text = _parts(side)
    if not sign:
        return lambda raw: str(getattr(raw, name)) not in ("None", "False", "()")
    if sign in (">", "<="):
        return lambda raw: ((getattr(raw, name) or 0) > int(text)) == (sign == ">")
    return lambda raw: (getattr(raw, name) in text.split("|")) == (sign == "=")


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
