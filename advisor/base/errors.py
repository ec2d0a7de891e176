"""The one exception that a user's mistake raises, and its words: the value, what is right instead,
what to do about a missing package."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from math import isqrt
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_SHOWN_LENGTH = 60
_ALL_SHOWN = 12


class UserError(ValueError):
    """A request that cannot be answered: one line says the field, its value and what is right.

    Args:
        field: path of the field or flag, e.g. ``layout.tensor_model_parallel_size``.
        value: what the user gave; None where it is not the value that is wrong.
        relation: the relation that does not hold, in words.
        nearest: legal values near the given one, or what to write instead.
    """

    def __init__(self, field: str, value: object, relation: str, nearest: str = "") -> None:
        hint = f"; {nearest}" if nearest else ""
        shown = str(value).lower() if isinstance(value, bool) else value
        given = "" if value is None else f" = {shown}"
        super().__init__(f"{field}{given}: {relation}{hint}")
        self.field = field
        self.value = value
        self.relation = relation
        self.nearest = nearest


def if_legal(make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What `make` returns; None where it raises UserError."""
    with suppress(UserError):
        return make(*args, **kwargs)
    return None


class DocumentError(ValueError):
    """What is wrong with a document's text, before anybody says which file it is: the reason, and
    line and column from 0 where they are known. beyond: it is past our limits, not broken."""

    def __init__(
        self, reason: str, place: tuple[int, int] | None = None, *, beyond: bool = False
    ) -> None:
        where = f"line {place[0] + 1}, column {place[1] + 1}: " if place else ""
        super().__init__(where + reason)
        self.reason, self.place, self.beyond = reason, place, beyond


def install_hint(extra: str) -> str:
    """The command that installs `extra` (``report``, ``harness,sweep``) of this package.

    It is for a checkout: nothing of this name is published.
    """
    return f"in the checkout run: pip install -e '.[{extra}]'"


def missing_package(asked: str, package: str, extra: str) -> UserError:
    """What to raise where `asked` needs `package`, which `extra` of this package would install."""
    return UserError(asked, None, f"needs {package}", install_hint(extra))


def not_installed(error: ModuleNotFoundError) -> str:
    """One line for a package that is not there; empty where it is a module of ours that is not."""
    package = (error.name or "").partition(".")[0]
    ours = package in ("", "advisor", "harness")
    return "" if ours else f"needs the package {package}: pip install {package}"


def require(module: str, asked: str, extra: str) -> Any:
    """`module`, imported; UserError with the command that installs it where it is missing."""
    try:
        return import_module(module)
    except ImportError:
        raise missing_package(asked, module.partition(".")[0], extra) from None


def show(value: object) -> str:
    """`value` on one short line, for an error."""
    other = str(value).lower() if isinstance(value, bool) else repr(value)
    text = value if isinstance(value, str) and value.isprintable() and value else other
    return text if len(text) <= _SHOWN_LENGTH else text[: _SHOWN_LENGTH - 3] + "..."


def show_path(path: object) -> str:
    """A path on one line, whole."""
    text = str(path)
    return text if text.isprintable() and text else repr(text)


def nearest_names(name: str, known: Iterable[str], limit: int = 3) -> str:
    """``did you mean a or b?``: known names that begin with `name`, else those near to it; where
    there is none, all of a few, or the nearest of many; empty where nothing is known."""
    from difflib import get_close_matches

    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    begun = sorted((n for n in names if name and n.lower().startswith(name.lower())), key=len)
    tries = (get_close_matches(name.lower(), lowered, limit, cutoff) for cutoff in (0.8, 0.4))
    close = [lowered[c] for c in next(filter(None, tries), ())]
    if near := begun[: 2 * limit] or close:
        return f"did you mean {either(near)}?"
    if len(names) <= _ALL_SHOWN:
        return f"use {either(names)}" if names else ""
    far = (lowered[c] for c in get_close_matches(name.lower(), lowered, limit, 0.0))
    return f"similar: {', '.join(far)}"


def either(names: Iterable[str]) -> str:
    """``a``, ``a or b``, ``a, b or c``; empty for no names."""
    *first, last = list(names) or [""]
    return f"{', '.join(first)} or {last}" if first else last


def likely_names(name: str, known: Iterable[str]) -> str:
    """The same where one is near, and nothing otherwise: for an error that names all of them."""
    hint = nearest_names(name, known)
    return hint if hint.startswith("did you mean") else ""


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive number, ascending."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def nearest_divisors(number: int, wanted: int, more: int = 0) -> str:
    """The divisors of `number` on both sides of `wanted`, each with `more` added, for an error's
    last words."""
    below = [d for d in divisors(number) if d <= wanted][-1:]
    above = [d for d in divisors(number) if d > wanted][:1]
    return " or ".join(str(d + more) for d in below + above)
