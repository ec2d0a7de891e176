"""What transformers' Trainer refuses or passes over of TrainingArguments.

Source: transformers 5.23.0 (4.57.1 where it says so) training_args.py, trainer.py,
hf_argparser.py, modeling_layers.py, modeling_utils.py.
"""

from collections.abc import Iterator
from typing import Any, Final

from advisor.base.rule import Finding
from advisor.base.units import either
from advisor.frameworks.huggingface.accelerate_checks import POLICIES
from advisor.frameworks.huggingface.options import (
    ARGUMENTS,
    CHECKPOINTING,
    FSDP,
    MICRO_BATCH,
    SECTIONS,
    STEPS,
)
from advisor.frameworks.option import names_in
from advisor.reading.document_keys import Keys, known, near, whole
from advisor.reading.key_checks import illegal_values, is_boolean, unknown_names

_ARGUMENTS: Final = "transformers 5.23.0 training_args.py"
_TRAINER: Final = "transformers 5.23.0 trainer.py"
_PARSER: Final = "transformers 5.23.0 hf_argparser.py"
_CHECKPOINT: Final = "torch 2.13 utils/checkpoint.py"
_BEGINNINGS: Final = ("gradient_check", "activation_check", "grad_check", "gradient-c")
_FSDP_WORDS: Final = (
    *("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"),
    *("offload", "auto_wrap"),
)


def findings(keys: Keys) -> Iterator[Finding]:
    """Everything to be said of the arguments."""
    yield from _names(keys)
    yield from _types(keys)
    for name, section in zip(CHECKPOINTING, SECTIONS, strict=True):
        yield from _kwargs(keys, name, section)
    if keys.truth("fp16") and keys.truth("bf16"):
        reason = "At most one of fp16 and bf16 can be True, but not both"
        yield keys.error("precision", reason, "drop fp16", _ARGUMENTS, "fp16")
    if keys.truth("use_cache") and checkpointing(keys):
        reason = (
            "checkpointing switches use_cache off, with a warning: a replayed layer would store "
            "its keys and values twice"
        )
        source = "transformers 5.23.0 modeling_layers.py"
        yield keys.warning("use_cache", reason, "use_cache = False", source, "use_cache")
    yield from _fsdp(keys)


def checkpointing(keys: Keys) -> bool | None:
    """Whether it is switched on; None where it is not said or not known."""
    said = (keys.truth(name) for name in CHECKPOINTING)
    return next((switch for switch in said if switch is not None), None)


def _names(keys: Keys) -> Iterator[Finding]:
    about_it = ("gradient", "activation")
    names = [name for name in names_in(ARGUMENTS) if name.startswith(about_it)]
    for key, given in keys.values.items():
        name = key.partition(".")[0]
        begins = name.startswith(_BEGINNINGS)
        meant = near(name, names, 0.5 if begins else 0.85)
        if name not in names and (begins or meant):
            source = _PARSER if keys.about["kind"] == "command" else _ARGUMENTS
            reason = f"{given.written}: there is no such argument"
            fix = f"did you mean {meant}?" if meant else "drop it"
            yield keys.error("unknown_argument", reason, fix, source, key)


def _types(keys: Keys) -> Iterator[Finding]:
    at, reason = (*CHECKPOINTING, "bf16", "fp16"), "{name} = {value!r}: Truthy value expected"
    source = f"{_PARSER} string_to_bool"
    yield from illegal_values(keys, at, is_boolean, reason, "True or False", source)
    reason = "{name} = {value!r} must be a positive whole number"
    yield from illegal_values(
        keys, (MICRO_BATCH, STEPS), _is_count_or_auto, reason, "1", _ARGUMENTS
    )


def _is_count_or_auto(value: Any) -> bool:
    return value == "auto" or _is_count(value)


def _is_count(value: Any) -> bool:
    return (whole(value) or 0) >= 1


