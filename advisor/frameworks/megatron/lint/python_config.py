"""Reads recipes of Megatron Bridge and NeMo 2 written in Python, by their assignments and calls."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from advisor.frameworks.megatron.lint import yaml_config
from advisor.frameworks.megatron.lint.peft_section import put_adapter
from advisor.frameworks.megatron.lint.settings import KINDS, RENAMED, ReadSettings
from advisor.frameworks.names import Framework
from advisor.reading.model_names import named_model
from advisor.reading.python_source import Call, PythonSource, Unknown, Value, Way

_PROVIDER: Final = re.compile(r"(?:Provider\w*|TransformerConfig|Strategy|Config\w*|Plugin\w*)$")
_WHOLE: Final = ("TransformerConfig", "MLATransformerConfig", "GPTModelProvider", "GPTConfig")
"""Classes below which no recipe lies: what a call does not say is their default."""
_RECIPE: Final = re.compile(r"(?:_config|_recipe|pretrain|finetune)$")
_MODEL_PATH: Final = re.compile(
    r"(?:^|\.)(?:model|model\.config|model_cfg|strategy|trainer\.strategy)\.(\w+)$"
)
_MIXED_PRECISION: Final = re.compile(r"\w*(?:bf|fp)16_(?:with_\w+_)?mixed")
"""Functions that make a precision, under the names that Bridge takes as text."""
_PROVIDER_NAME: Final = re.compile(r"(?:^|\.)(?:model_cfg|model_config|provider|model)\.(\w+)$")


def read_ways(source: PythonSource) -> Iterator[tuple[ReadSettings, Way]]:
    """The settings of each way that has some."""
    framework = _framework(source)
    if framework is None:
        return
    seen = []
    for way in source.ways:
        read = ReadSettings(place=way.place)
        read.given.framework = framework
        read.given.version = "2" if framework == Framework.NEMO else ""
        for call in way.calls:
            put_adapter(read, call)
            _put_call(read, call)
        for name, value in way.assigned.items():
            _put_assignment(read, name, value)
        read.place = min(read.places.values(), default=way.place)
        calls = [call.name for call in way.calls]
        calls += [str(one.value) for call in way.calls for one in _checkpoints(call)]
        read.texts = tuple(calls) if named_model(calls) else (source.file, *source.imports)
        if read and (read.given.values, read.places) not in seen:
            seen.append((read.given.values, read.places))
            yield read, way


def _checkpoints(call: Call) -> list[Value]:
    """What a call names that takes a model from the Hugging Face hub."""
    named = [one for name, one in call.keywords.items() if name.startswith("hf_")]
    return [*named, *call.positional * call.name.endswith("from_hf_pretrained")]


def _framework(source: PythonSource) -> Framework | None:
    if any(name.startswith("megatron.bridge") for name in source.imports):
        return Framework.MEGATRON_BRIDGE
    if any(name.split(".")[0] in ("nemo", "nemo_run") for name in source.imports):
        return Framework.NEMO
    return None


def _put_call(read: ReadSettings, call: Call) -> None:
    last = call.name.rpartition(".")[2]
    if _MIXED_PRECISION.fullmatch(last):
        read.put_loose(yaml_config.MIXED_PRECISION, last, last, call.place)
        yaml_config.put_mixed_precision(read, last, call.place)
    configures = _PROVIDER.search(last) or _RECIPE.search(last) or last in ("Partial", "Config")
    if last in ("dict", "update") or not configures:
        return
    read.is_whole |= last in _WHOLE and "num_layers" in call.keywords
    for name, value in call.keywords.items():
        read.put_loose(name, _plain(value.value), name, value.place)
        _put_value(read, name, value)


def _put_assignment(read: ReadSettings, name: str, value: Value) -> None:
    given, whose = read.given.values, name.rpartition(".")[2]
    if whose == "peft" and (value.value is None or "peft" in given):  # which its call has said
        given["peft"] = value.value and given["peft"]
        return
    if "." in name:
        read.put_loose(name.rpartition(".")[2], _plain(value.value), name, value.place)
    if name.rpartition(".")[2] == yaml_config.MIXED_PRECISION:
        if isinstance(value.value, str):
            yaml_config.put_mixed_precision(read, value.value, value.place)
        return
    match = _MODEL_PATH.search(name) or _PROVIDER_NAME.search(name)
    field = match[1] if match else yaml_config.field_in_section(name)
    if field:
        _put_value(read, field, value)


def _put_value(read: ReadSettings, name: str, value: Value) -> None:
    """A field as Python gives it: None takes an earlier value back."""
    field = RENAMED.get(name, name)
    if name == "precision_config" and isinstance(value.value, str):
        yaml_config.put_mixed_precision(read, value.value, value.place)
        return
    if field not in KINDS:
        return
    if value.value is None:
        read.given.values[field] = None
        read.given.unresolved.pop(field, None)
        read.places.pop(field, None)
        return
    plain = _plain(value.value)
    (read.passed.add if value.passed else read.passed.discard)(field)
    if not isinstance(plain, Mapping):
        yaml_config.put_field(read, name, plain, value.place)


def _plain(value: Any) -> Any:
    """An unknown expression as given.put wants it, `AttnBackend.flash` as flash."""
    if isinstance(value, Unknown):
        enum = re.fullmatch(r"(?:\w+\.)*AttnBackend\.(\w+)", value.text)
        return enum[1] if enum else "$" + value.text
    if isinstance(value, list) and any(isinstance(item, Unknown) for item in value):
        return "$" + str([str(item) for item in value])
    return value
