"""Access to one Hugging Face config.json, and what is known of its keys.

What is known stands in configs/rules/config_json.json, with its source.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, json

from advisor.base.configuration import packaged_configs
from advisor.base.documents import read_json
from advisor.base.errors import UserError, show
from advisor.base.fields import convert


def keys(words: str) -> frozenset[str]:
    """The names in a text."""
    return frozenset(words.split())


class _Known(Struct, frozen=True):
    """Keys that change neither the size of a weight nor what training keeps (token ids,
    initialization, tolerances, rotary frequencies, labels of other heads, generation, bookkeeping);
    values that leave a feature off, all others of the key are refused; and why, where it is known.
    """

    neutral: frozenset[str]
    off: dict[str, tuple[object, ...]]
    reasons: dict[str, str]


KNOWN: Final = json.decode(
    (packaged_configs() / "rules" / "config_json.json").read_bytes(), type=_Known
)


class HuggingFaceConfig(Struct, frozen=True, kw_only=True):
    """Keys and values of one config.json."""

    path: Path
    values: dict[str, object]

    def get(self, key: str, annotation: Any, default: Any) -> Any:
        """Value of a key, type-checked; `default` where it is absent or null."""
        value = self.values.get(key)
        return default if value is None else convert(value, annotation, self.path, key)

    def positive(self, key: str, default: int | None = None) -> int:
        """A positive integer; required where there is no default."""
        number: int | None = self.get(key, int, default)
        if number is None:
            raise self.refuse(key, "is missing")
        if number < 1:
            raise self.refuse(key, "must be at least 1")
        return number

    def rotary_percent(self, default: float) -> float:
        """Share of a head that is rotated: a key of its own, or inside rope_parameters."""
        nested = self.values.get("rope_parameters")
        inside = nested.get("partial_rotary_factor") if isinstance(nested, dict) else None
        default = inside if isinstance(inside, int | float) else default
        return float(self.get("partial_rotary_factor", float, default))

    def check_fixed(self, fixed: Mapping[str, object], why: str) -> None:
        """Refuse keys with another value than the only one that is modelled."""
        for key, value in fixed.items():
            if self.values.get(key, value) != value:
                legal = "null" if value is None else str(value).lower()
                raise self.refuse(key, f"must be {legal}: {why}")

    def refuse(self, key: str, relation: str, nearest: str = "") -> UserError:
        """The error about one key."""
        return UserError(
            f"{self.path}: {key}", show(self.values.get(key, "(none)")), relation, nearest
        )

    def check_architecture(self) -> None:
        """Refuse what is no causal language model: its head has another size."""
        for name in self.get("architectures", tuple[str, ...], ()):
            if not name.endswith(("ForCausalLM", "LMHeadModel")):
                raise self.refuse("architectures", "is not a causal language model (…ForCausalLM)")

    def check_keys(self, read: frozenset[str]) -> None:
        """Refuse every key that may change memory and is neither read nor switched off."""
        for key, value in self.values.items():
            if key in read or key in KNOWN.neutral or key.startswith("_"):
                continue
            if value is None or value in KNOWN.off.get(key, ()):
                continue
            reason = KNOWN.reasons.get(key, "is unknown and may change memory")
            raise self.refuse(key, reason, "remove the key if it has no effect")

    @property
    def model_name(self) -> str:
        """Name of the file, or of its folder where the file is a plain config.json."""
        if self.path.name != "config.json":
            return self.path.stem
        return self.path.resolve().parent.name or "model"


def read_config(path: Path) -> HuggingFaceConfig:
    """The JSON object in a file, Infinity and NaN as Python writes them among its values; UserError
    where it is broken or something else."""
    return HuggingFaceConfig(path=path, values=read_json(path, foreign=True))
