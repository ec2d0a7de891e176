"""A rule, whoever's: when it applies, what it says then, why it exists and where it was read.

A rule is data, kept under its id in a table, in the order in which the framework checks. Everything
that refuses, warns or remarks asks `findings`: the ranking, `advise lint`, jobs being configured,
the backends of harness. What a rule looks at is its type's parameter: `Rule[[Settings, Release]]`.

Texts are rows of a file of configs/rules, conditions code or sides. A file has tables, a table rows
by id, a row fields of its rule, and those of the row that it is `like`.
"""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cache, partial
from typing import Any, ClassVar, Final, Generic, ParamSpec, Protocol, Self, TypeVar

from msgspec import Struct, json

from advisor.base.configuration import packaged_configs
from advisor.base.errors import UserError
from advisor.base.place import Place

P = ParamSpec("P")


class Level(StrEnum):
    """How bad a finding is: nothing trains, something is for nothing, or it is good to know."""

    ERROR = "ERROR"
    WARNING = "WARNING"
    NOTE = "NOTE"


class Verdict(StrEnum):
    """What becomes of settings that a rule applies to."""

    REFUSED = "refused"
    """The program raises before training starts."""
    CRASHES = "crashes"
    """Accepted, then an exception in the first training step."""
    HANGS = "hangs"
    """Accepted, then the first training step never ends."""
    NO_EFFECT = "no effect"
    """Accepted and ignored."""
    SAVES_NOTHING = "saves nothing"
    """Accepted and obeyed, and the cost brings next to no memory."""
    REPLACED = "replaced"
    """Accepted, and more runs than anybody wrote."""
    NOT_MODELLED = "not modelled"
    """Accepted and obeyed, and in no prediction."""
    NOTE = "note"
    """Accepted; good to know."""

    @property
    def illegal(self) -> bool:
        """Whether no training comes of it."""
        return self in (Verdict.REFUSED, Verdict.CRASHES, Verdict.HANGS)

    @property
    def level(self) -> Level:
        """How `advise lint` shows it."""
        if self.illegal:
            return Level.ERROR
        return Level.NOTE if self is Verdict.NOTE else Level.WARNING


NOWHERE: Final = Place("", 0, 0)


class Match(Struct, frozen=True):
    """One case or place that a rule found. What it leaves empty is the rule's own text.

    found: what the rule's texts call `{found}`; a mapping also gives each of its names.
    """

    reason: str = ""
    fix: str = ""
    source: str = ""
    found: object = True
    place: Place = NOWHERE


class Lines(Protocol):
    """Where a rule stands in each release of a framework."""

    def cited(self, release: Any) -> str:
        """File and line in `release`."""
        ...


class Rule(Struct, Generic[P], frozen=True, kw_only=True):
    """What is refused, ignored or worth knowing.

    summary: what, in a sentence, where `reason` is about one case of it.
    given, when: it applies where both return something true: a value, a `Match`, or an iterator of
    several of either. reason, fix: format strings over `names` and ``{found}``, which is what
    `when` returned; a list is joined by commas.
    source: where it was read. since: its first release, where `source` does not say.
    field: what it is about, as `refuse` names it.
    example: the shortest settings that break it, as users write them.
    """

    names: ClassVar[tuple[str, ...]] = ()
    """What the texts call the things that the rule looks at."""

    when: Callable[P, object]
    given: Callable[P, object] | None = None
    summary: str = ""
    reason: str = ""
    fix: str = ""
    source: Lines | str = ""
    verdict: Verdict = Verdict.REFUSED
    authority: str = ""
    since: tuple[int, int] = (0, 0)
    field: str = ""
    example: str = ""

    @property
    def says(self) -> str:
        """What it is about, in a sentence."""
        return self.summary or f"{self.reason}."

    @classmethod
    def on(
        cls,
        field: str,
        when: Callable[P, object],
        reason: str,
        fix: str = "",
        *,
        given: Callable[P, object] | None = None,
    ) -> Self:
        """A rule that `refuse` asks."""
        return cls(field=field, when=when, reason=reason, fix=fix, given=given)

    def stands_in(self, field: str, values: Mapping[str, object]) -> object:
        """The value of a field, by the names of what the rule looks at: of ``model.num_layers`` the
        attribute of `model`."""
        group, _, name = field.partition(".")
        return getattr(values[group], name)

    def applies(self, *subject: P.args, **named: P.kwargs) -> bool:
        """Whether it applies anywhere, of a rule whose `when` returns no iterator."""
        given = self.given is None or self.given(*subject, **named)
        return bool(given and self.when(*subject, **named))

    def matches(self, *subject: P.args, **named: P.kwargs) -> Iterable[Match]:
        """Where it applies, with its texts filled in."""
        if self.given is not None and not self.given(*subject, **named):
            return ()
        found = self.when(*subject, **named)
        if not found:  # of nearly every rule: no generator is made
            return ()
        values = dict(zip(self.names, subject, strict=False))
        several = found if isinstance(found, Iterator) else (found,)
        return (self._filled(one, values) for one in several)

    def _filled(self, found: object, values: dict[str, object]) -> Match:
        match = found if isinstance(found, Match) else Match(found=found)
        found = match.found
        values["found"] = ", ".join(found) if isinstance(found, list | tuple) else found
        if isinstance(found, Mapping):
            values.update(found)
        return Match(
            match.reason or self.reason.format_map(values),
            match.fix or self.fix.format_map(values),
            match.source,
            found,
            match.place,
        )


class Finding(Struct, frozen=True, kw_only=True):
    """A rule that applies to somebody's settings.

    place: where it is written. change: the fix as its framework reads it, where that has a form for
    it.
    """

    rule: str
    reason: str
    fix: str
    source: str = ""
    verdict: Verdict = Verdict.REFUSED
    place: Place = NOWHERE
    change: str = ""

    @property
    def level(self) -> Level:
        """How bad it is."""
        return self.verdict.level


