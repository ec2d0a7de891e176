"""The one exception that a user's mistake raises; what to do about a missing package."""

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


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