def _kwargs(keys: Keys, name: str, section: str) -> Iterator[Finding]:
    """What goes on to torch's checkpoint."""
    given, whole_text, rule = any(keys.under(section)), keys.get(section), "checkpointing_kwargs"
    if isinstance(whole_text, str):
        reason, fix = (
            f"{section} = {whole_text} must be a JSON dictionary",
            """'{"use_reentrant": false}'""",
        )
        yield keys.error(rule, reason, fix, f"{_ARGUMENTS} __post_init__", section)
    omitted = not any(keys.has(switch) for switch in CHECKPOINTING)
    off = (given or whole_text) and checkpointing(keys) is False
    if off or (given and omitted and keys.about["kind"] != "part"):
        reason = f"{section} without {name}: nothing is checkpointed"
        yield keys.warning(f"{rule}.unused", reason, f"{name} = True", _TRAINER, section)
    names, reason = names_in(ARGUMENTS, section), "torch's checkpoint has no such keyword"
    hint = f"use {either(names)}"
    yield from unknown_names(
        keys, section, names, reason, _CHECKPOINT, rule=rule, cutoff=0.5, otherwise=hint
    )
    yield from _values(keys, section)


def _values(keys: Keys, section: str) -> Iterator[Finding]:
    """Of the keywords; transformers itself reads two of them from 5 on."""
    rule, switches = "checkpointing_kwargs", [f"{section}.use_reentrant"]
    if keys.release == "4":
        source = "transformers 4.57.1 modeling_utils.py"
        reason = "transformers 4.x passes every keyword to torch, which does not know this one"
        for name in {*keys.under(section)} & {"every_n_layers", "offload"}:
            at = f"{section}.{name}"
            yield keys.error(f"{rule}.{name}", f"{name}: {reason}", "transformers 5", source, at)
    else:
        switches.append(f"{section}.offload")
        at, rule = f"{section}.every_n_layers", f"{rule}.every_n_layers"
        reason = "{name} = {value!r} must be a positive whole number"
        fix, source = (
            "write e.g. 2, which checkpoints every second layer",
            "transformers 5.23.0 modeling_utils.py",
        )
        yield from illegal_values(keys, (at,), _is_count, reason, fix, source, rule)
    for at in switches:
        if isinstance(keys.get(at), str):
            reason = (
                f"{at.rpartition('.')[2]} = {keys.get(at)!r} is text, and any text counts as true"
            )
            fix = "true or false without quotes"
            yield keys.warning("wrong_type", reason, fix, _CHECKPOINT, at)


def _fsdp(keys: Keys) -> Iterator[Finding]:
    fsdp = keys.get("fsdp")
    words = fsdp if isinstance(fsdp, list) else str(fsdp).split() if isinstance(fsdp, str) else []
    for word in map(str, words):
        plain = word.strip(",").lower()
        if known(word) and plain not in (*_FSDP_WORDS, "true", "false", "1", "0"):
            meant = near(plain, _FSDP_WORDS, 0.5)
            fix = f"did you mean {meant}?" if meant else "full_shard auto_wrap"
            yield keys.error("fsdp", f"Unknown `fsdp` option: {word}", fix, _ARGUMENTS, "fsdp")
    on = fsdp is True or (bool(words) and str(words[0]).lower() not in ("false", "0", ""))
    if on and keys.get("deepspeed"):
        reason = "Using --fsdp together with --deepspeed is not possible"
        fix = "deactivate one of those flags"
        yield keys.error("fsdp_and_deepspeed", reason, fix, _TRAINER, "fsdp")
    inside = {name.removeprefix("fsdp_"): f"{FSDP}.{name}" for name in keys.under(FSDP)}
    if keys.truth(inside.get("activation_checkpointing", "")) and checkpointing(keys):
        reason = (
            "fsdp_config['activation_checkpointing'] and the activation_checkpointing training "
            "argument can't both be set to True"
        )
        fix = "keep the one in fsdp_config, drop the argument"
        yield keys.error("checkpointing_twice", reason, fix, _TRAINER, *CHECKPOINTING)
    if keys.about["kind"] not in ("command", "python") or keys.about.get("launcher"):
        return
    at = inside.get("auto_wrap_policy", "")
    policy = keys.get(at)
    if policy is not None and policy not in POLICIES:
        reason = f"`auto_wrap_policy` must be {either(POLICIES)}, got {policy}"
        yield keys.error("fsdp_auto_wrap_policy", reason, POLICIES[0], _ARGUMENTS, at)
    if inside and not keys.has("fsdp"):
        reason = "fsdp_config is used only with fsdp, which is not given"
        fix = 'fsdp = "full_shard auto_wrap", or fsdp = True from 5.x on'
        yield keys.warning("fsdp_config.unused", reason, fix, _ARGUMENTS, FSDP)
