"""What a configuration gives: values by field of RawSettings, converted by the field's type."""

from typing import Any, Final

from msgspec import Struct, field

from advisor.base.errors import UserError
from advisor.frameworks.megatron.options.table import (
    SETTINGS,
    option_of_flag,
    other_names,
    switches_off,
)
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.names import Framework
from advisor.frameworks.option import Status

KINDS: Final = {
    row.name: row.kind for row in SETTINGS.values() if row.status is not Status.HARMLESS
}
"""Type of every field of RawSettings that is of interest."""

RENAMED: Final = {name: row.name for name, row in other_names().items() if row.name in KINDS}
"""Options and fields of other releases whose name is not the field's."""

_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_NULL: Final = frozenset({"null", "none", "~", ""})


# What stands for a value that is not known, so that no rule fires for the lack of it.
_LEGAL: Final[dict[str, object]] = {
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
    "tensor_model_parallel_size": 2,
    "virtual_pipeline_model_parallel_size": 2,
    "expert_model_parallel_size": 2,
    "num_moe_experts": 8,
    "moe_token_dispatcher_type": "alltoall",
}


_OF_RECIPES: Final[dict[str, object]] = {
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "moe_token_dispatcher_type": "alltoall",
}


class Given(Struct):
    """Fields read so far; `framework` is whose configuration this is, `version` which of its
    releases it is written for, where the keys tell.

    spellings: options as written, for those whose spelling changed between releases.
    stray: a switch with the word after it, which the program takes for an unknown argument.
    unresolved: fields whose value is a shell variable that the text does not set.
    layers_per_virtual_stage: --num-layers-per-virtual-pipeline-stage, which becomes VPP.
    """

    framework: Framework = Framework.MEGATRON_LM
    version: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    spellings: set[str] = field(default_factory=set)
    stray: list[str] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)
    layers_per_virtual_stage: int | None = None

    def put(self, name: str, value: object, where: str) -> None:
        """Store `value` for field `name`; UserError where it has not the field's type."""
        if isinstance(value, str) and "$" in value:
            self.unresolved.append(where)
            self.values[name] = _LEGAL.get(name)
            return
        self.values[name] = convert(name, value, where)
        if value is True and switches_off(where):
            self.values[name] = False

    def settings(self) -> RawSettings:
        """The raw settings, with defaults for what is not given."""
        values = {name: value for name, value in self.values.items() if value is not None}
        values.setdefault("cpu_offloading", values.get("cpu_offloading_num_layers", 0) > 0)
        if self.framework != Framework.MEGATRON_LM:
            # A recipe sets them; only a resolved configuration shows what to.
            values = {**_OF_RECIPES, **values}
        if values.get("recompute_activations"):
            values["recompute_granularity"] = "selective"
        per_stage = self.layers_per_virtual_stage
        layers, pp = values.get("num_layers"), values.get("pipeline_model_parallel_size", 1)
        if per_stage and layers and pp and layers % (pp * per_stage) == 0:
            values["virtual_pipeline_model_parallel_size"] = layers // pp // per_stage
        return RawSettings(**values)


def convert(name: str, value: object, where: str) -> object:
    """`value` in the type of field `name`; None for null."""
    if value is None or (isinstance(value, str) and value.lower() in _NULL and _nullable(name)):
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


def _nullable(name: str) -> bool:
    return name != "cuda_graph_impl"


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
    row = option_of_flag(option)
    return row.name if row is not None and row.name in KINDS else None