def findings(
    rules: Mapping[str, Rule[P]], *subject: P.args, **named: P.kwargs
) -> Iterator[Finding]:
    """Every rule of `rules` that applies, in their order."""
    for name, rule in rules.items():
        if rule.given is None and not rule.when(*subject, **named):
            continue  # nearly every rule: what `matches` adds would take longer than to ask
        for match in rule.matches(*subject, **named):
            yield Finding(
                rule=name,
                verdict=rule.verdict,
                reason=match.reason,
                fix=match.fix,
                source=match.source or (rule.source if isinstance(rule.source, str) else ""),
                place=match.place,
            )


def refuse(rules: Iterable[Rule[P]], *subject: P.args, **named: P.kwargs) -> None:
    """UserError of the first of `rules` that applies, with the value of its field."""
    for rule in rules:
        if rule.given is None and not rule.when(*subject, **named):
            continue  # as in `findings`
        for match in rule.matches(*subject, **named):
            value = rule.stands_in(rule.field, dict(zip(rule.names, subject, strict=False)))
            raise UserError(rule.field, value, match.reason, match.fix)


R = TypeVar("R", bound=Rule[Any])
Rows = Mapping[str, Mapping[str, Any]]
_TYPES: Final = {"verdict": Verdict, "since": tuple, "versions": tuple}
_SIDE: Final = re.compile(r"(\w+)\.([\w.]+)(?:(!=|<=|>=|<|>|=|:)(.+))?")
_ORDERS: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@cache
def rows_of(file: str) -> Mapping[str, Any]:
    """What a file of configs/rules holds, read once."""
    rows: dict[str, Any] = json.decode((packaged_configs() / "rules" / file).read_bytes())
    return rows


def rules_of(
    kind: type[R],
    rows: Rows,
    whens: Mapping[str, Callable[..., object]],
    read: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> dict[str, R]:
    """Each row as a rule whose `when` is in `whens` or among the fields that `read` makes of it; of
    both the former is its `given`. LookupError for a row without a condition and for a condition
    without a row, TypeError for a field that the rule has not."""
    if others := whens.keys() - rows.keys():
        raise LookupError(f"conditions without a row: {', '.join(sorted(others))}")
    found = {}
    for name, row in rows.items():
        like = row.get("like", name)
        fields = read({**rows[like], **row})
        fields |= {one: _TYPES[one](fields[one]) for one in fields.keys() & _TYPES}
        if code := whens.get(name) or whens.get(like):
            fields["given" if "when" in fields else "when"] = code
        if "when" not in fields:
            raise LookupError(f"{name} has no condition")
        fields.pop("like", None)
        found[name] = kind(**fields)
    return found


def refusals(
    kind: type[R],
    table: str,
    whens: Mapping[str, Callable[..., object]] | None = None,
    lists: Mapping[str, Iterable[str]] | None = None,
) -> dict[str, R]:
    """The rules of a table of configs/rules/jobs.json, which `refuse` asks. A row is about the
    field of its id, unless it names another.

    Conditions that are no code are `when` and `given`: all of their sides must hold. A side is
    ``job.NAME`` where that is set, ``job.NAME=value|value``, ``job.NAME!=value``, ``job.NAME<1``
    (no None is), ``job.NAME:value`` where it holds the value, ``not side``, or ``side or side``.
    A row with `each`, here or in `lists`, is a rule for each of those names, which its code takes
    first, and which stands in its texts as {each}.
    """
    rows, codes = {}, dict(whens or {})
    for name, row in rows_of("jobs.json")[table].items():
        code = codes.pop(name, None)
        for each in (lists or {}).get(name, row.get("each", ("",))):
            one = f"{name} {each}".rstrip()
            text = json.encode({"field": name, **row}).replace(b"{each}", each.encode())
            rows[one] = json.decode(text)
            if code:
                codes[one] = partial(code, each) if each else code
    return rules_of(kind, rows, codes, partial(with_sides, kind))


def with_sides(kind: type[R], row: dict[str, Any]) -> dict[str, Any]:
    """A row with its conditions that are sides, as `refusals` reads them."""
    sides = {one: all_of(kind.names, row[one]) for one in ("given", "when") if one in row}
    return {name: value for name, value in row.items() if name != "each"} | sides


def all_of(names: tuple[str, ...], sides: Iterable[str]) -> Callable[..., bool]:
    """Whether what is looked at, under these names, has all sides, as `refusals` reads them."""
    first, *others = (_side(names, side) for side in sides)
    if not others:
        return first
    return lambda *subject: first(*subject) and all(one(*subject) for one in others)


def _side(names: tuple[str, ...], side: str) -> Callable[..., bool]:
    """Whether what a rule looks at, under these names, has a side, as `refusals` reads it."""
    if " or " in side:
        either = [_side(names, one) for one in side.split(" or ")]
        return lambda *subject: any(one(*subject) for one in either)
    if side.startswith("not "):
        other = _side(names, side[4:])
        return lambda *subject: not other(*subject)
    found = _SIDE.fullmatch(side)
    assert found is not None, side
    place, sign, text = names.index(found[1]), found[3], found[4]
    read = operator.attrgetter(found[2])
    if not sign:
        return lambda *subject: bool(read(subject[place]))
    if sign == ":":
        return lambda *subject: text in read(subject[place])
    if compare := _ORDERS.get(sign):
        limit = float(text)
        return lambda *subject: (
            (value := read(subject[place])) is not None and compare(value, limit)
        )
    values = text.split("|")
    return lambda *subject: (str(read(subject[place])) in values) == (sign == "=")
