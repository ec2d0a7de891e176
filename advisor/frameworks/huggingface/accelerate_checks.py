"""What Accelerate refuses of its YAML file and of the options of `accelerate launch`.

Source: accelerate 1.15.0 utils/dataclasses.py FullyShardedDataParallelPlugin and DeepSpeedPlugin,
utils/constants.py, commands/config/config_args.py.
"""

from typing import Any, Final

from advisor.base.rule import Match, Verdict
from advisor.frameworks.deepspeed.checks import DEVICES, OFFLOAD_SOURCE, ZERO_SOURCE
from advisor.frameworks.huggingface.options import (
    BACKEND,
    DEEPSPEED,
    FILE,
    FSDP,
    INSIDE,
    INSIDE_OFFLOAD,
)
from advisor.frameworks.option import names_in
from advisor.reading import key_rules
from advisor.reading.document_keys import Keys, as_whole_number

_PLUGIN: Final = "accelerate 1.15.0 utils/dataclasses.py FullyShardedDataParallelPlugin"
_CONSTANTS: Final = "accelerate 1.15.0 utils/constants.py"
_CONFIG: Final = "accelerate 1.15.0 commands/config/config_args.py"
_LAUNCH: Final = "accelerate 1.15.0 commands/launch.py"
POLICIES: Final = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
_STRATEGIES: Final = "FULL_SHARD SHARD_GRAD_OP NO_SHARD HYBRID_SHARD HYBRID_SHARD_ZERO2 1 2 3 4 5"
_CHOICES: Final = {
    "fsdp_auto_wrap_policy": POLICIES,
    "fsdp_sharding_strategy": tuple(_STRATEGIES.split()),
    "fsdp_state_dict_type": ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"),
    "fsdp_backward_prefetch": ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
}
_TYPES: Final = (
    *("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA"),
    *("MULTI_XPU", "DEEPSPEED", "FSDP", "XLA", "TPU", "MEGATRON_LM", "MULTI_HPU", "MULTI_NEURON"),
)
_VERSION: Final = f"{FSDP}.fsdp_version"
_FILE_OF_DEEPSPEED, *_ITS_KEYS = names_in(FILE, DEEPSPEED)
_ZERO_STAGE: Final = f"{DEEPSPEED}.zero_stage"
_OFFLOADS: Final = tuple(f"{DEEPSPEED}.offload_{of}_device" for of in ("optimizer", "param"))
_file: Final[dict[str, Any]] = {"given": lambda keys: keys.about["kind"] == "file"}


def _twice(keys: Keys) -> Match | None:
    """Keys that DeepSpeed's own file sets already."""
    both = [name for name in _ITS_KEYS if keys.has(f"{DEEPSPEED}.{name}")]
    if not both or not keys.has(f"{DEEPSPEED}.{_FILE_OF_DEEPSPEED}"):
        return None
    return Match(found=both, place=keys.where(f"{DEEPSPEED}.{both[0]}"))


def _loads_on_one(keys: Keys) -> bool:
    """Whether torchao's layers are loaded as FSDP spares host memory."""
    loads = keys.truth(f"{FSDP}.fsdp_cpu_ram_efficient_loading")
    if loads is None:  # the launcher's default is true, a plugin's in Python false
        loads = keys.about["kind"] in ("file", "command")
    is_ao = keys.get("mixed_precision") == "fp8" and keys.get(BACKEND) == "AO"
    return is_ao and any(keys.under(FSDP)) and loads


RULES: Final = (
    key_rules.unknown_names(
        "", names_in(FILE), "the config file had unknown keys", cutoff=0.6, source=_CONFIG, **_file
    ),
    key_rules.no_choice(
        "distributed_type", _TYPES, fix="FSDP", cutoff=0.4, also=("False",), source=_CONFIG, **_file
    ),
    key_rules.no_choice(
        "mixed_precision",
        ("no", "fp16", "bf16", "fp8"),
        fix="bf16",
        also=("False",),
        source="accelerate 1.15.0 utils/dataclasses.py PrecisionType",
        **_file,
    ),
    key_rules.key_rule(
        BACKEND,
        _loads_on_one,
        "torchao with FSDP and cpu_ram_efficient_loading is not supported",
        "fsdp_cpu_ram_efficient_loading: false (default: true)",
        fault="fp8",
        source="accelerate 1.15.0 accelerator.py",
    ),
    key_rules.illegal_values(
        (FSDP, DEEPSPEED),
        key_rules.is_section,
        "{key} = {value!r} must be a section",
        "write its keys below it",
        source=_CONFIG,
        **_file,
    ),
    key_rules.illegal_values(
        "num_processes",
        key_rules.is_whole,
        "num_processes = {value!r} must be a whole number",
        "one per GPU, e.g. 8",
        source=_LAUNCH,
        **_file,
    ),
    key_rules.unknown_names(
        FSDP,
        names_in(FILE, FSDP),
        f"{FSDP} has no such key; it is ignored",
        cutoff=0.6,
        also=[name.removeprefix("fsdp_") for name in names_in(FILE, FSDP)],
        verdict=Verdict.NO_EFFECT,
        source=_LAUNCH,
    ),
    *(
        key_rules.no_choice(
            f"{FSDP}.{name}", legal, cutoff=0.4, fold=str.upper, also=("NONE",), source=_CONSTANTS
        )
        for name, legal in _CHOICES.items()
    ),
    key_rules.illegal_values(
        _VERSION,
        lambda value: (as_whole_number(value) or 1) in (1, 2),
        "fsdp_version = {value} is neither 1 nor 2",
        "2",
        fault="fsdp_version",
        source=_PLUGIN,
    ),
    *key_rules.written("accelerate"),
    key_rules.illegal_values(
        (INSIDE, INSIDE_OFFLOAD),
        key_rules.is_boolean,
        "{name} = {value!r} must be a boolean",
        "true or false",
        source=_PLUGIN,
    ),
    key_rules.key_rule(
        f"{DEEPSPEED}.{_FILE_OF_DEEPSPEED}",
        _twice,
        f"{{found}} cannot be combined with {_FILE_OF_DEEPSPEED}, which already sets them",
        "drop {found}",
        source="accelerate 1.15.0 utils/dataclasses.py:1525",
    ),
    key_rules.illegal_values(
        _ZERO_STAGE,
        lambda value: as_whole_number(value) in (0, 1, 2, 3),
        "zero_stage = {value} must be 0, 1, 2 or 3",
        "use one of these; 3 shards everything",
        fault="zero_stage",
        source=ZERO_SOURCE,
    ),
    *(
        key_rules.no_choice(at, DEVICES, fix="cpu", fold=str.lower, source=OFFLOAD_SOURCE)
        for at in _OFFLOADS
    ),
)
"""Everything to be said of the file, or of the same options."""
