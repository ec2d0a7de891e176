"""What Accelerate refuses of its YAML file and of the options of `accelerate launch`.

Source: accelerate 1.15.0 utils/dataclasses.py FullyShardedDataParallelPlugin and DeepSpeedPlugin,
utils/constants.py, commands/config/config_args.py.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from advisor.base.rule import Finding, Verdict
from advisor.frameworks.deepspeed.checks import DEVICES, OFFLOAD_SOURCE, ZERO_SOURCE
from advisor.frameworks.huggingface.options import (
    DEEPSPEED,
    FILE,
    FSDP,
    INSIDE,
    INSIDE_OFFLOAD,
    RESHARD,
)
from advisor.frameworks.option import names_in
from advisor.reading.document_keys import Keys, known, near, whole
from advisor.reading.key_checks import illegal_values, is_boolean, no_choice, unknown_names

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
_PRECISIONS: Final = ("no", "fp16", "bf16", "fp8")
_TYPES: Final = (
    *("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA"),
    *("MULTI_XPU", "DEEPSPEED", "FSDP", "XLA", "TPU", "MEGATRON_LM", "MULTI_HPU", "MULTI_NEURON"),
)


def findings(keys: Keys) -> Iterator[Finding]:
    """Everything to be said of the file, or of the same options."""
    if keys.about["kind"] == "file":
        yield from _top(keys)
        yield from _types(keys)
    names, reason = names_in(FILE, FSDP), f"{FSDP} has no such key; it is ignored"
    yield from unknown_names(
        keys,
        FSDP,
        names,
        reason,
        _LAUNCH,
        verdict=Verdict.NO_EFFECT,
        cutoff=0.6,
        also=[name.removeprefix("fsdp_") for name in names],
    )
    for name, legal in _CHOICES.items():
        yield from no_choice(
            keys, f"{FSDP}.{name}", legal, _CONSTANTS, cutoff=0.4, fold=str.upper, also=("NONE",)
        )
    yield from _fsdp(keys)
    yield from _checkpointing(keys)
    yield from _deepspeed(keys)


def _top(keys: Keys) -> Iterator[Finding]:
    known, reason = names_in(FILE), "the config file had unknown keys"
    yield from unknown_names(keys, "", known, reason, _CONFIG, cutoff=0.6)
    kind, rule = keys.get("distributed_type"), "distributed_type"
    if kind is not None and str(kind) not in (*_TYPES, "False"):
        meant = near(str(kind).upper(), _TYPES, 0.4)
        fix = f"did you mean {meant}?" if meant else "FSDP"
        yield keys.error(rule, f"{rule} = {kind} is not known", fix, _CONFIG, rule)
    source = "accelerate 1.15.0 utils/dataclasses.py PrecisionType"
    yield from no_choice(keys, "mixed_precision", _PRECISIONS, source, fix="bf16", also=("False",))


def _types(keys: Keys) -> Iterator[Finding]:
    reason, fix = "{key} = {value!r} must be a section", "write its keys below it"
    yield from illegal_values(keys, (FSDP, DEEPSPEED), _is_section, reason, fix, _CONFIG)
    reason, fix = "num_processes = {value!r} must be a whole number", "one per GPU, e.g. 8"
    yield from illegal_values(keys, ("num_processes",), _is_whole, reason, fix, _LAUNCH)


def _is_section(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_whole(value: Any) -> bool:
    return whole(value) is not None


def _fsdp(keys: Keys) -> Iterator[Finding]:
    at, reason = f"{FSDP}.fsdp_version", "fsdp_version = {value} is neither 1 nor 2"
    yield from illegal_values(keys, (at,), _is_version, reason, "2", _PLUGIN, "fsdp_version")
    version, reshard, rule = _version(keys), keys.get(RESHARD), "fsdp_reshard_after_forward"
    unsupported = f"{rule} = {reshard} is not supported with FSDP{version}"
    if version == 2 and reshard is not None and keys.truth(RESHARD) is None:
        reason, fix = (
            f"{unsupported}, which needs true or false",
            "use true: it reshards after the forward, as FULL_SHARD does",
        )
        yield keys.error(rule, reason, fix, _PLUGIN, RESHARD)
    if version == 1 and keys.truth(RESHARD) is not None:
        reason = f"{unsupported}, which needs a strategy"
        fix = "fsdp_version: 2, or fsdp_sharding_strategy: FULL_SHARD"
        yield keys.error(rule, reason, fix, _PLUGIN, RESHARD)
    rule = "fsdp_forward_prefetch"
    if version == 2 and keys.truth(f"{FSDP}.{rule}"):
        reason, fix = (
            "forward_prefetch is not yet implemented in FSDP2",
            "drop it, or fsdp_version: 1",
        )
        yield keys.error(rule, reason, fix, _PLUGIN, f"{FSDP}.{rule}")
    rule = "fsdp_state_dict_type"
    if version == 2 and keys.get(f"{FSDP}.{rule}") == "LOCAL_STATE_DICT":
        reason, fix = "FSDP2 does not support LOCAL_STATE_DICT", "SHARDED_STATE_DICT"
        yield keys.error(rule, reason, fix, _PLUGIN, f"{FSDP}.{rule}")


def _version(keys: Keys) -> int:
    return keys.number(f"{FSDP}.fsdp_version") or 1


def _is_version(value: Any) -> bool:
    return (whole(value) or 1) in (1, 2)


def _checkpointing(keys: Keys) -> Iterator[Finding]:
    at, reason = (INSIDE, INSIDE_OFFLOAD), "{name} = {value!r} must be a boolean"
    yield from illegal_values(keys, at, is_boolean, reason, "true or false", _PLUGIN)
    if not keys.truth(INSIDE_OFFLOAD):
        return
    asked, rule = keys.values.get(INSIDE), "activation_checkpointing_offload"
    if not keys.truth(INSIDE) and (asked is None or known(asked.value)):
        needs, fix = "activation_checkpointing=True", "fsdp_activation_checkpointing: true"
    elif _version(keys) != 2:
        needs, fix = "fsdp_version=2", "fsdp_version: 2"
    else:
        return
    yield keys.error(rule, f"`{rule}=True` requires `{needs}`", fix, _PLUGIN, INSIDE_OFFLOAD)


def _deepspeed(keys: Keys) -> Iterator[Finding]:
    file, *others = names_in(FILE, DEEPSPEED)
    both = [name for name in others if keys.has(f"{DEEPSPEED}.{name}")]
    if both and keys.has(f"{DEEPSPEED}.{file}"):
        reason = f"{', '.join(both)} cannot be combined with {file}, which already sets them"
        fix, source = f"drop {', '.join(both)}", "accelerate 1.15.0 utils/dataclasses.py:1525"
        yield keys.error(file, reason, fix, source, f"{DEEPSPEED}.{both[0]}")
    at, reason = f"{DEEPSPEED}.zero_stage", "zero_stage = {value} must be 0, 1, 2 or 3"
    fix, rule = "use one of these; 3 shards everything", "zero_stage"
    yield from illegal_values(keys, (at,), _is_stage, reason, fix, ZERO_SOURCE, rule)
    stage, source = keys.number(at), OFFLOAD_SOURCE
    optimizer, parameters = (f"{DEEPSPEED}.offload_{of}_device" for of in ("optimizer", "param"))
    for at in (optimizer, parameters):
        yield from no_choice(keys, at, DEVICES, source, fix="cpu", fold=str.lower)
    if str(keys.get(parameters)).lower() in DEVICES[1:] and stage in (0, 1, 2):
        reason = f"offload_param_device is valid only with zero_stage 3, but zero_stage = {stage}"
        fix = "zero_stage: 3, or offload_param_device: none"
        yield keys.warning("offload_param.stage", reason, fix, source, parameters)


def _is_stage(value: Any) -> bool:
    return whole(value) in (0, 1, 2, 3)
