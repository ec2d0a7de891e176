"""The example of a rule: settings that break it, the release that they break in, what is said."""

import re

from advisor.base.rule import Finding
from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import MEGATRON_BRIDGE, MEGATRON_CORE, NEMO, Revision
from advisor.frameworks.megatron.rules.engine import RULES, find


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


def broken_by(rule: str, example: str = "") -> tuple[Revision, Finding]:
    """The newest release in which an example, the rule's own by default, breaks it, Megatron-LM's
    before the others', and what is found there."""
    raw = settings(example or RULES[rule].example)
    newest = (*MEGATRON_CORE[::-1], *MEGATRON_BRIDGE[::-1], *NEMO[::-1])
    return next((one, f) for one in newest for f in find(raw, one) if f.rule == rule)
