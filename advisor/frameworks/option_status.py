"""What becomes of an option of a framework here."""

from enum import StrEnum


class Status(StrEnum):
    """What this project makes of an option."""

    MODELLED = "modelled"
    """It has a field of ours, or follows from some."""
    CHECKED = "checked"
    """No field of ours; rules say whether it is legal, and what it does to recompute."""
    HARMLESS = "harmless"
    """It changes neither the memory nor the time of a step noticeably."""
    UNPRICED = "unpriced"
    """It changes memory or time and is not modelled: to be warned of."""
    REFUSED = "refused"
    """With it the job is another one than can be described: to be refused."""
