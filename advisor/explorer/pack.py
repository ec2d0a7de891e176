"""The page's data: columns of whole numbers, each text once, compressed.

Bytes are counted in units of 64 KiB, times in microseconds: finer than any picture. A text or list
that occurs again is a number of `pool`.
"""

import json
import zlib
from base64 import b64encode
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, Final

from msgspec import Struct, field

from advisor.answer.evaluation import Evaluation, StageMemory, TimeBreakdown
from advisor.hardware.calibration import Calibration

UNIT: Final = 1 << 16
"""Bytes of one unit."""
_SURE: Final = 1e-12
"""Probabilities are cut to this far from 0 and 1: 7 standard deviations."""
TIMES: Final = TimeBreakdown.__struct_fields__


class Pool(Struct, frozen=True):
    """Values that are written once, and their numbers."""

    values: list[Any] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def number(self, value: Any) -> int:
        """The number of `value`, which is plain JSON."""
        key = f"text {value}" if isinstance(value, str) else json.dumps(value)
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self.values)
            self.values.append(value)
        return known


def units(num_bytes: float) -> int:
    """Bytes in units, rounded."""
    return round(num_bytes / UNIT)


def micros(seconds: float) -> int:
    """Seconds in microseconds, rounded."""
    return round(seconds * 1e6)


def stage_numbers(stage: StageMemory) -> list[int]:
    """What a setting adds to the stage's weights, gradients and optimizer: kept activations, the
    working set, what is reserved beside, all in units; microbatches in flight, in hundredths."""
    memory = stage.memory_bytes
    parts = (memory.activations, memory.transient, memory.overhead)
    return [*map(units, parts), round(stage.in_flight_microbatches * 100)]


def times(evaluation: Evaluation) -> list[int]:
    """Microseconds of a step by what they are spent on, in the order of TIMES."""
    return [micros(getattr(evaluation.time_seconds, name)) for name in TIMES]


def clearance(evaluation: Evaluation) -> tuple[float, int]:
    """By how many standard deviations the row is clear of its budget, and one of them in units: of
    the stage that is closest to it."""
    budget = evaluation.budget_bytes
    mean, sigma = min(evaluation.needs, key=lambda need: (budget - need[0]) / need[1])
    if type(evaluation.calibration) is Calibration:
        return round((budget - mean) / sigma, 3), units(sigma)
    learned = min(max(evaluation.fit_probability, _SURE), 1 - _SURE)
    return round(NormalDist().inv_cdf(learned), 3), units(sigma)


def columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rows of equal keys as one list a key."""
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def packed(document: Any) -> str:
    """JSON, compressed as zlib does (RFC 1950, ``deflate`` to a browser), in base64."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return b64encode(zlib.compress(text.encode(), 9)).decode()
