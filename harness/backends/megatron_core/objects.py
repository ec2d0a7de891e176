"""Megatron's own configuration objects out of settings: which of its options they are given."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

import torch
from megatron.core.transformer.enums import AttnBackend

from advisor.frameworks.megatron.options.table import option_of_field
from advisor.frameworks.megatron.raw import RawSettings
from advisor.models.layer_pattern import LayerPattern

_TYPES: Final = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.uint8,
}
"""Megatron-LM's names of number types (training/arguments.py)."""


def _pattern(text: str) -> int | list[int]:
    entries = LayerPattern(text).entries
    return entries if isinstance(entries, int) else list(map(int, entries))


_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "attention_backend": lambda name: AttnBackend[name],
    "window_size": lambda text: tuple(map(int, text.split(","))),
    "window_attn_skip_freq": _pattern,
    "no_rope_freq": _pattern,
    "moe_layer_freq": _pattern,
    "linear_attention_freq": _pattern,
    "hierarchical_context_parallel_sizes": lambda sizes: list(map(int, sizes)),
    # one for all layers is handed on as a name (core_transformer_config_from_args)
    "cp_comm_type": lambda names: names[0] if len(names) == 1 else list(names),
}
"""Options that the configuration has in another type than the command line."""


def keywords(settings: RawSettings, cls: type) -> dict[str, Any]:
    """Keyword arguments of one of Megatron's configuration classes: the options that `settings`
    were given, under the names and in the types of the installed release. What the class does not
    know is left out."""
    given, found = settings.given, {}
    known = {field.name: field.type for field in fields(cls)}
    for name, annotation in known.items():
        row = option_of_field(name)
        renamed = row is not None and row.name != name and row.name in known
        if row is not None and row.name in given and not renamed:
            found[name] = _read(row.name, given[row.name], annotation)
    return found


def _read(name: str, value: Any, annotation: object) -> Any:
    if value is None:
        return None
    if "dtype" in str(annotation):
        return _TYPES[value]
    read = _READ.get(name)
    if read is not None:
        return read(value)
    return list(value) if isinstance(value, tuple) else value
