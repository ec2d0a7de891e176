"""Families of models in a Hugging Face config.json, as rows of configs/rules/model_families.json.

A row has the fields of `Family`, and those of the parts that it is `like`: their keys and code come
before its own, and its other fields over theirs. Sources stand in the rows.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct, convert, json

from advisor.base import fields as base_fields
from advisor.base.configuration import packaged_configs
from advisor.models.config_json.keys import HuggingFaceConfig, keys
from advisor.models.options import Activation

_TYPES: Final[dict[str, Any]] = {
    **dict.fromkeys(("positive", "optional", "count", "int"), int),
    **dict.fromkeys(("bool", "not"), bool),
    **{"float": float, "str": str, "numbers": tuple[int, ...]},
}
_GELUS: Final = ("gelu", "gelu_new", "gelu_pytorch_tanh")
_ACTIVATIONS: Final = {
    True: {
        **dict.fromkeys(("silu", "swish"), Activation.SWIGLU),
        **dict.fromkeys(_GELUS, Activation.GEGLU),
    },
    False: {
        "relu2": Activation.SQUARED_RELU,
        **dict.fromkeys((*_GELUS, "gelu_fast"), Activation.GELU),
    },
}


class Read(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field that a key gives, and its classes' `default` where the key is absent.

    type: a positive number is required where there is no default, an optional one is not; of a
    count, `times` a field before it, 0 is None; ``not`` is the opposite of a bool.
    null: null means None, unlike an absent key.
    """

    key: str
    type: str = "positive"
    default: Any = None
    null: bool = False
    times: str = ""

    def value(self, config: HuggingFaceConfig, before: Mapping[str, Any]) -> Any:
        """The value in a file; UserError where it is of another type, or missing."""
        default = None if self.null and self.key in config.values else self.default
        if self.type == "positive":
            return config.positive(self.key, default)
        value = config.get(self.key, _TYPES[self.type], default)
        match self.type:
            case "optional":
                return value if value is None else config.positive(self.key)
            case "count":
                return value * before.get(self.times, 1) or None
            case "not":
                return not value
            case "numbers":
                return tuple(value)
        return value


class Windows(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Windows of one family's classes: of `default` tokens where the key is absent.

    by_flag: use_sliding_window decides, and max_window_layers says how many layers have none.
    every: each Nth layer has none; sliding_window_pattern may say another number.
    """

    default: int | None = None
    by_flag: bool = False
    every: int | None = None

    @property
    def keys(self) -> frozenset[str]:
        """Every key that is read next to layer_types and sliding_window."""
        flag = {"use_sliding_window", "max_window_layers"} if self.by_flag else set()
        return frozenset(flag | ({"sliding_window_pattern"} if self.every else set()))


class Family(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What transformers' classes of one model_type fix, or assume where a key is absent.

    keys: read by code, or without effect; those of `fields` need not be named.
    fields: of the model, a value or what is read. code: names of what makes the others.
    num_key_value_heads and head_dim None: as many as query heads, and hidden_size / heads.
    windows: of its layers, None where it has none. rotary_percent None: no share is read.
    one_activation: no other than `activation` is taken.
    fixed: keys with the only value that is modelled, and `why`. refused: a value that is not
    modelled, and why not. decoder: of a tower, that of its text model.
    """

    source: str = ""
    keys: str = ""
    fields: dict[str, Any] = {}
    code: tuple[str, ...] = ()
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    windows: Windows | None = None
    rotary_percent: float | None = None
    activation_key: str = "hidden_act"
    activation: str = "silu"
    gated: bool = True
    one_activation: bool = False
    fixed: dict[str, Any] = {}
    why: str = ""
    refused: dict[str, tuple[Any, str]] = {}
    decoder: str = ""

    def check(self, config: HuggingFaceConfig) -> None:
        """UserError of a key that is not known, or whose value is not modelled."""
        read = (row["key"] for row in self.fields.values() if isinstance(row, dict))
        own = self.windows.keys if self.windows else frozenset[str]()
        config.check_keys(own.union(read, keys(self.keys), [self.activation_key]))
        for key, (value, why) in self.refused.items():
            if config.get(key, type(value), None) == value:
                raise config.refuse(key, why)
        config.check_fixed(self.fixed, self.why)

    def read(self, config: HuggingFaceConfig, record: type[Struct]) -> dict[str, Any]:
        """The `fields` of a file, as those of `record`."""
        found, types = dict[str, Any](), base_fields.field_types(record)
        for name, row in self.fields.items():
            if isinstance(row, dict):
                found[name] = convert(row, Read).value(config, found)
            else:
                found[name] = base_fields.convert(row, types[name], "", name)
        return found

    def activation_of(self, config: HuggingFaceConfig) -> Activation:
        """The activation; UserError where it is not modelled."""
        table, key = _ACTIVATIONS[self.gated], self.activation_key
        legal = (self.activation,) if self.one_activation else sorted(table)
        name = config.get(key, str, self.activation)
        if name not in legal:
            near = self.activation if self.one_activation else f"use one of {', '.join(legal)}"
            raise config.refuse(key, "is not a modelled activation", near)
        return table[name]


FieldsCode = Callable[[HuggingFaceConfig, Family, Mapping[str, Any]], dict[str, Any]]
"""Makes fields of a model that no single key gives, from those before them."""


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """Types of models that are refused, and why; of those with a tower that is not, the type
    of the decoder; rows to be `like`; a row
    for each type of a decoder, and for each type with a vision tower that is modelled."""

    refused: dict[str, str]
    with_vision: dict[str, str]
    parts: dict[str, dict[str, Any]]
    types: dict[str, dict[str, Any]]
    towers: dict[str, dict[str, Any]]


FILE: Final = json.decode(
    (packaged_configs() / "rules" / "model_families.json").read_bytes(), type=_File
)
_ROWS: Final = {**FILE.parts, **FILE.types, **FILE.towers}


def family_of(name: str) -> Family:
    """The family of a row's name."""
    return convert(_merged(_ROWS[name]), Family)


def _merged(own: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in (*(_merged(_ROWS[one]) for one in own.get("like", ())), own):
        for name, value in part.items():
            join = _JOINS.get(name)
            found[name] = join(found[name], value) if join and name in found else value
    found.pop("like", None)
    return found


_JOINS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "keys": lambda before, own: f"{before} {own}",
    "code": lambda before, own: [*before, *(one for one in own if one not in before)],
    "fields": lambda before, own: {**before, **own},
}
