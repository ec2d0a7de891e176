"""What several frameworks check: names that are not known, and values that are not legal."""

from collections.abc import Callable, Collection, Iterator
from typing import Any

from advisor.base.rule import Finding, Verdict
from advisor.reading.document_keys import Keys, near, truth


def unknown_names(
    keys: Keys,
    section: str,
    known: Collection[str],
    reason: str,
    source: str,
    *,
    rule: str = "unknown_key",
    verdict: Verdict = Verdict.REFUSED,
    cutoff: float = 0.75,
    otherwise: str = "drop it",
    also: Collection[str] = (),
) -> Iterator[Finding]:
    """Names below a section, at the top where it is empty, that are none of `known`.

    reason: what follows the name. otherwise: what helps where no name is near by `cutoff`; where it
    is empty only what is near is said. also: names that are passed over, and not suggested.
    """
    for name in keys.under(section):
        if name in known or name in also:
            continue
        meant = near(name, known, cutoff)
        fix = f"did you mean {meant}?" if meant else otherwise
        if fix:
            at = f"{section}.{name}" if section else name
            yield keys.finding(verdict, rule, f"{name}: {reason}", fix, source, at)


def illegal_values(
    keys: Keys,
    at: Collection[str],
    legal: Callable[[Any], bool],
    reason: str,
    fix: str,
    source: str,
    rule: str = "wrong_type",
) -> Iterator[Finding]:
    """Values that are given, known and not legal; reason: of `{key}`, its `{name}`, `{value}`."""
    for key in at:
        name, value = key.rpartition(".")[2], keys.get(key)
        if value is not None and not legal(value):
            text = reason.format(key=key, name=name, value=value)
            yield keys.error(rule, text, fix, source, key)


def no_choice(
    keys: Keys,
    key: str,
    legal: Collection[str],
    source: str,
    *,
    rule: str = "",
    fix: str = "",
    cutoff: float = 0.0,
    fold: Callable[[str], str] = str,
    also: Collection[str] = (),
) -> Iterator[Finding]:
    """A value that is none of `legal`, as text after `fold`.

    fix: where none is near by `cutoff` (0: none is looked for), the first of `legal` by default.
    also: legal, and not worth a word. rule: the last name of the key by default.
    """
    name, value = key.rpartition(".")[2], keys.get(key)
    text = fold(str(value))
    if value is None or text in legal or text in also:
        return
    meant = near(text, legal, cutoff) if cutoff else ""
    fix = f"did you mean {meant}?" if meant else fix or next(iter(legal))
    reason = f"{name} = {value}: must be one of {', '.join(legal)}"
    yield keys.error(rule or name, reason, fix, source, key)


def is_boolean(value: Any) -> bool:
    """A boolean, or a word that frameworks take for one."""
    return truth(value) is not None


def is_boolean_or_auto(value: Any) -> bool:
    """The same, or what a Trainer fills in."""
    return value == "auto" or is_boolean(value)
