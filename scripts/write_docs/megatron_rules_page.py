"""The page of Megatron's rules, `docs/megatron_rules.md`, written by ``python -m`` this module.

A rule is shown by its example: settings that break it, the release that they break in, and what
mends them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from advisor.base.rule import Finding, Verdict
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import MEGATRON_CORE, Revision
from advisor.frameworks.megatron.rules.engine import RULES
from advisor.frameworks.megatron.rules.examples import broken_by, settings, value_of
from advisor.frameworks.megatron.rules.fixes import MARK
from advisor.frameworks.megatron.rules.stated import Authority

PAGE: Final = Path("docs/megatron_rules.md")
_HEAD: Final = """\
# Rules of Megatron

This page shows each rule that this project knows of Megatron Core, Megatron-LM, Megatron Bridge and
NeMo: settings that break it, why they do in the newest release that has the rule, the settings
after the first way of the fix, and the line of the source. `python -m
scripts.write_docs.megatron_rules_page` writes it from `advisor/frameworks/megatron/rules`.
"""


class Example(Struct, frozen=True):
    """Settings before and after, each as NAME=VALUE and in the release that it is for; what is
    found of the former."""

    before: str
    breaks_in: Revision
    found: Finding
    after: str
    mended_in: Revision


def example_of(rule: str) -> Example:
    """In the newest release that the rule fires in; ValueError where it fires in none.

    What mends it is the first way of the rule's fix where that names options, else the example
    without its last option.
    """
    before = RULES[rule].example
    revision, found = broken_by(rule)
    way = found.change.split(", or ")[0]
    if "[" not in way:
        return Example(before, revision, found, before.rpartition(" ")[0], revision)
    raw, release = mended(settings(before), way, revision)
    after = " ".join(f"{name}={_spelled(value)}" for name, value in raw.given.items())
    return Example(before, revision, found, after, release)


def mended(raw: RawSettings, way: str, revision: Revision) -> tuple[RawSettings, Revision]:
    """`raw` after one way of a fix, and the release that it speaks of."""
    values = dict(raw.given)
    for mark in MARK.finditer(way):
        if mark["release"]:
            number = tuple(map(int, mark["release"].split(".")))
            revision = next(one for one in MEGATRON_CORE if one.number >= number)
        elif mark["value"]:
            values[mark["name"]] = value_of(mark["name"], mark["value"].replace(" ", ","))
        else:
            values.pop(mark["name"], None)
    return RawSettings(**values), revision


def _spelled(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def rules_page() -> str:
    """The page as Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    kinds = [f"{authority}: {verdict}" for authority in Authority for verdict in Verdict]
    by_kind = {kind: [name for name in RULES if _kind(name) == kind] for kind in kinds}
    for kind, names in by_kind.items():
        yield from (f"## {kind}", "") if names else ()
        for name in names:
            yield from (f"### {name}", "", *_section(name), "")


def _kind(name: str) -> str:
    return f"{RULES[name].authority}: {RULES[name].verdict}"


def _section(name: str) -> Iterator[str]:
    example = example_of(name)
    yield from (RULES[name].says, "")
    yield f"- before, {example.breaks_in.label}: `{example.before}`"
    yield f"- why: {example.found.reason}"
    yield f"- fix: {example.found.fix}"
    release = "" if example.mended_in is example.breaks_in else f", {example.mended_in.label}"
    yield f"- after{release}: {f'`{example.after}`' if example.after else 'nothing is set'}"
    yield f"- source: {example.found.source}"


if __name__ == "__main__":
    PAGE.write_text(rules_page(), encoding="utf-8")
