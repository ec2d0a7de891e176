"""What DeepSpeed refuses or ignores of its JSON configuration: configs/rules/deepspeed.json, and
conditions of it.

Source: DeepSpeed 0.19.8 runtime/config.py, runtime/precision_config.py, runtime/zero/config.py,
runtime/zero/offload_config.py, runtime/activation_checkpointing/config.py and checkpointing.py,
runtime/pipe/engine.py.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from advisor.base.rule import Match
from advisor.frameworks.deepspeed.options import (
    AC,
    BATCH,
    MICRO_BATCH,
    OPTIONS,
    REMOVED,
    SEQUENCE,
    STEPS,
)
from advisor.frameworks.key_rows import written
from advisor.reading.key_rules import is_count
from advisor.reading.read_configuration import Keys


def _faults(keys: Keys, *, twice: bool) -> Iterator[Match]:
    """What the format refuses of a document: a key that stands twice, or anything else."""
    found = ((text, place) for text, place in keys.faults if text.endswith("twice") == twice)
    return (Match(found=text, place=place) for text, place in found)


def _removed(section: str, keys: Keys) -> Iterator[Match]:
    for name in REMOVED.intersection(keys.under(section)):
        yield Match(found=name, place=keys.where(f"{section}.{name}"))


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


RULES: Final = tuple(
    written(
        "deepspeed",
        {
            "duplicate_key": partial(_faults, twice=True),
            "json_syntax": partial(_faults, twice=False),
            "removed_key": _removed,
            "removed": lambda _: REMOVED,
            "size": lambda value: (
                isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
            ),
            "stage": lambda value: not isinstance(value, bool) and value in (0, 1, 2, 3),
            "batch": lambda value: not isinstance(value, str) and is_count(value),
            f"{AC}.calls": _switched_on,
            "batch.product": _other_product,
            "batch.missing": _no_batch,
        },
        OPTIONS,
    )
)
"""Everything to be said of a configuration."""
CALLS: Final = next(one.reason for one in RULES if one.fault == f"{AC}.calls")
