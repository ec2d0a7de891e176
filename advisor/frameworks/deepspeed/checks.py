"""What DeepSpeed refuses or ignores of its JSON configuration.

Source: DeepSpeed 0.19.8 runtime/config.py, runtime/precision_config.py, runtime/zero/config.py,
runtime/zero/offload_config.py, runtime/activation_checkpointing/config.py and checkpointing.py,
runtime/pipe/engine.py.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from advisor.base.rule import Finding, Verdict
from advisor.base.units import either
from advisor.frameworks.deepspeed.options import (
    AC,
    BATCH,
    MICRO_BATCH,
    OPTIMIZER,
    OPTIONS,
    PARAMETERS,
    REMOVED,
    SEQUENCE,
    STAGE,
    STEPS,
    ZERO,
)
from advisor.frameworks.option import keys_of, names_in
from advisor.reading.document_keys import Keys, whole
from advisor.reading.key_checks import (
    illegal_values,
    is_boolean_or_auto,
    no_choice,
    unknown_names,
)

_CONFIG: Final = "DeepSpeed 0.19.8 runtime/config.py"
ZERO_SOURCE: Final = "DeepSpeed 0.19.8 runtime/zero/config.py"
OFFLOAD_SOURCE: Final = "DeepSpeed 0.19.8 runtime/zero/offload_config.py"
_AC_SOURCE: Final = "DeepSpeed 0.19.8 runtime/activation_checkpointing"
_PRECISION: Final = "DeepSpeed 0.19.8 runtime/precision_config.py"
_TWICE: Final = "DeepSpeed 0.19.8 runtime/config_utils.py dict_raise_error_on_duplicate_keys"
_READS_JSON: Final = "accelerate 1.15.0 utils/deepspeed.py:143"
_SECTIONS: Final = {
    ZERO: ZERO_SOURCE,
    PARAMETERS: ZERO_SOURCE,
    OPTIMIZER: ZERO_SOURCE,
    "fp16": _PRECISION,
    "bf16": _PRECISION,
    AC: f"{_AC_SOURCE}/config.py",
}
"""Where each section is read."""
CALLS: Final = (
    "activation_checkpointing turns nothing on by itself: the model must call "
    "deepspeed.checkpointing.checkpoint on each block (a Hugging Face model does not)"
)
DEVICES: Final = ("none", "cpu", "nvme")
_STAGES: Final = {PARAMETERS: (3,), OPTIMIZER: (1, 2, 3)}


def findings(keys: Keys) -> Iterator[Finding]:
    """Everything to be said of the configuration."""
    yield from _format(keys)
    yield from _names(keys)
    yield from _types(keys)
    yield from _zero(keys)
    yield from _checkpointing(keys)
    if keys.truth("fp16.enabled") and keys.truth("bf16.enabled"):
        reason = "bfloat16 and fp16 modes cannot be simultaneously enabled"
        yield keys.error("precision", reason, "switch fp16 off", _CONFIG, "fp16.enabled")
    yield from _batch(keys)


def _format(keys: Keys) -> Iterator[Finding]:
    for text, place in keys.faults:
        verdict, name, reason, fix, source = (
            Verdict.REFUSED,
            "duplicate_key",
            text,
            "keep one",
            _TWICE,
        )
        if not text.endswith("twice"):
            verdict, name, source = Verdict.NO_EFFECT, "json_syntax", _READS_JSON
            reason = f"{text}; DeepSpeed reads Hjson, but Accelerate and the Trainer read only JSON"
            fix = "write it as JSON"
        yield Finding(
            verdict=verdict, rule=name, reason=reason, fix=fix, source=source, place=place
        )


def _names(keys: Keys) -> Iterator[Finding]:
    """Names that are refused where pydantic reads them, and passed over elsewhere."""
    for section in (ZERO, PARAMETERS, OPTIMIZER):
        for name in {*keys.under(section)} & REMOVED:
            reason, at = f"DeepSpeed 0.19.8 removed {name}", f"{section}.{name}"
            yield keys.warning("removed_key", reason, "drop it", _CONFIG, at)
        known, reason = (
            names_in(OPTIONS, section),
            "has no such key, and DeepSpeed refuses unknown keys",
        )
        reason = f"{section} {reason}"
        yield from unknown_names(keys, section, known, reason, ZERO_SOURCE, also=REMOVED)
    known, passed = names_in(OPTIONS, AC), "no such key; it is ignored"
    yield from unknown_names(
        keys,
        AC,
        known,
        f"{AC} has {passed}",
        f"{_AC_SOURCE}/config.py",
        verdict=Verdict.NO_EFFECT,
        cutoff=0.5,
        otherwise=f"use {either(known)}",
    )
    yield from unknown_names(
        keys,
        "",
        names_in(OPTIONS),
        f"there is {passed}",
        _CONFIG,
        verdict=Verdict.NO_EFFECT,
        cutoff=0.8,
        otherwise="",
    )


def _types(keys: Keys) -> Iterator[Finding]:
    for section, source in _SECTIONS.items():
        reason, fix = "{key} = {value!r} must be a section", "write its keys below it"
        yield from illegal_values(keys, (section,), _is_section, reason, fix, source)
    for kind, section, legal in (
        ("boolean", ZERO, is_boolean_or_auto),
        ("boolean", "fp16", is_boolean_or_auto),
        ("boolean", "bf16", is_boolean_or_auto),
        ("boolean", AC, _is_plain_boolean),
        ("number", ZERO, _is_number_or_auto),
        ("number", AC, _is_whole),
    ):
        at = keys_of(OPTIONS, section, bool if kind == "boolean" else int)
        reason, fix = f"{{key}} = {{value!r}} must be a {kind}", f"write a {kind}"
        yield from illegal_values(keys, at, legal, reason, fix, _SECTIONS[section])


def _is_section(value: Any) -> bool:
    """Keys and values; switches are passed over: others' files have some of these names too."""
    return isinstance(value, Mapping) or is_boolean_or_auto(value)


