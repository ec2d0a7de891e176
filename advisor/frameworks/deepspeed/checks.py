"""What DeepSpeed refuses or ignores of its JSON configuration.

Source: DeepSpeed 0.19.8 runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py,
runtime/activation_checkpointing/config.py and checkpointing.py, runtime/pipe/engine.py.
"""

from collections.abc import Iterator
from typing import Final

from advisor.frameworks.deepspeed.config_keys import (
    AC,
    AC_KEYS,
    OFFLOAD_KEYS,
    REMOVED,
    TOP_KEYS,
    ZERO,
    ZERO_KEYS,
)
from advisor.reading.document_keys import Keys, finding, near
from advisor.reading.read_configuration import Finding, Level

_CONFIG: Final = "DeepSpeed 0.19.8 runtime/config.py"
_ZERO_SOURCE: Final = "DeepSpeed 0.19.8 runtime/zero/config.py"
_OFFLOAD_SOURCE: Final = "DeepSpeed 0.19.8 runtime/zero/offload_config.py"
_AC_SOURCE: Final = "DeepSpeed 0.19.8 runtime/activation_checkpointing"
_TWICE: Final = "DeepSpeed 0.19.8 runtime/config_utils.py dict_raise_error_on_duplicate_keys"
_READS_JSON: Final = "accelerate 1.15.0 utils/deepspeed.py:143"
_DEVICES: Final = ("none", "cpu", "nvme")
_BATCH: Final = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)


def findings(keys: Keys, num_gpus: int | None) -> Iterator[Finding]:
    """Everything to be said of the configuration."""
    yield from _format(keys)
    yield from _names(keys)
    yield from _zero(keys)
    yield from _offload(keys)
    yield from _checkpointing(keys)
    yield from _precision(keys)
    yield from _batch(keys, num_gpus)


def _error(keys: Keys, rule: str, reason: str, fix: str, source: str, *at: str) -> Finding:
    return finding(keys, Level.ERROR, rule, reason, fix, source, *at)


def _warning(keys: Keys, rule: str, reason: str, fix: str, source: str, *at: str) -> Finding:
    return finding(keys, Level.WARNING, rule, reason, fix, source, *at)


def _format(keys: Keys) -> Iterator[Finding]:
    for text, place in keys.faults:
        level, name, reason, fix, source = Level.ERROR, "duplicate_key", text, "keep one", _TWICE
        if not text.endswith("twice"):
            level, name, source = Level.WARNING, "json_syntax", _READS_JSON
            reason = f"{text}; DeepSpeed reads Hjson, Accelerate and the Trainer JSON alone"
            fix = "write it as JSON"
        yield Finding(level=level, rule=name, reason=reason, fix=fix, source=source, place=place)


def _names(keys: Keys) -> Iterator[Finding]:
    """Names that are refused where pydantic reads them, and passed over elsewhere."""
    for section, names in ((ZERO, ZERO_KEYS), *OFFLOAD_KEYS.items()):
        for name in keys.under(section):
            key = f"{section}.{name}"
            if name in REMOVED:
                yield _warning(
                    keys, "removed_key", f"{name}: 0.19.8 has it no more", "drop it", _CONFIG, key
                )
            elif name not in names:
                meant = near(name, names)
                fix = f"did you mean {meant}?" if meant else "drop it"
                reason = f"{name}: {section} has no such key, and others are forbidden"
                yield _error(keys, "unknown_key", reason, fix, _ZERO_SOURCE, key)
    for name in keys.under(AC):
        if name not in AC_KEYS:
            meant = near(name, AC_KEYS, 0.5)
            yield _warning(
                keys,
                "unknown_key",
                f"{name}: {AC} has no such key, and it is passed over",
                f"did you mean {meant}?" if meant else f"one of {', '.join(AC_KEYS)}",
                f"{_AC_SOURCE}/config.py",
                f"{AC}.{name}",
            )
    for name in dict.fromkeys(key.split(".")[0] for key in keys.values):
        meant = "" if name in TOP_KEYS else near(name, TOP_KEYS, 0.8)
        if meant:
            reason = f"{name}: there is no such key, and it is passed over"
            yield _warning(keys, "unknown_key", reason, f"did you mean {meant}?", _CONFIG, name)


def _zero(keys: Keys) -> Iterator[Finding]:
    stage = keys.get(f"{ZERO}.stage")
    if stage is not None and stage != "auto" and (isinstance(stage, bool) or stage not in range(4)):
        yield _error(
            keys,
            "zero_stage",
            f"stage = {stage!r} is none of 0, 1, 2, 3",
            "stage 3 shards everything",
            _ZERO_SOURCE,
            f"{ZERO}.stage",
        )
    pipeline = any(keys.under("pipeline"))
    if pipeline and stage in (2, 3):
        yield _error(
            keys,
            "pipeline.zero_stage",
            "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism",
            "stage 1",
            "DeepSpeed 0.19.8 runtime/pipe/engine.py",
            f"{ZERO}.stage",
        )
    for name in keys.under(ZERO):
        key, value = f"{ZERO}.{name}", keys.get(f"{ZERO}.{name}")
        switch = name in ZERO_KEYS and ZERO_KEYS[name] is bool
        number = name in ZERO_KEYS and ZERO_KEYS[name] is int
        if value in (None, "auto"):
            continue
        if switch and keys.truth(key) is None:
            yield _wrong_type(keys, key, value, "boolean")
        if number and (not isinstance(value, int | float) or isinstance(value, bool) or value < 0):
            yield _wrong_type(keys, key, value, "number")


