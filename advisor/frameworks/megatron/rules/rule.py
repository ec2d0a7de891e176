"""What a rule is: when it applies, what it says then, and where it was read.

The modules beside this one have tables of rules by id, in the order in which Megatron checks them.
Adding a rule is adding one entry to one table.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum

from msgspec import Struct

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision


class Verdict(StrEnum):
    """What becomes of a setting that a rule applies to."""

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
    NOTE = "note"
    """Accepted; good to know."""

    @property
    def illegal(self) -> bool:
        """Whether no training comes of it."""
        return self in (Verdict.REFUSED, Verdict.CRASHES, Verdict.HANGS)


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


class Problem(Struct, frozen=True):
    """One violation. fix: as `fixes` reads it. raises: exception and start of its message, where
    something is raised."""

    reason: str
    fix: str
    raises: str = ""


Condition = Callable[[RawSettings, Revision], object]
Check = Callable[[RawSettings, Revision], Problem | None]


class Rule(Struct, frozen=True, kw_only=True):
    """What every rule has beside its condition and its words.

    summary: one sentence, for the pages of `advise rules`. source: where it was read, lines by
    release or a text. since: the first release that has it, unless the lines say so.
    """

    summary: str
    source: Lines | str
    verdict: Verdict = Verdict.REFUSED
    authority: Authority = Authority.CONFIG
    since: tuple[int, int] = (0, 0)

    def problem(self, raw: RawSettings, revision: Revision) -> Problem | None:
        """What the rule says of `raw`; None where all is well or nothing is known."""
        raise NotImplementedError

    def stated_in(self, revision: Revision) -> bool:
        """Whether the release has the rule."""
        stated = isinstance(self.source, str) or self.source.stated_in(revision)
        return stated and revision.at_least(*self.since)

    def cited(self, revision: Revision) -> str:
        """Where the rule stands in the release."""
        return self.source if isinstance(self.source, str) else self.source.cited(revision)


class Guard(Rule, frozen=True, kw_only=True):
    """A rule of one condition, as data.

    It applies where `given` (the option that a group of rules is about) and `when` return something
    true. reason, fix, raises: format strings over ``{raw}``, ``{revision}`` and ``{found}``, which
    is what `when` returned; names in a list are joined by commas.
    """

    given: Condition | None = None
    when: Condition
    reason: str
    fix: str
    raises: str = ""

    def problem(self, raw: RawSettings, revision: Revision) -> Problem | None:
        """The words with their values where the condition holds."""
        if self.given is not None and not self.given(raw, revision):
            return None
        found = self.when(raw, revision)
        if not found:
            return None
        values = {
            "raw": raw,
            "revision": revision,
            "found": ", ".join(found) if isinstance(found, list | tuple) else found,
        }
        words = (self.reason, self.fix, self.raises)
        return Problem(*(text.format_map(values) for text in words))


class Function(Rule, frozen=True, kw_only=True):
    """A rule of several cases, which a function says best."""

    check: Check

    def problem(self, raw: RawSettings, revision: Revision) -> Problem | None:
        """What the function returns."""
        return self.check(raw, revision)


def function(
    check: Check,
    source: Lines | str,
    verdict: Verdict = Verdict.REFUSED,
    authority: Authority = Authority.CONFIG,
) -> Rule:
    """The rule that `check` is; the first line of its docstring is the summary."""
    summary = (check.__doc__ or "").strip().partition("\n")[0]
    return Function(
        summary=summary, source=source, verdict=verdict, authority=authority, check=check
    )


class Finding(Struct, frozen=True, kw_only=True):
    """A rule that fired on somebody's settings. change: its fix as `fixes` reads it."""

    rule: str
    verdict: Verdict
    authority: Authority
    reason: str
    fix: str
    change: str
    source: str
    raises: str = ""


def marked(name: str, *values: str) -> str:
    """The change of an option, as `fixes` reads it; without values back to its default."""
    return f"[{name}={' '.join(values)}]" if values else f"[{name}]"


def names(modules: Sequence[str]) -> str:
    """Modules as a sentence lists them."""
    return ", ".join(modules)
