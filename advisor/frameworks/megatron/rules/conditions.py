"""Conditions that several rules share."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from advisor.base.errors import nearest_names
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision, releases

INSIDE_MOE: Final = ("moe_act", "expert_fc1", "fused_group_mlp")
"""What of offload_modules lies in the experts."""


def lists(raw: RawSettings, module: str) -> bool:
    """Whether selective recompute has `module` in a list that somebody wrote."""
    return raw.selective and raw.recompute_modules is not None and module in raw.recompute_modules


def selects(raw: RawSettings, module: str) -> bool:
    """Whether selective recompute has `module` in its list, the promoted one included."""
    return raw.selective and module in raw.effective_modules


def replayed(raw: RawSettings, *modules: str) -> list[str]:
    """Those of `modules` that recompute replays after all of Megatron's promotions."""
    return [module for module in modules if module in raw.recomputed_modules]


def offloaded(raw: RawSettings, *modules: str) -> list[str]:
    """Those of `modules` that are in offload_modules, whether anything reads it or not."""
    return [module for module in modules if module in raw.offload_modules]


class Unknown(Struct, frozen=True):
    """Names that are not accepted, printed with commas. known: those that are; instead: what to
    write for the first of them, if it is no near name. has_others: known ones were given, too."""

    names: tuple[str, ...]
    known: Sequence[str] = ()
    instead: str = ""
    has_others: bool = False

    def __str__(self) -> str:
        return ", ".join(self.names)

    @property
    def first(self) -> str:
        """The name that the advice is about."""
        return self.names[0]

    @property
    def advice(self) -> str:
        """What to write for the first name: looked for late, as that takes a while."""
        advice = self.instead or nearest_names(self.first, self.known)
        far = self.has_others and advice.startswith("use ")
        return f"drop {self}, or {advice}" if far else advice


def unknown(wanted: Iterable[str | None], known: Sequence[str]) -> Unknown | None:
    """The names in `wanted` that are not in `known`; None stands for an option that is not set."""
    given = [name for name in wanted if name is not None]
    names = tuple(name for name in given if name not in known)
    return Unknown(names, known, has_others=len(names) < len(given)) if names else None


def unknown_to(revision: Revision, field: str, wanted: Iterable[str]) -> Unknown | None:
    """The names in `wanted` that a field of the release has not; where other versions have the
    first of them, these are the advice."""
    found = unknown(wanted, getattr(revision, field))
    if found is None:
        return None
    others = releases(revision.framework)
    versions = [other.version for other in others if found.first in getattr(other, field)]
    if not versions:
        return found
    instead = f"{found.first} needs --framework-version {' or '.join(versions)}"
    return Unknown(found.names, instead=instead)
