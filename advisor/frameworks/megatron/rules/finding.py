"""What a rule is, and what it says when it fires."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

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
    BUYS_NOTHING = "buys nothing"
    """Accepted and obeyed, and the cost brings next to no memory."""
    PROMOTED = "promoted"
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


@dataclass(frozen=True, slots=True)
class Problem:
    """One violation. raises: exception and start of its message, where something is raised."""

    reason: str
    fix: str
    raises: str = ""


Check = Callable[[RawSettings, Revision], Problem | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: `check` returns a Problem, or None where all is well or nothing is known.

    source: where it was read; a rule without one is looked up by id in sources.py.
    """

    id: str
    verdict: Verdict
    authority: Authority
    check: Check
    source: str = ""

    @property
    def summary(self) -> str:
        """First line of the check's docstring."""
        return (self.check.__doc__ or "").strip().partition("\n")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule that fired on somebody's settings."""

    rule: str
    verdict: Verdict
    authority: Authority
    reason: str
    fix: str
    source: str
    raises: str = ""


def names(modules: Sequence[str]) -> str:
    """Modules as a sentence lists them."""
    return ", ".join(modules)
