"""What DeepSpeed refuses or ignores of its JSON configuration.

Source: DeepSpeed 0.19.8 runtime/config.py, runtime/precision_config.py, runtime/zero/config.py,
runtime/zero/offload_config.py, runtime/activation_checkpointing/config.py and checkpointing.py,
runtime/pipe/engine.py.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Final

from advisor.base.rule import Match, Verdict
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
from advisor.reading.document_keys import Keys
from advisor.reading.key_rules import (
    KeyRule,
    illegal_values,
    is_boolean,
    is_count,
    is_section,
    is_whole,
    key_rule,
    no_choice,
    or_auto,
    unknown_names,
    written,
)

_CONFIG: Final = "DeepSpeed 0.19.8 runtime/config.py"
ZERO_SOURCE: Final = "DeepSpeed 0.19.8 runtime/zero/config.py"
OFFLOAD_SOURCE: Final = "DeepSpeed 0.19.8 runtime/zero/offload_config.py"
_AC_SOURCE: Final = "DeepSpeed 0.19.8 runtime/activation_checkpointing"
_PRECISION: Final = "DeepSpeed 0.19.8 runtime/precision_config.py"
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
_CHECKPOINTING: Final = f"{_AC_SOURCE}/checkpointing.py"


def _faults(keys: Keys, *, twice: bool) -> Iterator[Match]:
    """What the format refuses of a document: a key that stands twice, or anything else."""
    found = ((text, place) for text, place in keys.faults if text.endswith("twice") == twice)
    return (Match(found=text, place=place) for text, place in found)


def _in_zero(section: str) -> Iterator[KeyRule]:
    """Names that pydantic refuses."""
    yield key_rule(
        section,
        lambda keys: (
            Match(found=name, place=keys.where(f"{section}.{name}"))
            for name in REMOVED.intersection(keys.under(section))
        ),
        "DeepSpeed 0.19.8 removed {found}",
        "drop it",
        fault="removed_key",
        source=_CONFIG,
        verdict=Verdict.NO_EFFECT,
    )
    reason = f"{section} has no such key, and DeepSpeed refuses unknown keys"
    yield unknown_names(
        section, names_in(OPTIONS, section), reason, also=REMOVED, source=ZERO_SOURCE
    )


def _is_section_or_switch(value: Any) -> bool:
    """Switches are passed over: others' files have some of these names too."""
    return is_section(value) or is_boolean(value) or value == "auto"


def _is_size(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _kind(kind: type, section: str, legal: Callable[[Any], bool]) -> KeyRule:
    name = "boolean" if kind is bool else "number"
    reason, at = f"{{key}} = {{value!r}} must be a {name}", keys_of(OPTIONS, section, kind)
    return illegal_values(at, legal, reason, f"write a {name}", source=_SECTIONS[section])


def _switched_on(keys: Keys) -> Match | None:
    """The first of the section's switches."""
    on = [f"{AC}.{name}" for name in keys.under(AC) if keys.get(f"{AC}.{name}") is True]
    return Match(place=keys.where(on[0])) if on else None


def _other_product(keys: Keys) -> Match | None:
    """What the batch is not: micro batch x accumulation x GPUs."""
    total, micro, steps = (keys.number(key) for key in (BATCH, MICRO_BATCH, STEPS))
    if not total or not micro or total < 0 or micro < 0:
        return None
    sequence = max(keys.number(SEQUENCE) or 1, 1)
    each, world = micro * max(steps or 1, 1), (keys.num_gpus or 0) // sequence
    if not total % each and not (world and steps and total != each * world):
        return None
    factors = f"{steps or 'steps'} x {world or 'the number of GPUs'}"
    found = f"train_batch_size {total} is not micro batch {micro} x accumulation {factors}"
    return Match(found=found, fix="" if total % micro else f"drop {STEPS}")


def _no_batch(keys: Keys) -> bool:
    """Nothing says it, and no Trainer fills it in."""
    filled_in = any(value.value == "auto" for value in keys.values.values())
    given = keys.has(BATCH) or keys.has(MICRO_BATCH) or filled_in
    return bool(keys.about.get("whole")) and not given


RULES: Final = (
    key_rule(
        "duplicate_key",
        partial(_faults, twice=True),
        "{found}",
        "keep one",
        source="DeepSpeed 0.19.8 runtime/config_utils.py dict_raise_error_on_duplicate_keys",
    ),
    key_rule(
        "json_syntax",
        partial(_faults, twice=False),
        "{found}; DeepSpeed reads Hjson, but Accelerate and the Trainer read only JSON",
        "write it as JSON",
        source="accelerate 1.15.0 utils/deepspeed.py:143",
        verdict=Verdict.NO_EFFECT,
    ),
    *chain.from_iterable(map(_in_zero, (ZERO, PARAMETERS, OPTIMIZER))),
    unknown_names(
        AC,
        names_in(OPTIONS, AC),
        f"{AC} has no such key; it is ignored",
        cutoff=0.5,
        otherwise=f"use {either(names_in(OPTIONS, AC))}",
        source=f"{_AC_SOURCE}/config.py",
        verdict=Verdict.NO_EFFECT,
    ),
    unknown_names(
        "",
        names_in(OPTIONS),
        "there is no such key; it is ignored",
        cutoff=0.8,
        otherwise="",
        source=_CONFIG,
        verdict=Verdict.NO_EFFECT,
    ),
    *(
        illegal_values(
            section,
            _is_section_or_switch,
            "{key} = {value!r} must be a section",
            "write its keys below it",
            source=source,
        )
        for section, source in _SECTIONS.items()
    ),
    *(_kind(bool, section, or_auto(is_boolean)) for section in (ZERO, "fp16", "bf16")),
    _kind(bool, AC, lambda value: value in (True, False)),
    _kind(int, ZERO, or_auto(_is_size)),
    _kind(int, AC, is_whole),
    illegal_values(
        STAGE,
        or_auto(lambda value: not isinstance(value, bool) and value in (0, 1, 2, 3)),
        "stage = {value!r} must be 0, 1, 2 or 3",
        "use one of these; 3 shards everything",
        fault="zero_stage",
        source=ZERO_SOURCE,
    ),
    *(
        no_choice(
            f"{section}.device",
            DEVICES,
            fix="cpu",
            also=("auto",),
            fault=f"{section.rpartition('.')[2]}.device",
            source=OFFLOAD_SOURCE,
        )
        for section in (PARAMETERS, OPTIMIZER)
    ),
    key_rule(
        f"{AC}.calls",
        _switched_on,
        CALLS,
        "use the model's own checkpointing",
        fault=f"{AC}.calls",
        source=_CHECKPOINTING,
        verdict=Verdict.NOTE,
    ),
    *written("deepspeed"),
    illegal_values(
        (BATCH, MICRO_BATCH, STEPS),
        or_auto(lambda value: not isinstance(value, str) and is_count(value)),
        "{key} = {value!r} has to be greater than 0",
        "1",
        fault="batch",
        source=_CONFIG,
    ),
    key_rule(
        BATCH,
        _other_product,
        "{found}",
        "leave one of the three out",
        fault="batch",
        source=f"{_CONFIG} _batch_assertion",
    ),
    key_rule(
        (BATCH, MICRO_BATCH, STEPS),
        _no_batch,
        "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided, unless a "
        "Trainer or Accelerate adds it",
        MICRO_BATCH,
        fault="batch.missing",
        source=_CONFIG,
        verdict=Verdict.NOTE,
    ),
)
"""Everything to be said of a configuration."""
