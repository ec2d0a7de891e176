"""Whole numbers that a user writes in digits."""

from advisor.base.limits import MOST_COUNT_DIGITS


def whole(text: str) -> int | None:
    """The number that at most `MOST_COUNT_DIGITS` ASCII digits write; None for any other text."""
    digits = text.isascii() and text.isdigit() and len(text) <= MOST_COUNT_DIGITS
    return int(text) if digits else None
