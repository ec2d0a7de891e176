"""What one line of a log says, in seconds and bytes; each reader converts its framework's units."""

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from msgspec import Struct

from advisor.base.limits import LARGEST, LARGEST_FLOAT, MOST_COUNT_DIGITS

NUMBER: Final = r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,3})?|nan|inf|NAN|INF)"
"""A number as Python formats it, nan and inf included; "{:E}" writes them in capitals. More digits
than any has are garbage, or lines written into one."""
COUNT: Final = rf"\d{{1,{MOST_COUNT_DIGITS}}}"
"""A number of steps or bytes, or of a rank."""
_SMALLEST: Final = 1 / LARGEST
_WHOLE: Final = re.compile(NUMBER)


class LogFramework(StrEnum):
    """Whose lines a log holds."""

    MEGATRON_LM = "megatron_lm"
    MEGATRON_BRIDGE = "megatron_bridge"
    NEMO = "nemo"
    TORCHTITAN = "torchtitan"
    DEEPSPEED = "deepspeed"
    HUGGINGFACE = "huggingface"


class LoggedStep(Struct, frozen=True, kw_only=True):
    """One logged step, counted from 1; where a log writes every tenth step, the mean of ten. total:
    steps of the whole run. timer_seconds: forward, backward and optimizer alone, without what lies
    between them. samples_per_second is of all ranks, the other rates of one GPU. stamp: when the
    line was written, seconds of some epoch. None is what the line does not say."""

    number: int
    total: int | None = None
    seconds: float | None = None
    timer_seconds: float | None = None
    tflops_per_gpu: float | None = None
    tokens_per_second_per_gpu: float | None = None
    samples_per_second: float | None = None
    loss: float | None = None
    stamp: float | None = None


class Throughput(Struct, frozen=True, kw_only=True):
    """A step's rate on a line without its number; seconds are rounded, and tell which step."""

    seconds: float
    tflops_per_gpu: float


class LoggedPeak(Struct, frozen=True, kw_only=True):
    """Peak bytes of one rank after step `number`; None rank: the one that wrote the line."""

    number: int
    rank: int | None = None
    allocated: int | None = None
    reserved: int | None = None


class LoggedLoss(Struct, frozen=True, kw_only=True):
    """A loss without a step's number, at `epoch`."""

    value: float
    epoch: float


class Timers(Struct, frozen=True, kw_only=True):
    """Seconds of a step's forward, backward and optimizer; None: of several steps."""

    seconds: float | None


class WholeRun(Struct, frozen=True, kw_only=True):
    """Means over the whole run, start and warm-up included: a step's seconds, and rates.
    tokens_per_second is of all ranks, the other rates of one GPU."""

    seconds: float | None = None
    tflops_per_gpu: float | None = None
    tokens_per_second: float | None = None
    tokens_per_second_per_gpu: float | None = None


class Argument(Struct, frozen=True, kw_only=True):
    """One line of the configuration that a framework prints at its start."""

    name: str
    value: str


class Mark(StrEnum):
    """Where a run begins and ends."""

    START = "start"
    END = "end"


Record = LoggedStep | Throughput | Timers | LoggedPeak | LoggedLoss | WholeRun | Argument | Mark


Lines = tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], tuple[Record, ...]]], ...]


class LogReader(Struct, frozen=True):
    """Reads the lines of one framework. anchors: a line without any of these says nothing; a cheap
    look before the patterns. lines: what its lines look like, and what each says: nothing where it
    is damaged anywhere. steady: a whole line of a step without anything that may be news but its
    two groups: what rises from step to step, and what counts where it is the highest of all; a line
    without the first adds nothing to steps that are known. lasting: a whole line of which the last
    of each kind, its one group, says all that those before it did."""

    anchors: tuple[str, ...]
    lines: Lines
    steady: str = ""
    lasting: str = "(?!)()"

    def steady_lines(self) -> re.Pattern[str]:
        """Its steady lines within a text. Groups: line, prefix, those of `steady` and `lasting`."""
        prefix = r"(?:\[?(?:[Rr]ank|default)? ?\d{1,9}\]?: ?)?"
        return re.compile(rf"\n(({prefix})(?:{self.steady}|{self.lasting})) *(?=\n)")

    def read(self, text: str) -> tuple[Record, ...]:
        """What a whole, cleaned line (single blanks, no colours, no prefix) says; or nothing."""
        if any(anchor in text for anchor in self.anchors):
            for pattern, records in self.lines:
                if match := pattern.search(text):
                    return records(match)
        return ()


def number(text: str) -> float | None:
    """The number that `text` is; None: it is none. A loss too large to be squared is infinite."""
    if not _WHOLE.fullmatch(text):
        return None
    value = float(text)
    return math.copysign(math.inf, value) if abs(value) > LARGEST_FLOAT else value


def positive(text: str) -> float | None:
    """A number above zero, as a time or a rate must be, of a size that some time or rate has."""
    value = number(text)
    return value if value is not None and _SMALLEST <= value <= LARGEST else None


def scaled_bytes(text: str, unit: int) -> int | None:
    """Bytes of a quantity in `unit`, rounded to a whole one."""
    value = number(text)
    return None if value is None or not 0 <= value * unit <= LARGEST else round(value * unit)


def pairs(text: str, separator: str, joint: str) -> dict[str, str] | None:
    """``a: 1 | b: 2`` by name; None where a name comes twice: lines written over each other."""
    found: dict[str, str] = {}
    for part in text.split(separator):
        name, has_value, value = part.strip().partition(joint)
        if has_value and name in found:
            return None
        if has_value:
            found[name] = value.strip()
    return found


def stamp(text: str) -> float | None:
    """Seconds of ``2026-01-15 10:20:31,123``; only differences mean anything."""
    try:
        return datetime.fromisoformat(text.replace(",", ".")).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
