"""Rules on keys with values, and the kinds of them that several frameworks have."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar

from advisor.base.rule import NOWHERE, Finding, Match, Rule, Verdict
from advisor.reading.read_configuration import Keys, as_whole_number, near, truth


class KeyRule(Rule[[Keys]], frozen=True, kw_only=True):
    """A rule on the keys of a configuration; several may find the same `fault`. at: it stands at
    the first that is given. lacks: a missing key; where it may be in a file, a note remains."""

    names: ClassVar[tuple[str, ...]] = ("keys",)

    fault: str
    at: tuple[str, ...]
    lacks: str = ""


def key_rule(
    at: str | Iterable[str],
    when: Callable[[Keys], object],
    reason: str = "",
    fix: str = "",
    **rest: Any,
) -> KeyRule:
    """A rule about a key, or several that mean the same; its fault is called by its last name."""
    keys = (at,) if isinstance(at, str) else tuple(at)
    rest.setdefault("fault", keys[0].rpartition(".")[2])
    return KeyRule(at=keys, when=when, reason=reason, fix=fix, **rest)


def key_findings(rules: Iterable[KeyRule], keys: Keys) -> Iterator[Finding]:
    """Every rule of `rules` that applies, in their order, where it stands."""
    for rule in rules:
        is_open = rule.lacks and "file" in keys.about and not keys.has(rule.lacks)
        for match in rule.matches(keys):
            yield Finding(
                rule=rule.fault,
                verdict=Verdict.NOTE if is_open else rule.verdict,
                reason=match.reason,
                fix=match.fix,
                source=match.source or str(rule.source),
                place=keys.where(*rule.at) if match.place == NOWHERE else match.place,
            )


def unknown_names(
    section: str,
    known: Collection[str],
    reason: str,
    *,
    cutoff: float = 0.75,
    otherwise: str = "drop it",
    also: Collection[str] = (),
    **rest: Any,
) -> KeyRule:
    """Names below a section that are none of `known`. reason: what follows the name. otherwise:
    what helps where none is near by `cutoff`; empty: nothing is said. also: names passed over."""

    def found(keys: Keys) -> Iterator[Match]:
        for name in keys.under(section):
            if name in known or name in also:
                continue
            if fix := did_you_mean(name, known, cutoff, otherwise):
                at = f"{section}.{name}" if section else name
                yield Match(fix=fix, found=name, place=keys.where(at))

    rest.setdefault("fault", "unknown_key")
    return key_rule(section, found, f"{{found}}: {reason}", "", **rest)


def illegal_values(
    at: str | Iterable[str], legal: Callable[[Any], bool], reason: str, fix: str, **rest: Any
) -> KeyRule:
    """Values that are given, known and not legal; texts: of `{key}`, its `{name}`, `{value}`."""
    every = (at,) if isinstance(at, str) else tuple(at)

    def found(keys: Keys) -> Iterator[Match]:
        for key in every:
            value = keys.get(key)
            if value is not None and not legal(value):
                what = {"key": key, "name": key.rpartition(".")[2], "value": value}
                yield Match(found=what, place=keys.where(key))

    rest.setdefault("fault", "wrong_type")
    return key_rule(every, found, reason, fix, **rest)


def no_choice(
    key: str,
    legal: Collection[str],
    *,
    fix: str = "",
    cutoff: float = 0.0,
    fold: Callable[[str], str] = str,
    also: Collection[str] = (),
    **rest: Any,
) -> KeyRule:
    """A value that is none of `legal`, as text after `fold`. fix: where none is near by `cutoff`
    (0: none is looked for), the first of `legal` by default. also: legal, not worth a word."""
    name, otherwise = key.rpartition(".")[2], fix or next(iter(legal))

    def found(keys: Keys) -> Match | None:
        value = keys.get(key)
        text = fold(str(value))
        if value is None or text in legal or text in also:
            return None
        return Match(fix=did_you_mean(text, legal, cutoff, otherwise), found=str(value))

    return key_rule(
        key, found, f"{name} = {{found}}: must be one of {', '.join(legal)}", "", **rest
    )


def did_you_mean(name: str, known: Collection[str], cutoff: float, otherwise: str) -> str:
    """The fix that names what is near by `cutoff`, or another one."""
    meant = near(name, known, cutoff) if cutoff else ""
    return f"did you mean {meant}?" if meant else otherwise


def is_boolean(value: Any) -> bool:
    """A boolean, or a word that frameworks take for one."""
    return truth(value) is not None


def is_section(value: Any) -> bool:
    """Keys and values."""
    return isinstance(value, Mapping)


def is_whole(value: Any) -> bool:
    """A whole number."""
    return as_whole_number(value) is not None


def is_count(value: Any) -> bool:
    """A whole number of at least one."""
    return (as_whole_number(value) or 0) >= 1
