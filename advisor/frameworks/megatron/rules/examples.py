"""A rule's example: settings that break it, the release that they break in, what mends them."""

import re

from msgspec import Struct

from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import MEGATRON_BRIDGE, MEGATRON_CORE, NEMO, Revision
from advisor.frameworks.megatron.rules.engine import RULES, find
from advisor.frameworks.megatron.rules.fixes import MARK

REVISIONS = (*MEGATRON_CORE[::-1], *MEGATRON_BRIDGE[::-1], *NEMO[::-1])
"""Newest first, Megatron-LM's before the others'."""


class Example(Struct, frozen=True):
    """Settings before and after, each as NAME=VALUE and in the release that it is for."""

    before: str
    breaks_in: Revision
    after: str
    mended_in: Revision


def settings(text: str) -> RawSettings:
    """NAME=VALUE separated by spaces, a list by commas."""
    pairs = (word.partition("=")[::2] for word in text.split())
    return RawSettings(**{name: _value(name, value) for name, value in pairs})


def example_of(rule: str) -> Example:
    """In the newest release that the rule fires in; ValueError where it fires in none.

    What mends it is the first way of the rule's fix where that names options, else the example
    without its last option.
    """
    before = RULES[rule].example
    for revision in REVISIONS:
        change = next((f.change for f in find(settings(before), revision) if f.rule == rule), None)
        if change is not None:
            way = change.split(", or ")[0]
            if "[" not in way:
                return Example(before, revision, before.rpartition(" ")[0], revision)
            raw, release = mended(settings(before), way, revision)
            after = " ".join(f"{name}={_spelled(value)}" for name, value in raw.given.items())
            return Example(before, revision, after, release)
    raise ValueError(f"{rule}: nothing is refused by {before}")


def mended(raw: RawSettings, way: str, revision: Revision) -> tuple[RawSettings, Revision]:
    """`raw` after one way of a fix, and the release that it speaks of."""
    values = dict(raw.given)
    for mark in MARK.finditer(way):
        if mark["release"]:
            number = tuple(map(int, mark["release"].split(".")))
            revision = next(one for one in MEGATRON_CORE if one.number >= number)
        elif mark["value"]:
            values[mark["name"]] = _value(mark["name"], mark["value"].replace(" ", ","))
        else:
            values.pop(mark["name"], None)
    return RawSettings(**values), revision


def _spelled(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(name: str, text: str) -> object:
    kind = SETTINGS[name].kind
    if kind is tuple:
        return tuple(re.findall(r"[^,]+", text))
    return {"true": True, "false": False}[text] if kind is bool else kind(text)
