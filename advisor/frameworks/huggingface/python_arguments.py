"""TrainingArguments in Python source, and the calls next to it that concern checkpointing."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from advisor.frameworks.huggingface.options import CHECKPOINTING, FP8, FSDP
from advisor.reading.python_source import Call, PythonSource, Unknown, Way
from advisor.reading.read_configuration import Keys, put_mapping

_ARGUMENTS: Final = re.compile(
    r"(?:TrainingArguments|(?:SFT|DPO|GRPO|KTO|ORPO|PPO|Reward|CPO)Config)$"
)
_ENABLES: Final = re.compile(r"\.(gradient|activation)_checkpointing_enable$")
_ADAPTER: Final = re.compile(r"(?:\bget_peft_model|LoraConfig)$")
_INPUT_GRADIENTS: Final = re.compile(
    r"(\.enable_input_require_grads|\bprepare_model_for_kbit_training)$"
)
_RECIPE: Final = re.compile(r"\b(TE|AO|MSAMP|FP8)RecipeKwargs$")
_LOADED: Final = ("use_cache", "attn_implementation", "dtype", "torch_dtype", "model_max_length")
_QUANTIZED: Final = ("load_in_8bit", "load_in_4bit", "bnb_4bit_use_double_quant")
_LOADS: Final = re.compile(r"(Model|For[A-Z])\w*\.from_pretrained$")
_CACHE: Final = re.compile(r"\.config\.use_cache$")


def in_python(source: PythonSource) -> Iterator[Keys]:
    """The arguments of each way through a module that makes some."""
    seen = []
    for way in source.ways:
        keys = _of(way)
        if keys is None:
            continue
        what = {key: (str(given.value), given.place) for key, given in keys.values.items()}
        if what not in seen:
            seen.append(what)
            yield keys


def _of(way: Way) -> Keys | None:
    keys = Keys(place=way.place)
    keys.about["kind"] = "part"
    found = False
    for call in way.calls:
        if _ARGUMENTS.search(call.name):
            keys.place, keys.about["kind"] = call.place, "python"
            keys.about["call"] = call.name.rpartition(".")[2]
            found = True
            for name, value in call.keywords.items():
                _put(keys, name, value.value, value)
        elif call.name.endswith("Trainer"):
            keys.about["trainer"] = call.name
            model = call.keywords.get("model")
            if model is not None and isinstance(model.value, str):
                keys.put("model_name_or_path", model.value, model.place)
        elif _ENABLES.search(call.name):
            found = True
            keys.put(CHECKPOINTING[0], True, call.place, call.name)
            _put_enabled(keys, call)
        elif _INPUT_GRADIENTS.search(call.name):
            keys.about["inputs"] = "require gradients"
        elif _ADAPTER.search(call.name):
            if call.name.endswith("get_peft_model"):
                keys.about["wraps"] = call.name
            keys.put("peft_config", call.name.rpartition(".")[2], call.place, "peft")
            for name, value in call.keywords.items():
                of_unsloth = name == "use_gradient_checkpointing"
                key = "use_unsloth_gc" if of_unsloth else f"peft.{name}"
                keys.put(key, value.value, value.place, name)
        elif call.name.endswith(("BitsAndBytesConfig", "from_pretrained")):
            _put_loaded(keys, call)
        elif call.name.endswith("FullyShardedDataParallelPlugin"):
            found = True
            for name, value in call.keywords.items():
                key = name if name.startswith("fsdp_") else f"fsdp_{name}"
                keys.put(f"{FSDP}.{key}", value.value, value.place, name)
            keys.about["launcher"] = "accelerate"
        elif recipe := _RECIPE.search(call.name):
            found = True
            said = {name: value.value for name, value in call.keywords.items()}
            if isinstance(written := said.get("backend"), str):
                said["backend"] = written.upper()  # as FP8RecipeKwargs does
            _put(keys, FP8, {"backend": recipe[1].replace("FP8", "TE"), **said}, call)
        elif call.name.endswith("Accelerator") and "mixed_precision" in call.keywords:
            keys.put("mixed_precision", call.keywords["mixed_precision"].value, call.place)
    for name, value in way.assigned.items():
        if _CACHE.search(name):
            keys.put("use_cache", value.value, value.place)
        last = name.rpartition(".")[2]
        if name.count(".") == 1 and last in CHECKPOINTING and found:
            keys.put(last, value.value, value.place, name)
    return keys if found else None


def _put(keys: Keys, name: str, value: object, given: object) -> None:
    place = getattr(given, "place", keys.place)
    if isinstance(value, Mapping) and value:
        put_mapping(keys, value, place, name)
    else:
        keys.put(name, value, place)


def _put_loaded(keys: Keys, call: Call) -> None:
    """What a model is loaded with, and a tokenizer's length."""
    for name in (*_LOADED, *_QUANTIZED):
        given = call.keywords.get(name)
        if given is None:
            continue
        value = given.value
        if isinstance(value, Unknown):
            element = re.fullmatch(r"torch\.(\w+)", value.text)
            value = element[1] if element else value
        keys.put(name, value, given.place)
    if _LOADS.search(call.name) and call.positional and isinstance(call.positional[0].value, str):
        keys.put("model_name_or_path", call.positional[0].value, call.positional[0].place)


def _put_enabled(keys: Keys, call: Call) -> None:
    for name in CHECKPOINTING:
        given = call.keywords.get(f"{name}_kwargs")
        if given is not None and isinstance(given.value, Mapping):
            put_mapping(keys, given.value, given.place, f"{name}_kwargs")
