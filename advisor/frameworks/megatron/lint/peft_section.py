"""Adapters of a configuration of Megatron Bridge: its section peft, a recipe's or a call's.

Source: Megatron Bridge 0.6.2 peft/lora.py, canonical_lora.py and dora.py, recipes/utils
(default_peft_config); recipes that train adapters have peft or lora in their names.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from advisor.frameworks.megatron.lint.settings import Fields, ReadSettings, convert
from advisor.frameworks.names import Framework
from advisor.job.tuning import Adapter
from advisor.layers.megatron.adapters import CANONICAL, LINEAR_NAMES
from advisor.reading.document_keys import as_whole_number, known, truth
from advisor.reading.python_source import Call, Unknown
from advisor.reading.read_configuration import ReadValue

_NAME: Final = "peft"
_CLASSES: Final = {
    "LoRA": Adapter.LORA,
    "VLMLoRA": Adapter.LORA,
    "CanonicalLoRA": Adapter.LORA,
    "DoRA": Adapter.DORA,
}
_MAKER: Final = "default_peft_config"
_FIELD: Final = re.compile(rf"(?:^|\.){_NAME}\.(\w+)$")
_RECIPE: Final = re.compile(r"(?:^|_)(?:peft|lora)(?:_|$)")
_TARGETS: Final = {
    "CanonicalLoRA": (*sum(CANONICAL.values(), ()), "linear_proj", "linear_fc2"),
}
_SWITCHES: Final = (
    "share_expert_adapters",
    "normalize_moe_lora",
    "sequence_parallel_input_regather",
)


def put_adapter(read: ReadSettings, call: Call) -> None:
    """A call of Python that makes a recipe's peft."""
    last = call.name.rpartition(".")[2]
    if last not in (*_CLASSES, _MAKER):
        return
    scheme = next((one.value for one in call.positional), None)
    kind = _CLASSES.get(last, Adapter.DORA if scheme == "dora" else Adapter.LORA)
    if last == _MAKER and (scheme is None or scheme == "none"):
        return
    read.put(_NAME, str(kind), last, call.place)
    read.put_loose(f"{_NAME}._target_", last, last, call.place)
    for name, value in call.keywords.items():
        plain = "$" + value.value.text if isinstance(value.value, Unknown) else value.value
        read.put_loose(f"{_NAME}.{name}", plain, f"{_NAME}.{name}", value.place)


def put_section(read: ReadSettings, section: Mapping[str, Any], where: Any) -> None:
    """A tree's section peft."""
    last = str(section.get("_target_", "LoRA")).rpartition(".")[2]
    if last in _CLASSES:
        read.put(_NAME, str(_CLASSES[last]), _NAME, where(_NAME))
    for name, value in section.items():
        read.put_loose(f"{_NAME}.{name}", value, f"{_NAME}.{name}", where(_NAME, name))


def adapter_values(read: ReadSettings) -> Fields:
    """Fields of `tuning`, with what Bridge's classes have where nothing is said."""
    said = {match[1]: one for one in read.loose.values() if (match := _FIELD.search(one.written))}
    adapter = _adapter(read, said)
    if adapter is None or read.given.framework == Framework.MEGATRON_LM:
        return
    yield "tuning.adapter", adapter
    rank = said.get("dim")
    number = as_whole_number(rank.value) if rank is not None else None
    yield (
        "tuning.rank",
        rank.meaning(number) if rank and number else read.omitted(32, "no peft.dim"),
    )
    if "dropout" in said and isinstance(said["dropout"].value, int | float):
        yield "tuning.dropout", said["dropout"].meaning(float(said["dropout"].value))
    kind = read.loose.get(f"{_NAME}._target_")
    usual = _TARGETS.get(str(kind.value).rpartition(".")[2] if kind else "", LINEAR_NAMES[:4])
    targets = said.get("target_modules")
    if targets is None or not known(targets.value):
        yield "tuning.target_modules", read.omitted(usual, "no peft.target_modules")
    else:
        names = (one.rpartition(".")[2] for one in _names(targets.value))
        yield "tuning.target_modules", targets.meaning(tuple(dict.fromkeys(names)))
    for name in _SWITCHES:
        if name in said and (value := truth(said[name].value)) is not None:
            yield f"tuning.{name}", said[name].meaning(value)


def _names(value: Any) -> tuple[str, ...]:
    found = convert("recompute_modules", value, _NAME)  # a list of names as well
    return found if isinstance(found, tuple) else ()


def _adapter(read: ReadSettings, said: Mapping[str, ReadValue]) -> ReadValue | None:
    """Which kind, and where it is said: in a call, a field of it, or the recipe's name."""
    if _NAME in read.given.values:
        kind = read.given.values[_NAME]
        return kind and ReadValue(value=kind, written=_NAME, place=read.places[_NAME])
    if said:
        return next(iter(said.values())).meaning(str(Adapter.LORA))
    named = next((text for text in read.texts if _RECIPE.search(text)), "")
    return read.omitted(str(Adapter.LORA), named) if named else None
