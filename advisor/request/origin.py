"""Where each value of a job comes from: data that pages, JSON and the API read."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


class OriginKind(StrEnum):
    """Who decided."""

    GIVEN = "given"
    RECIPE = "recipe"
    DEFAULT = "default"
    ASSUMED = "assumed"
    SEARCHED = "searched"


@dataclass(frozen=True, slots=True)
class Origin:
    """Who decided a value; `detail` is the recipe's name, the framework's release, or the reason.

    As text: ``given``, ``recipe NAME``, ``default of FRAMEWORK RELEASE``, ``assumed: WHY``,
    ``searched``.
    """

    kind: OriginKind
    detail: str = ""

    def __str__(self) -> str:
        match self.kind:
            case OriginKind.RECIPE:
                return f"recipe {self.detail}"
            case OriginKind.DEFAULT:
                return f"default of {self.detail}"
            case OriginKind.ASSUMED:
                return f"assumed: {self.detail}"
        return str(self.kind)


GIVEN = Origin(OriginKind.GIVEN)
SEARCHED = Origin(OriginKind.SEARCHED)


def recipe(name: str) -> Origin:
    """Of a published recipe."""
    return Origin(OriginKind.RECIPE, name)


def assumed(why: str) -> Origin:
    """The advisor's own choice."""
    return Origin(OriginKind.ASSUMED, why)


@dataclass(frozen=True, slots=True)
class Sourced(Generic[T]):
    """A value whose fields know their origins; a field without one has its default."""

    value: T
    origins: Mapping[str, Origin]

    def with_fields(self, origin: Origin, values: Mapping[str, Any]) -> "Sourced[T]":
        """The value with other fields, all set at once."""
        if not values:
            return self
        changed = dict.fromkeys(values, origin)
        return Sourced(replace(self.value, **values), {**self.origins, **changed})

    def turned_into(self, value: T, origin: Origin) -> "Sourced[T]":
        """`value`, whose differing fields come from `origin`."""
        changed = dict.fromkeys(changed_fields(self.value, value), origin)
        return Sourced(value, {**self.origins, **changed})

    def named(self, group: str, default: Origin) -> dict[str, Origin]:
        """``GROUP.FIELD`` -> origin, of every field."""
        return {
            f"{group}.{field.name}": self.origins.get(field.name, default)
            for field in fields(self.value)
        }


def stated_fields(value: "DataclassInstance", besides: Collection[str] = ()) -> dict[str, Any]:
    """Fields that differ from their class's defaults, but for those of `besides`."""
    return {
        field.name: getattr(value, field.name)
        for field in fields(value)
        if field.name not in besides and getattr(value, field.name) != field.default
    }


def changed_fields(one: T, other: T) -> tuple[str, ...]:
    """Names of the fields in which two values of a class differ."""
    return tuple(
        field.name
        for field in fields(one)
        if getattr(one, field.name) != getattr(other, field.name)
    )
