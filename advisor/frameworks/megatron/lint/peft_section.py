"""Adapters of a configuration of Megatron Bridge: its section peft, a recipe's or a call's.

Source: Megatron Bridge 0.6.2 peft/lora.py, canonical_lora.py and dora.py, recipes/utils
(default_peft_config); recipes that train adapters have peft or lora in their names.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from advisor.base.errors import UserError
from advisor.base.place import Place
from advisor.frameworks.megatron.lint.settings import Fields, ReadSettings, convert
from advisor.frameworks.names import Framework
from advisor.job.tuning import Adapter
from advisor.layers.megatron.adapters import CANONICAL, LINEAR_NAMES, PEFT_SWITCHES
from advisor.reading.python_source import Call, Unknown

_NAME: Final = "peft"
_PARTS: Final = (*sum(CANONICAL.values(), ()), "linear_proj", "linear_fc2")
_CLASSES: Final[Mapping[str, tuple[Adapter, tuple[str, ...]]]] = {
    "LoRA": (Adapter.LORA, LINEAR_NAMES[:4]),
    "VLMLoRA": (Adapter.LORA, LINEAR_NAMES[:4]),
    "CanonicalLoRA": (Adapter.LORA, _PARTS),
    "DoRA": (Adapter.DORA, LINEAR_NAMES[:4]),
}
"""The classes of adapters, and the linear layers that have one by default."""
_FIELD: Final = re.compile(rf"(?:^|\.){_NAME}\.(\w+)$")
_RECIPE: Final = re.compile(r"(?:^|_)(?:peft|lora)(?:_|$)")
_OURS: Final = {"dim": ("rank", "num_layers"), "dropout": ("dropout", "hidden_dropout")} | {
    name: (name, "bf16") for name in PEFT_SWITCHES
}
"""Fields of ours, each with an option of Megatron that has the same type."""


def put_adapter(read: ReadSettings, call: Call) -> None:
    """A call of Python that makes a recipe's peft."""
    last, scheme = call.name.rpartition(".")[2], next((x.value for x in call.positional), None)
    if last == "default_peft_config" and scheme not in (None, "none"):
        last = "DoRA" if scheme == "dora" else "LoRA"
    if last in _CLASSES:
        plain = {
            name: "$" + one.value.text if isinstance(one.value, Unknown) else one.value
            for name, one in call.keywords.items()
        }
        put_section(read, {**plain, "_target_": last}, lambda *_: call.place)


def put_section(
    read: ReadSettings, section: Mapping[str, Any], where: Callable[..., Place]
) -> None:
    """The section of a tree, or what a call says of it."""
    kind = str(section.get("_target_", "LoRA")).rpartition(".")[2]
    if kind in _CLASSES:
        read.put(_NAME, kind, _NAME, where(_NAME))
    for name, value in section.items():
        read.put_loose(f"{_NAME}.{name}", value, f"{_NAME}.{name}", where(_NAME, name))


def adapter_values(read: ReadSettings) -> Fields:
    """Fields of `tuning`, with what Bridge's classes have where nothing is said. A section with a
    switch is another program's (NeMo-RL)."""
    said = {match[1]: x for x in read.loose.values() if (match := _FIELD.search(x.written))}
    named = next((text for text in read.texts if _RECIPE.search(text)), "")
    kind = read.given.values.get(_NAME, "LoRA" if said or named else None)
    if "enabled" in said or kind is None or read.given.framework == Framework.MEGATRON_LM:
        return
    adapter, usual = _CLASSES[kind]
    at = next(iter(said.values()), read.omitted(kind, named))
    yield "tuning.adapter", at.meaning(str(adapter))
    yield "tuning.rank", read.omitted(32, "no peft.dim")
    yield "tuning.target_modules", read.omitted(usual, "no peft.target_modules")
    for name, (field, alike) in _OURS.items():
        if name in said and "$" not in str(said[name].value):
            try:
                yield f"tuning.{field}", said[name].meaning(convert(alike, said[name].value, name))
            except UserError:
                continue
    targets = (
        convert("recompute_modules", said["target_modules"].value, _NAME)
        if "target_modules" in said
        else None
    )
    if isinstance(targets, tuple) and "$" not in str(targets):
        names = dict.fromkeys(one.rpartition(".")[2] for one in targets)
        yield "tuning.target_modules", said["target_modules"].meaning(tuple(names))
