"""What Accelerate refuses of its YAML file and of the options of `accelerate launch`.

Source: accelerate 1.15.0 utils/dataclasses.py FullyShardedDataParallelPlugin and DeepSpeedPlugin,
utils/constants.py, commands/config/config_args.py.
"""

from collections.abc import Iterator
from typing import Final

from advisor.reading.document_keys import Keys, finding, known, near
from advisor.reading.read_configuration import Finding, Level

FSDP: Final = "fsdp_config"
_PLUGIN: Final = "accelerate 1.15.0 utils/dataclasses.py FullyShardedDataParallelPlugin"
_CONSTANTS: Final = "accelerate 1.15.0 utils/constants.py"
_CONFIG: Final = "accelerate 1.15.0 commands/config/config_args.py"
_POLICIES: Final = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
_STRATEGIES: Final = (
    "FULL_SHARD",
    "SHARD_GRAD_OP",
    "NO_SHARD",
    "HYBRID_SHARD",
    "HYBRID_SHARD_ZERO2",
)
_STATE: Final = ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT")
_PREFETCH: Final = ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")
_DEVICES: Final = ("none", "cpu", "nvme")
_TYPES: Final = (
    "NO",
    "MULTI_CPU",
    "MULTI_GPU",
    "MULTI_NPU",
    "MULTI_MLU",
    "MULTI_SDAA",
    "MULTI_MUSA",
    "MULTI_XPU",
    "DEEPSPEED",
    "FSDP",
    "XLA",
    "TPU",
    "MEGATRON_LM",
    "MULTI_HPU",
    "MULTI_NEURON",
)
TOP: Final = (
    "compute_environment",
    "distributed_type",
    "mixed_precision",
    "use_cpu",
    "debug",
    "num_processes",
    "machine_rank",
    "num_machines",
    "gpu_ids",
    "main_process_ip",
    "main_process_port",
    "rdzv_backend",
    "same_network",
    "main_training_function",
    "enable_cpu_affinity",
    "fp8_config",
    "deepspeed_config",
    "fsdp_config",
    "parallelism_config",
    "megatron_lm_config",
    "mpirun_config",
    "downcast_bf16",
    "tpu_name",
    "tpu_zone",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "tpu_env",
    "tpu_vm",
    "command_file",
    "commands",
    "dynamo_config",
    "dynamo_backend",
    "fp16",
)
_FSDP_KEYS: Final = (
    "fsdp_version",
    "fsdp_offload_params",
    "fsdp_min_num_params",
    "fsdp_sharding_strategy",
    "fsdp_reshard_after_forward",
    "fsdp_auto_wrap_policy",
    "fsdp_transformer_layer_cls_to_wrap",
    "fsdp_backward_prefetch",
    "fsdp_backward_prefetch_policy",
    "fsdp_state_dict_type",
    "fsdp_forward_prefetch",
    "fsdp_use_orig_params",
    "fsdp_cpu_ram_efficient_loading",
    "fsdp_sync_module_states",
    "fsdp_activation_checkpointing",
    "fsdp_activation_checkpointing_offload",
    "fsdp_ignored_modules",
    "fsdp_limit_all_gathers",
)
_FILE_ALONE: Final = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "zero3_save_16bit_model",
)


def findings(keys: Keys) -> Iterator[Finding]:
    """Everything to be said of the file, or of the same options."""
    yield from _top(keys)
    yield from _names(keys)
    yield from _choices(keys)
    yield from _fsdp(keys)
    yield from _deepspeed(keys)


def _error(keys: Keys, rule: str, reason: str, fix: str, source: str, *at: str) -> Finding:
    return finding(keys, Level.ERROR, rule, reason, fix, source, *at)


def _top(keys: Keys) -> Iterator[Finding]:
    if keys.about.get("kind") != "file":
        return
    for name in dict.fromkeys(key.split(".")[0] for key in keys.values):
        if name not in TOP:
            meant = near(name, TOP, 0.6)
            yield _error(
                keys,
                "unknown_key",
                f"{name}: the config file had unknown keys",
                f"did you mean {meant}?" if meant else "drop it",
                _CONFIG,
                name,
            )
    kind = keys.get("distributed_type")
    if kind is not None and str(kind) not in (*_TYPES, "False"):
        meant = near(str(kind).upper(), _TYPES, 0.4)
        yield _error(
            keys,
            "distributed_type",
            f"distributed_type = {kind} is not known",
            f"did you mean {meant}?",
            _CONFIG,
            "distributed_type",
        )
    precision = keys.get("mixed_precision")
    if precision not in (None, False) and str(precision) not in ("no", "fp16", "bf16", "fp8"):
        yield _error(
            keys,
            "mixed_precision",
            f"mixed_precision = {precision} is none of no, fp16, bf16, fp8",
            "bf16",
            "accelerate 1.15.0 utils/dataclasses.py PrecisionType",
            "mixed_precision",
        )


def _names(keys: Keys) -> Iterator[Finding]:
    for name in keys.under(FSDP):
        if name in _FSDP_KEYS or f"fsdp_{name}" in _FSDP_KEYS:
            continue
        meant = near(name, _FSDP_KEYS, 0.6)
        yield finding(
            keys,
            Level.WARNING,
            "unknown_key",
            f"{name}: {FSDP} has no such key, and it is passed over",
            f"did you mean {meant}?" if meant else "drop it",
            "accelerate 1.15.0 commands/launch.py",
            f"{FSDP}.{name}",
        )


