"""What is read of one configuration of Megatron: values by field of RawSettings, each in its
field's type, and where it is written."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.place import Place
from advisor.base.rule import Finding
from advisor.frameworks.megatron.options import table
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.names import Framework
from advisor.frameworks.option import Status
from advisor.reading.model_names import named_model
from advisor.reading.read_configuration import ReadValue
from advisor.reading.shell import Note

KINDS: Final = {
    row.name: row.kind for row in table.SETTINGS.values() if row.status is not Status.HARMLESS
}
"""Type of every field of RawSettings that is of interest."""

RENAMED: Final = {name: row.name for name, row in table.other_names().items() if row.name in KINDS}
"""Options and fields of other releases whose name is not the field's."""

_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_NULL: Final = frozenset({"null", "none", "~", ""})


Said = Mapping[str, ReadValue]
"""What is read by the name of an option, or by the path of a field of ours."""
Fields = Iterator[tuple[str, ReadValue]]
"""The same, one by one."""


class Given(Struct):
    """Fields read so far; `framework` is whose configuration this is, `version` which of its
    releases it is written for, where the keys tell.

    spellings: options as written, for those whose spelling changed between releases.
    unresolved: fields whose value is a variable that the text does not set, and how each is
    written.
    layers_per_virtual_stage: --num-layers-per-virtual-pipeline-stage, which becomes VPP.
    """

    framework: Framework = Framework.MEGATRON_LM
    version: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    spellings: set[str] = field(default_factory=set)
    unresolved: dict[str, str] = field(default_factory=dict)
    layers_per_virtual_stage: int | None = None

    def put(self, name: str, value: object, where: str) -> None:
        """Store `value` for field `name`; UserError where it has not the field's type."""
        if isinstance(value, str) and "$" in value:
            self.unresolved[name] = where
            self.values[name] = None
            return
        self.values[name] = convert(name, value, where)
        self.unresolved.pop(name, None)
        if value is True and table.switches_off(where):
            self.values[name] = False

    def settings(self) -> RawSettings:
        """The raw settings, with defaults for what is not given."""
        values = {name: value for name, value in self.values.items() if value is not None}
        launched = self.framework == Framework.MEGATRON_LM
        if launched and values.get("cpu_offloading_num_layers", 0) > 0:
            values.setdefault("cpu_offloading", True)
        if values.get("recompute_activations"):
            values["recompute_granularity"] = "selective"
        per_stage = self.layers_per_virtual_stage
        layers, pp = values.get("num_layers"), values.get("pipeline_model_parallel_size", 1)
        if per_stage and layers and pp and layers % (pp * per_stage) == 0:
            values["virtual_pipeline_model_parallel_size"] = layers // pp // per_stage
        return RawSettings(**values)


def convert(name: str, value: object, where: str) -> object:
    """`value` in the type of field `name`; None for null."""
    null = isinstance(value, str) and value.lower() in _NULL
    if value is None or (null and name != "cuda_graph_impl"):
        return None
    kind = KINDS[name]
    if kind is tuple:
        return _names(value)
    if kind is bool:
        return value if isinstance(value, bool) else str(value).lower() in _TRUE
    if kind is str:
        return None if value is False else str(value)
    try:
        return kind(str(value))
    except ValueError:
        valid = "number" if kind is int else "fraction"
        raise UserError(where, value, f"must be a valid {valid}") from None


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, list | tuple):
        return tuple(str(item) for item in value)
    text = str(value).strip()
    if text.startswith("["):
        text = text.strip("[]").replace(",", " ")
    return tuple(name.strip("'\"") for name in text.split())


def field_of(option: str) -> str | None:
    """The field of RawSettings that an option sets; None for options of no interest.

    >>> field_of("--fp8-format")
    'fp8'
    """
    row = table.option_of_flag(option)
    return row.name if row is not None and row.name in KINDS else None


class ReadSettings(Struct, kw_only=True, dict=True):
    """Fields by name with their places.

    place: of the whole configuration. faults: refused already. unknown: words that may hold
    options and whose text is not known. environment: variables that are known, with places.
    loose: every option and field by its last name, of interest to the rules or not.
    texts: words that may name the model. item_places: of the words of a list. wrong: fields with a
    value of another type. passed: those that a caller may give. is_whole: all is written out. lent:
    by the program. untaken: not known.
    """

    place: Place
    given: Given = field(default_factory=Given)
    places: dict[str, Place] = field(default_factory=dict)
    faults: list[Finding] = field(default_factory=list)
    unknown: list[tuple[str, Place]] = field(default_factory=list)
    environment: dict[str, tuple[str, Place]] = field(default_factory=dict)
    loose: dict[str, ReadValue] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    wrong: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)
    is_whole: bool = False
    lent: dict[str, Any] = field(default_factory=dict)
    untaken: list[ReadValue] = field(default_factory=list)
    item_places: dict[tuple[str, str], Place] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether what is not said has its default."""
        launched = self.given.framework == Framework.MEGATRON_LM
        return not self.unknown if launched else self.is_whole

    @property
    def has_defaults(self) -> bool:
        """Whether a prediction takes defaults of what is not said: a command has most options."""
        has_most = "num_layers" in self.given.values or "tensor_model_parallel_size" in self.loose
        return self.is_complete or (has_most and self.given.framework == Framework.MEGATRON_LM)

    @property
    def unread(self) -> tuple[Note, ...]:
        """What lies elsewhere: words of a command, and a recipe that nothing names."""
        found = [Note(text, place) for text, place in self.unknown]
        if self.given.framework != Framework.MEGATRON_LM and not (self.is_whole or self.model):
            found.append(Note("the recipe that it changes", self.place))
        return tuple(found)

    @cached_property
    def model(self) -> str:
        """The preset that the texts name."""
        return named_model(self.texts) if self.texts else ""

    def put(self, name: str, value: object, where: str, place: Place) -> None:
        """Store a field; a value that has not its type is a fault."""
        try:
            self.given.put(name, value, where)
        except UserError as error:
            reason = f"{where} = {error.value} {error.relation}"
            self.refuse("wrong_type", reason, "give a valid value", place)
            self.given.values[name] = None
            self.wrong.add(name)
            return
        self.places[name] = place

    def put_loose(self, name: str, value: Any, written: str, place: Place) -> None:
        """Remember an option or a field under its own name."""
        name = name.lstrip("-").replace("-", "_")
        self.loose[name] = ReadValue(value=value, written=written, place=place)

    def refuse(self, rule: str, reason: str, fix: str, place: Place) -> None:
        """Keep what the launcher's own parser refuses."""
        self.faults.append(
            Finding(rule=rule, reason=reason, fix=fix, source="argparse", place=place)
        )

    def omitted(self, value: Any, written: str) -> ReadValue:
        """A default, of an option that is not written."""
        return ReadValue(value=value, written=written, place=self.place, omitted=True)

    def without(self, name: str) -> Given:
        """The given values without one of them."""
        values = {key: value for key, value in self.given.values.items() if key != name}
        return replace(self.given, values=values)

    def __bool__(self) -> bool:
        return bool(self.given.values or self.given.unresolved or self.faults)
