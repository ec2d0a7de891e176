"""A rule, whoever's: when it applies, what it says then, why it exists and where it was read.

A rule is data, kept under its id in a table, in the order in which the framework checks. Everything
that refuses, warns or remarks asks `findings`: the ranking, `advise lint`, jobs being configured,
the backends of harness. What a rule looks at is its type's parameter: `Rule[[Settings, Release]]`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, ClassVar, Final, Generic, ParamSpec, Protocol, Self

from msgspec import Struct

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
