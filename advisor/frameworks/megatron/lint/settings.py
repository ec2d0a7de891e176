"""What is read of one configuration of Megatron: values, and where each is written."""

from functools import cached_property
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.place import Place
from advisor.frameworks.megatron.lint.given_options import Given
from advisor.reading.model_names import named_model
from advisor.reading.read_configuration import ReadValue


class Fault(Struct, frozen=True):
    """What the launcher itself refuses, before any rule is asked."""

    rule: str
    reason: str
    fix: str
    source: str
    place: Place


class ReadSettings(Struct, kw_only=True, dict=True):
    """Fields by name with their places.

    place: of the whole configuration. faults: refused already. unknown: words that may hold
    options and whose text is not known. environment: variables that are known, with places.
    loose: every option and field by its last name, of interest to the rules or not.
    texts: words that may name the model. partial: the values lie over a recipe, whose own are not
    known unless its name tells the model. item_places: of the words of a list. is_dumped: a file
    with every field.
    """

    place: Place
    given: Given = field(default_factory=Given)
    places: dict[str, Place] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    unresolved: dict[str, Place] = field(default_factory=dict)
    unknown: list[tuple[str, Place]] = field(default_factory=list)
    environment: dict[str, tuple[str, Place]] = field(default_factory=dict)
    loose: dict[str, ReadValue] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    partial: bool = False
    is_dumped: bool = False
    item_places: dict[tuple[str, str], Place] = field(default_factory=dict)

    @cached_property
    def model(self) -> str:
        """The preset that the texts name."""
        return named_model(self.texts) if self.texts else ""

    def put(self, name: str, value: object, where: str, place: Place) -> None:
        """Store a field; a value that has not its type is a fault."""
        before = len(self.given.unresolved)
        try:
            self.given.put(name, value, where)
        except UserError as error:
            reason = f"{where} = {error.value} {error.relation}"
            self.faults.append(Fault("wrong_type", reason, "give a valid value", "argparse", place))
            self.given.put(name, "$", where)  # a value that no rule minds
            self.given.unresolved.pop()
            return
        if len(self.given.unresolved) > before:
            self.unresolved[where] = place
        self.places[name] = place

    def put_loose(self, name: str, value: Any, written: str, place: Place) -> None:
        """Remember an option or a field under its own name."""
        name = name.lstrip("-").replace("-", "_")
        self.loose[name] = ReadValue(value=value, written=written, place=place)

    def without(self, name: str) -> Given:
        """The given values without one of them."""
        values = {key: value for key, value in self.given.values.items() if key != name}
        return replace(self.given, values=values)

    def __bool__(self) -> bool:
        return bool(self.given.values or self.given.unresolved or self.faults)
