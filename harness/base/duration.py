"""Lengths of time as a user writes them."""

import re
from typing import Final

from advisor.base.errors import UserError, show

_UNITS: Final = {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600}
_DURATION: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*")


def duration(text: str, field: str = "--budget") -> float:
    """Seconds of ``30s``, ``3min``, ``1.5h``; the unit is required."""
    match = _DURATION.fullmatch(text.lower())
    unit = _UNITS.get(match.group(2)) if match else None
    if match is None or unit is None:
        raise UserError(field, show(text), "is not a time", "write e.g. 30s, 3min or 1h")
    seconds = float(match.group(1)) * unit
    if seconds <= 0:
        raise UserError(field, show(text), "must be positive", "write e.g. 3min")
    return seconds
