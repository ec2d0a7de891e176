"""What a rule finds where not all options were seen. Each is stated, lent by a recipe, a default as
the list is complete, or unknown because something was not read."""

from collections.abc import Callable, Iterator, Sequence
from enum import EnumType
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.fields import field_types, optional_type
from advisor.base.rule import Finding, Verdict
from advisor.frameworks.megatron.options.table import PARTS, SETTINGS
from advisor.frameworks.megatron.raw import RawSettings

Asks = Callable[[RawSettings], object]
"""A rule, as what it says of settings."""
_DEEPEST: Final = 4
"""Unknown options of a rule whose values are tried together."""
_ANOTHER: Final[dict[type, tuple[Any, ...]]] = {
    bool: (True, False),
    int: (1, 2, 8),
    float: (0.0, 0.5, 1.0),
    tuple: ((), ("another",)),
    str: ("another", "0"),
}
"""Values that an unknown option may have, with its default and those that a field of ours takes."""


class Unseen(Struct, frozen=True):
    """The options of a configuration that are unknown, and those that somebody says, if only by a
    variable or by leaving them out. unread: what was not read, in words."""

    options: frozenset[str]
    said: frozenset[str]
    unread: str = ""

    def settled(
        self, found: Sequence[Finding], rule: Asks, settings: RawSettings
    ) -> Sequence[Finding]:
        """What a rule finds; notes where it depends on unknown options; nothing where it reads
        nothing that is said, or depends on variables alone, which are reported as such."""
        names = options_read(rule, settings)
        if names and not names & self.said:
            return ()
        if self._holds(rule, settings):
            return found
        unknown = sorted(names & self.options)
        deciding = [n for n in unknown if not all(map(rule, _with(n, settings)))] or unknown
        blames = names & self.said - self.options and {*deciding} - self.said
        if not blames or "world_size" in names:
            return ()
        values = ((name, getattr(settings, name)) for name in deciding)
        condition = " and ".join(
            f"{name} is {'not set' if value in (None, ()) else value}" for name, value in values
        )
        unread = f", or lint the file with {self.unread}" if self.unread else ""
        fix = f"state {' and '.join(deciding)}{unread}"
        return [
            replace(
                one,
                verdict=Verdict.NOTE,
                reason=f"if {condition} here, which is not known: {one.reason}",
                fix=fix,
                change="",
            )
            for one in found
            if one.verdict is not Verdict.NOTE
        ]

    def _holds(self, rule: Asks, its: RawSettings, tried: frozenset[str] = frozenset()) -> bool:
        """Whether the rule finds it whatever values the unknown options have that it reads."""
        if not rule(its):
            return False
        name = min(options_read(rule, its) & self.options - tried, default=None)
        if name is None or len(tried) == _DEEPEST:
            return name is None
        return all(self._holds(rule, other, tried | {name}) for other in _with(name, its))


def _with(name: str, settings: RawSettings) -> Iterator[RawSettings]:
    """The settings with each value that an option may have."""
    row = SETTINGS[name]
    part, _, field = row.ours.partition(".")
    kind = field_types(PARTS[part]).get(field) if part in PARTS and row.kind is str else None
    kind = optional_type(kind) or kind
    named = map(str, kind) if isinstance(kind, EnumType) else ()
    for value in dict.fromkeys((*named, *_ANOTHER[row.kind], row.default)):
        yield settings.changed(**{name: value})


def options_read(rule: Asks, settings: RawSettings) -> frozenset[str]:
    """The options that a rule reads before it says something."""
    read: set[str] = set()

    class Traced(RawSettings):
        """Settings that note what is read of them."""

        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    rule(Traced(**settings.given))
    return RawSettings.option_names & read