def _is_plain_boolean(value: Any) -> bool:
    return value in (True, False)


def _is_number_or_auto(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value == "auto" or (number and value >= 0)


def _is_whole(value: Any) -> bool:
    return whole(value) is not None


def _zero(keys: Keys) -> Iterator[Finding]:
    reason, fix = "stage = {value!r} must be 0, 1, 2 or 3", "use one of these; 3 shards everything"
    yield from illegal_values(keys, (STAGE,), _is_stage, reason, fix, ZERO_SOURCE, "zero_stage")
    if any(keys.under("pipeline")) and keys.get(STAGE) in (2, 3):
        reason = "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"
        source = "DeepSpeed 0.19.8 runtime/pipe/engine.py"
        yield keys.error("pipeline.zero_stage", reason, "stage 1", source, STAGE)
    stage = keys.get(STAGE) if keys.has(STAGE) else 0
    for section, stages in _STAGES.items():
        yield from _offload(keys, section, stages, stage)
    at, rule = f"{OPTIMIZER}.ratio", "offload_optimizer.ratio"
    ratio = keys.get(at)
    if isinstance(ratio, int | float) and ratio < 1.0 and stage in (0, 1, 2):
        reason = "Partial offloading only supported for ZeRO Stage 3"
        yield keys.error(rule, reason, "use ratio 1.0, or stage 3", ZERO_SOURCE, at)


def _is_stage(value: Any) -> bool:
    return value == "auto" or (not isinstance(value, bool) and value in (0, 1, 2, 3))


def _offload(keys: Keys, section: str, stages: tuple[int, ...], stage: object) -> Iterator[Finding]:
    """Of one of the two sections, which is valid with `stages`."""
    part, at = section.rpartition(".")[2], f"{section}.device"
    device, rule = keys.get(at), f"{part}.device"
    yield from no_choice(keys, at, DEVICES, OFFLOAD_SOURCE, rule=rule, fix="cpu", also=("auto",))
    if device in DEVICES[1:] and isinstance(stage, int) and stage not in stages:
        legal, fix = ", ".join(map(str, stages)), f"use stage {stages[-1]}, or drop {part}"
        reason = f"{part} is valid only with stage {legal}, but stage = {stage}"
        yield keys.warning(f"{part}.stage", reason, fix, OFFLOAD_SOURCE, at)
    if device == "nvme" and not keys.has(f"{section}.nvme_path"):
        reason, fix = "device = nvme needs nvme_path", "set nvme_path to a directory on the drive"
        yield keys.error(f"{part}.nvme_path", reason, fix, OFFLOAD_SOURCE, at)


def _checkpointing(keys: Keys) -> Iterator[Finding]:
    on = [name for name in keys.under(AC) if keys.get(f"{AC}.{name}") is True]
    if on:
        fix, source = "use the model's own checkpointing", f"{_AC_SOURCE}/checkpointing.py"
        yield keys.finding(Verdict.NOTE, f"{AC}.calls", CALLS, fix, source, f"{AC}.{on[0]}")
    partition = keys.truth(f"{AC}.partition_activations")
    at, number = f"{AC}.contiguous_memory_optimization", f"{AC}.number_checkpoints"
    source = f"{_AC_SOURCE}/checkpointing.py configure"
    if keys.truth(at) and not partition:
        reason = "Contiguous Checkpointing is only available with partitioned activations"
        yield keys.error(at, reason, "set partition_activations: true", source, at)
    elif keys.truth(at) and keys.get(number) is None:
        reason = "Must specify the number of layers with contiguous memory checkpointing"
        fix = "set number_checkpoints to the number of checkpoints in the model"
        yield keys.error(number, reason, fix, source, at)
    at, source = f"{AC}.cpu_checkpointing", f"{_AC_SOURCE}/checkpointing.py forward"
    if keys.truth(at) and not partition:
        moves = "moves the whole inputs of every rank to the host"
        reason = f"cpu_checkpointing without partition_activations {moves}"
        fix = "set partition_activations: true if the model is split over GPUs"
        yield keys.finding(Verdict.NOTE, at, reason, fix, source, at)


def _batch(keys: Keys) -> Iterator[Finding]:
    """The batch is micro batch x accumulation x GPUs, where a Trainer does not fill them in."""
    batch, reason = (BATCH, MICRO_BATCH, STEPS), "{key} = {value!r} has to be greater than 0"
    yield from illegal_values(keys, batch, _is_batch_or_auto, reason, "1", _CONFIG, "batch")
    total, micro, steps = (keys.number(key) for key in batch)
    if total and micro and total > 0 and micro > 0:
        sequence = max(keys.number(SEQUENCE) or 1, 1)
        each, world = micro * max(steps or 1, 1), (keys.num_gpus or 0) // sequence
        if total % each or (world and steps and total != each * world):
            reason = (
                f"train_batch_size {total} is not micro batch {micro} x accumulation "
                f"{steps or 'steps'} x {world or 'the number of GPUs'}"
            )
            fix, source = "leave one of the three out", f"{_CONFIG} _batch_assertion"
            yield keys.error("batch", reason, fix, source, BATCH)
    given = keys.has(BATCH) or keys.has(MICRO_BATCH)
    filled_in = any(value.value == "auto" for value in keys.values.values())
    if keys.about.get("whole") and not given and not filled_in:
        reason = (
            "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided, "
            "unless a Trainer or Accelerate adds it"
        )
        yield keys.finding(Verdict.NOTE, "batch.missing", reason, MICRO_BATCH, _CONFIG, *batch)


def _is_batch_or_auto(value: Any) -> bool:
    return value == "auto" or (not isinstance(value, str) and (whole(value) or 0) >= 1)