def _wrong_type(keys: Keys, key: str, value: object, kind: str) -> Finding:
    reason = f"{key} = {value!r} is no {kind}"
    return _error(keys, "wrong_type", reason, f"write a {kind}", _ZERO_SOURCE, key)


def _offload(keys: Keys) -> Iterator[Finding]:
    stage = keys.get(f"{ZERO}.stage")
    stage = 0 if stage is None and any(keys.under(ZERO)) else stage
    for part, legal in (("offload_param", (3,)), ("offload_optimizer", (1, 2, 3))):
        key = f"{ZERO}.{part}"
        device = keys.get(f"{key}.device")
        if device not in (None, "auto") and device not in _DEVICES:
            yield _error(
                keys,
                f"{part}.device",
                f"device = {device} is none of {', '.join(_DEVICES)}",
                "cpu",
                _OFFLOAD_SOURCE,
                f"{key}.device",
            )
        if device in ("cpu", "nvme") and isinstance(stage, int) and stage not in legal:
            stages = ", ".join(map(str, legal))
            yield _warning(
                keys,
                f"{part}.stage",
                f"{part} is valid only with stage {stages}, and the stage is {stage}",
                f"stage {legal[-1]}, or drop {part}",
                _OFFLOAD_SOURCE,
                f"{key}.device",
            )
        if device == "nvme" and not keys.has(f"{key}.nvme_path"):
            yield _error(
                keys,
                f"{part}.nvme_path",
                "device = nvme without nvme_path",
                "nvme_path: a directory on the drive",
                _OFFLOAD_SOURCE,
                f"{key}.device",
            )
    ratio = keys.get(f"{ZERO}.offload_optimizer.ratio")
    if isinstance(ratio, int | float) and ratio < 1.0 and stage != 3:
        yield _error(
            keys,
            "offload_optimizer.ratio",
            "Partial offloading only supported for ZeRO Stage 3",
            "ratio 1.0, or stage 3",
            _ZERO_SOURCE,
            f"{ZERO}.offload_optimizer.ratio",
        )


def _checkpointing(keys: Keys) -> Iterator[Finding]:
    for name in keys.under(AC):
        key, value = f"{AC}.{name}", keys.get(f"{AC}.{name}")
        if name == "number_checkpoints":
            if value is not None and keys.number(key) is None:
                yield _wrong_type(keys, key, value, "number")
        elif name in AC_KEYS and value is not None and value not in (True, False):
            yield _wrong_type(keys, key, value, "boolean")
    partition = keys.truth(f"{AC}.partition_activations")
    contiguous = f"{AC}.contiguous_memory_optimization"
    if keys.truth(contiguous) and not partition:
        yield _error(
            keys,
            "activation_checkpointing.contiguous_memory_optimization",
            "Contiguous Checkpointing is only available with partitioned activations",
            "partition_activations: true",
            f"{_AC_SOURCE}/checkpointing.py configure",
            contiguous,
        )
    elif keys.truth(contiguous) and keys.get(f"{AC}.number_checkpoints") is None:
        yield _error(
            keys,
            "activation_checkpointing.number_checkpoints",
            "Must specify the number of layers with contiguous memory checkpointing",
            "number_checkpoints: how many checkpoints the model makes",
            f"{_AC_SOURCE}/checkpointing.py configure",
            contiguous,
        )
    if keys.truth(f"{AC}.cpu_checkpointing") and not partition:
        yield finding(
            keys,
            Level.NOTE,
            "activation_checkpointing.cpu_checkpointing",
            "cpu_checkpointing without partition_activations moves the whole inputs of every rank",
            "partition_activations: true where there is model parallelism",
            f"{_AC_SOURCE}/checkpointing.py forward",
            f"{AC}.cpu_checkpointing",
        )


def _precision(keys: Keys) -> Iterator[Finding]:
    if keys.truth("fp16.enabled") and keys.truth("bf16.enabled"):
        yield _error(
            keys,
            "precision",
            "bfloat16 and fp16 modes cannot be simultaneously enabled",
            "switch fp16 off",
            _CONFIG,
            "fp16.enabled",
        )
    for key in ("fp16.enabled", "bf16.enabled"):
        value = keys.get(key)
        if value not in (None, "auto") and keys.truth(key) is None:
            yield _wrong_type(keys, key, value, "boolean")


def _batch(keys: Keys, num_gpus: int | None) -> Iterator[Finding]:
    for key in _BATCH:
        value = keys.get(key)
        if value in (None, "auto"):
            continue
        number = keys.number(key)
        if number is None or number < 1 or isinstance(value, str):
            yield _error(
                keys, "batch", f"{key} = {value!r} has to be greater than 0", "1", _CONFIG, key
            )
    total, micro, steps = (keys.number(key) for key in _BATCH)
    if total and micro and total > 0 and micro > 0:
        each = micro * max(steps or 1, 1)
        wrong = total % each or (num_gpus and steps and total != each * num_gpus)
        if wrong:
            world = num_gpus or "the number of GPUs"
            yield _error(
                keys,
                "batch",
                f"train_batch_size {total} is not micro batch {micro} x accumulation "
                f"{steps or 'steps'} x {world}",
                "leave one of the three out",
                f"{_CONFIG} _batch_assertion",
                _BATCH[0],
            )
    missing = keys.about.get("whole") and not any(keys.has(key) for key in _BATCH[:2])
    if missing and not any(value.value == "auto" for value in keys.values.values()):
        yield finding(
            keys,
            Level.NOTE,
            "batch.missing",
            "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided, "
            "unless a Trainer or Accelerate adds it",
            "train_micro_batch_size_per_gpu",
            _CONFIG,
            *_BATCH,
        )
