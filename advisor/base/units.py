"""Formatting and parsing of quantities: the only place where units are printed or read.

GB = 10**9 bytes, GiB = 2**30 bytes; a bare suffix never means both.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from advisor.base.errors import UserError
from advisor.base.limits import LARGEST, MOST_COUNT_DIGITS

DASH: Final = "—"
"""What stands for a number that is not known."""
GIB: Final = 2**30
MIB: Final = 2**20
_BYTE_UNITS: Final = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SHOWN: Final = 24
_MOST_GPUS: Final = 1_000_000
_QUANTITY: Final = r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*"
_GPUS: Final = re.compile(r"([0-9]+)\s*[xX*]\s*(\S+)")


def parse_bytes(text: str, field: str) -> int:
    """Bytes of a quantity such as ``76GiB`` or ``80GB``; the unit is required."""
    match = re.fullmatch(_QUANTITY, text)
    scale = _BYTE_UNITS.get(match.group(2).upper()) if match else None
    if match is None or scale is None:
        raise UserError(field, text, "is not a quantity of bytes", "write e.g. 76GiB or 80GB")
    size = float(match.group(1)) * scale
    if size > LARGEST:
        raise UserError(field, text[:_SHOWN], f"is too large; at most {LARGEST:.0e} bytes")
    amount = int(size)
    if amount <= 0:
        raise UserError(field, text, "must be positive", "write e.g. 76GiB")
    return amount


def parse_gpus(text: str) -> tuple[int, str]:
    """Count and type of ``COUNTxTYPE``, e.g. ``32xH100`` -> ``(32, "H100")``."""
    match = _GPUS.fullmatch(text.strip())
    if match is None:
        raise UserError("--gpus", text, "is not COUNTxTYPE", "write e.g. 32xH100 or 8xA100-40GB")
    digits = match.group(1).lstrip("0")
    count = int(digits or "0") if len(digits) <= len(str(_MOST_GPUS)) else _MOST_GPUS + 1
    if count < 1:
        raise UserError("--gpus", text, "needs at least one GPU", f"write e.g. 8x{match.group(2)}")
    if count > _MOST_GPUS:
        raise UserError("--gpus", text, f"is more than {_MOST_GPUS} GPUs", "check the count")
    return count, match.group(2)


def significant(value: float, digits: int) -> float:
    """`value` rounded to so many significant digits."""
    return float(f"{value:.{digits}g}")


def gib(num_bytes: float) -> str:
    """``12.34`` for 12.34 GiB; the caller's header says GiB."""
    return f"{num_bytes / GIB:.2f}"


def in_gib(values: dict[str, Any]) -> dict[str, Any]:
    """Bytes as GiB, under names that say so."""
    sizes = {name: value / GIB for name, value in values.items() if name.endswith("_bytes")}
    return {name.replace("_bytes", "_gib"): sizes.get(name, v) for name, v in values.items()}


def unit_of(sizes: Iterable[float]) -> tuple[int, str]:
    """GiB where the largest of `sizes` in bytes reaches half of one, else MiB; with its name."""
    return (GIB, "GiB") if max(sizes, default=0) >= GIB / 2 else (MIB, "MiB")


def human_bytes(num_bytes: float) -> str:
    """Bytes with the binary unit that keeps one to three digits before the point."""
    sign, size = ("-" if num_bytes < 0 else ""), abs(float(num_bytes))
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{sign}{size:.0f} {unit}" if unit == "B" else f"{sign}{size:.2f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def human_count(count: float) -> str:
    """``70.6 B`` for 70.6e9 parameters, ``1.23 M`` for 1.23e6."""
    for scale, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if significant(count, 3) >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f}"


def amount(value: float) -> str:
    """Three digits of a sum or a rate: ``7.25``, ``512``, ``54,300``, ``4.1 M``."""
    for scale, unit in ((1e9, "B"), (1e6, "M")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{significant(value, 3):,.0f}" if value >= 100 else f"{value:.3g}"


def rate_words(tokens_per_second: float, gpu_hours: float, price: float | None) -> str:
    """What a job trains in a second, and what 10^12 tokens take: `gpu_hours`, and money where a
    GPU-hour has a `price`."""
    money = "" if price is None else f" ({amount(gpu_hours * price)} at {price:g} per GPU-hour)"
    hours = f"10^12 tokens take {amount(gpu_hours)} GPU-hours{money}"
    return f"{amount(tokens_per_second)} tokens/s; {hours}."


def milliseconds(seconds: float) -> str:
    """``12.3 ms``."""
    return f"{seconds * 1e3:.1f} ms"


_VERDICTS: Final = (50, 90, 95, 99)


def percent(probability: float) -> str:
    """``97 %``; no prediction is certain, so neither 0 nor 100 is ever printed, and what a verdict
    begins with (``90 %``) only where it is reached."""
    if probability < 0.005:
        return "<1 %"
    if probability >= 0.995:
        return ">99 %"
    whole = float(f"{probability * 100:.0f}")
    return f"{whole - (whole in _VERDICTS and probability * 100 < whole):.0f} %"


def signed_percent(ratio: float) -> str:
    """``+12.3 %`` for 0.123; exactly zero prints a dash."""
    return DASH if ratio == 0 else f"{ratio * 100:+.1f} %"


def counted(number: int, name: str) -> str:
    """``1 row``, ``3 rows``."""
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


_WRITTEN_OUT = 10**9


def many(number: int) -> str:
    """``35,902,710``, and ``3.0 x 10^12`` from a thousand million on.

    >>> many(3_035_483_545_644)
    '3.0 x 10^12'
    """
    if number < _WRITTEN_OUT:
        return f"{number:,}"
    power = len(str(number)) - 1
    return f"{number // 10 ** (power - 1) / 10:.1f} x 10^{power}"


def ranges(numbers: Sequence[int]) -> str:
    """``2, 5-8`` for 2, 5, 6, 7, 8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def whole_number(text: str) -> int | None:
    """The number that at most `MOST_COUNT_DIGITS` ASCII digits write; None for any other text."""
    digits = text.isascii() and text.isdigit() and len(text) <= MOST_COUNT_DIGITS
    return int(text) if digits else None
