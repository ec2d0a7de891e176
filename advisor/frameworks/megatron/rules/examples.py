"""The example of a rule: settings that break it, the release that they break in, what is said."""

import re
from typing import Final

from advisor.base.rule import Finding
from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import MEGATRON_BRIDGE, MEGATRON_CORE, NEMO, Revision
from advisor.frameworks.megatron.revisions import releases as releases_of
from advisor.frameworks.megatron.rules import engine

_OF_EXAMPLE: Final = re.compile(r"\{raw\.(\w+)\}")  # a number in a rule's fix


def settings(text: str) -> RawSettings:
    """NAME=VALUE separated by spaces, a list by commas."""
    pairs = (word.partition("=")[::2] for word in text.split())
    return RawSettings(**{name: value_of(name, value) for name, value in pairs})


def value_of(name: str, text: str) -> object:
    """The value of a setting as an example spells it."""
    kind = SETTINGS[name].kind
    if kind is tuple:
        return tuple(re.findall(r"[^,]+", text))
    return {"true": True, "false": False}[text] if kind is bool else kind(text)


def broken_by(name: str, example: str = "") -> tuple[Revision, Finding]:
    """The newest release in which an example, the rule's own by default, breaks it, Megatron-LM's
    before the others', and what is found there."""
    raw = settings(example or engine.RULES[name].example)
    newest = (*MEGATRON_CORE[::-1], *MEGATRON_BRIDGE[::-1], *NEMO[::-1])
    return next((one, f) for one in newest for f in engine.find(raw, one) if f.rule == name)


def explained(name: str, example: str = "") -> dict[str, str]:
    """A rule as a known failure tells of a case: where, why, and what helps."""
    rule, (revision, found) = engine.RULES[name], broken_by(name, example)
    stated = [one for one in releases_of(revision.framework) if rule.stated_in(one)]
    cited = map(rule.cited, stated[::-1])
    return {
        "framework": revision.label.partition(" (")[0].rpartition(" ")[0],
        "versions": " - ".join(dict.fromkeys((stated[0].version, stated[-1].version))),
        "context": example or rule.example,
        "cause": f"{found.reason}." if example else rule.says,
        "fix": _OF_EXAMPLE.sub(r"\1", rule.fix) if _OF_EXAMPLE.search(rule.fix) else found.fix,
        "source": next((line for line in cited if line[-1].isdigit()), found.source),
    }