def _choices(keys: Keys) -> Iterator[Finding]:
    for name, legal in (
        ("fsdp_auto_wrap_policy", _POLICIES),
        ("fsdp_sharding_strategy", (*_STRATEGIES, *"12345")),
        ("fsdp_state_dict_type", _STATE),
        ("fsdp_backward_prefetch", _PREFETCH),
    ):
        value = keys.get(f"{FSDP}.{name}")
        if value is not None and str(value).upper() not in (*legal, "NONE"):
            meant = near(str(value).upper(), legal, 0.4)
            yield _error(
                keys,
                name,
                f"{name} = {value} is none of {', '.join(legal)}",
                f"did you mean {meant}?" if meant else legal[0],
                _CONSTANTS,
                f"{FSDP}.{name}",
            )


def _fsdp(keys: Keys) -> Iterator[Finding]:
    version = keys.get(f"{FSDP}.fsdp_version")
    number = keys.number(f"{FSDP}.fsdp_version") or 1
    if version is not None and number not in (1, 2):
        yield _error(
            keys,
            "fsdp_version",
            f"fsdp_version = {version} is neither 1 nor 2",
            "2",
            _PLUGIN,
            f"{FSDP}.fsdp_version",
        )
    yield from _reshard(keys, number)
    yield from _checkpointing(keys, number)
    if number == 2 and keys.truth(f"{FSDP}.fsdp_forward_prefetch"):
        yield _error(
            keys,
            "fsdp_forward_prefetch",
            "forward_prefetch is not yet implemented in FSDP2",
            "drop it, or fsdp_version: 1",
            _PLUGIN,
            f"{FSDP}.fsdp_forward_prefetch",
        )
    if number == 2 and keys.get(f"{FSDP}.fsdp_state_dict_type") == _STATE[1]:
        yield _error(
            keys,
            "fsdp_state_dict_type",
            "FSDP2 does not support LOCAL_STATE_DICT",
            "SHARDED_STATE_DICT",
            _PLUGIN,
            f"{FSDP}.fsdp_state_dict_type",
        )


def _reshard(keys: Keys, version: int) -> Iterator[Finding]:
    key = f"{FSDP}.fsdp_reshard_after_forward"
    value = keys.get(key)
    if value is None:
        return
    if version == 2 and keys.truth(key) is None:
        yield _error(
            keys,
            "fsdp_reshard_after_forward",
            f"fsdp_reshard_after_forward = {value} is not supported with FSDP2, which wants a "
            "boolean",
            "true shards again, as FULL_SHARD did",
            _PLUGIN,
            key,
        )
    elif version == 1 and keys.truth(key) is not None:
        yield _error(
            keys,
            "fsdp_reshard_after_forward",
            f"fsdp_reshard_after_forward = {value} is not supported with FSDP1, which wants a "
            "strategy",
            "fsdp_version: 2, or fsdp_sharding_strategy: FULL_SHARD",
            _PLUGIN,
            key,
        )


def _checkpointing(keys: Keys, version: int) -> Iterator[Finding]:
    checkpoint = f"{FSDP}.fsdp_activation_checkpointing"
    offload = f"{checkpoint}_offload"
    for key in (checkpoint, offload):
        value = keys.get(key)
        if value is not None and keys.truth(key) is None:
            yield _error(
                keys,
                "wrong_type",
                f"{key.rpartition('.')[2]} = {value!r} is no boolean",
                "true or false",
                _PLUGIN,
                key,
            )
    if not keys.truth(offload):
        return
    asked = keys.values.get(checkpoint)
    if not keys.truth(checkpoint) and (asked is None or known(asked.value)):
        yield _error(
            keys,
            "activation_checkpointing_offload",
            "`activation_checkpointing_offload=True` requires `activation_checkpointing=True`",
            "fsdp_activation_checkpointing: true",
            _PLUGIN,
            offload,
        )
    elif version != 2:
        yield _error(
            keys,
            "activation_checkpointing_offload",
            "`activation_checkpointing_offload=True` requires `fsdp_version=2`",
            "fsdp_version: 2",
            _PLUGIN,
            offload,
        )


def _deepspeed(keys: Keys) -> Iterator[Finding]:
    section = "deepspeed_config"
    if keys.has(f"{section}.deepspeed_config_file"):
        both = [name for name in _FILE_ALONE if keys.has(f"{section}.{name}")]
        if both:
            yield _error(
                keys,
                "deepspeed_config_file",
                f"{', '.join(both)} beside deepspeed_config_file, which says it all",
                f"drop {', '.join(both)}",
                "accelerate 1.15.0 utils/dataclasses.py:1525",
                f"{section}.{both[0]}",
            )
    stage = keys.number(f"{section}.zero_stage")
    value = keys.get(f"{section}.zero_stage")
    if value is not None and stage not in (0, 1, 2, 3):
        yield _error(
            keys,
            "zero_stage",
            f"zero_stage = {value} is none of 0, 1, 2, 3",
            "3 shards everything",
            "DeepSpeed 0.19.8 runtime/zero/config.py",
            f"{section}.zero_stage",
        )
    for name in ("offload_optimizer_device", "offload_param_device"):
        key = f"{section}.{name}"
        device = keys.get(key)
        if device is not None and str(device).lower() not in _DEVICES:
            yield _error(
                keys,
                name,
                f"{name} = {device} is none of {', '.join(_DEVICES)}",
                "cpu",
                "DeepSpeed 0.19.8 runtime/zero/offload_config.py",
                key,
            )
    device = str(keys.get(f"{section}.offload_param_device") or "none").lower()
    if device in ("cpu", "nvme") and stage in (0, 1, 2):
        yield finding(
            keys,
            Level.WARNING,
            "offload_param.stage",
            f"offload_param_device is valid only with zero_stage 3, and it is {stage}",
            "zero_stage: 3, or offload_param_device: none",
            "DeepSpeed 0.19.8 runtime/zero/offload_config.py",
            f"{section}.offload_param_device",
        )
