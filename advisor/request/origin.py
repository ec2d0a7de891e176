"""Where each value of a job comes from: data that pages, JSON and the API read."""

from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import Any, Final, TypeVar

from msgspec import NODEFAULT, Struct

from advisor.base.record import defaults
from advisor.job.job import Job

T = TypeVar("T", bound=Struct)


class OriginKind(StrEnum):
    """Who decided."""

    GIVEN = "given"
    RECIPE = "recipe"
    DEFAULT = "default"
    ASSUMED = "assumed"
    SEARCHED = "searched"


_BEGINS: Final = {
    OriginKind.RECIPE: "recipe",
    OriginKind.DEFAULT: "default of",
    OriginKind.ASSUMED: "assumed:",
}


class Origin(Struct, frozen=True):
    """Who decided a value; `detail` is the recipe's name, the framework's release or the model, or
    the reason.

    As text: ``given``, ``recipe NAME``, ``default of FRAMEWORK RELEASE``, ``default of MODEL``,
    ``assumed: WHY``, ``searched``.
    """

    kind: OriginKind
    detail: str = ""

    def __str__(self) -> str:
        begins = _BEGINS.get(self.kind)
        return str(self.kind) if begins is None else f"{begins} {self.detail}"


GIVEN = Origin(OriginKind.GIVEN)
SEARCHED = Origin(OriginKind.SEARCHED)


def recipe(name: str) -> Origin:
    """Of a published recipe."""
    return Origin(OriginKind.RECIPE, name)


def assumed(why: str) -> Origin:
    """The advisor's own choice."""
    return Origin(OriginKind.ASSUMED, why)


def stated_fields(value: Struct, besides: Collection[str] = ()) -> dict[str, Any]:
    """Fields that differ from their class's defaults, except those of `besides`."""
    usual = defaults(type(value))
    return {
        name: stated
        for name in value.__struct_fields__
        if name not in besides and (stated := getattr(value, name)) != usual.get(name, NODEFAULT)
    }


def changed_fields(one: T, other: T) -> tuple[str, ...]:
    """Names of the fields in which two values of a class differ."""
    return tuple(
        name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)
    )


GROUPS: Final = {"model": "model", "layout": "layout", "job": "config"}
"""Groups of KEY=VALUE, and the attributes of a Job that hold them."""


def changed_values(group: str, own: T, other: T) -> Iterator[tuple[str, Any]]:
    """``GROUP.FIELD`` and the value of `own`, where `other` has another one; of a field that is a
    group of keys itself, those of its fields."""
    for name in () if own is other else changed_fields(own, other):
        value = getattr(own, name)
        if group == "job" and isinstance(value, Struct):
            yield from changed_values(name, value, getattr(other, name))
        else:
            yield f"{group}.{name}", value


def changes(job: Job, usual: Job) -> dict[str, Any]:
    """``GROUP.FIELD`` -> value of `job`, where `usual` has another one."""
    return {
        path: value
        for group, attribute in GROUPS.items()
        for path, value in changed_values(group, getattr(job, attribute), getattr(usual, attribute))
    }


def value_of(job: Job, path: str) -> Any:
    """The value of ``GROUP.FIELD``."""
    group, _, name = path.partition(".")
    attribute = GROUPS.get(group)
    return getattr(getattr(job, attribute) if attribute else getattr(job.config, group), name)
