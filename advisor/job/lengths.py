"""The distribution of the lengths of samples, from quantiles or from a file.

Between quantiles the logarithm of the length is linear in the normal deviate: lengths are piecewise
log-normal. max is taken for what one sample in 10,000 reaches, or a tenth of those above the
highest quantile, if these are fewer; min for what one in 10,000 stays below. Where max is the only
one, all samples are as long; with mean alone next to it they are log-normal. That is an assumption:
a file has none.
"""

import csv
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate, pairwise
from math import erf, exp, log, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

import msgspec

from advisor.base.errors import UserError
from advisor.base.fields import show, show_path

_KEY: Final = "samples.lengths"
_RARE: Final = 1e-4
_STEP: Final = 0.02
"""Of the normal deviate, between two lengths."""
_MOST_LENGTHS: Final = 4096
_NORMAL: Final = NormalDist()
_QUANTILE: Final = re.compile(r"(?:p(\d+(?:\.\d+)?)|(min|max|mean))=(\d+)")
_EXAMPLE: Final = "write e.g. p50=900,p99=9000,max=32768, or the path of a file"
_LENGTH: Final = re.compile(r"len|tok|input_ids", re.IGNORECASE)
_COUNT: Final = re.compile(r"count|freq|weight|samples", re.IGNORECASE)
_LONGEST: Final = 2**30


class Lengths(msgspec.Struct, frozen=True):
    """Lengths in tokens, ascending, and the share of samples of each; shares sum to 1."""

    values: tuple[int, ...]
    shares: tuple[float, ...]

    @property
    def longest(self) -> int:
        """Of all samples."""
        return self.values[-1]

    @property
    def mean(self) -> float:
        """Tokens of a sample."""
        return sum(map(float.__mul__, self.shares, map(float, self.values)))

    @property
    def mean_square(self) -> float:
        """Of the tokens of a sample."""
        return sum(share * value**2 for value, share in self)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self.values, self.shares, strict=True)

    def cut(self, longest: int) -> "Lengths":
        """With samples cut at so many tokens."""
        if longest >= self.longest:
            return self
        place = bisect_left(self.values, longest)
        rest = sum(self.shares[place:])
        return Lengths((*self.values[:place], longest), (*self.shares[:place], rest))

    def padded(self, multiple: int) -> "Lengths":
        """Each a multiple."""
        found: Counter[int] = Counter()
        for value, share in self:
            found[-(-value // multiple) * multiple] += share  # type: ignore[assignment]
        return Lengths(tuple(found), tuple(found.values()))

    def not_above(self, length: int) -> float:
        """Share of the samples."""
        return min(1.0, sum(self.shares[: bisect_right(self.values, length)]))

    def quantile(self, share: float) -> int:
        """The length that so large a share of the samples do not exceed."""
        place = bisect_left(list(accumulate(self.shares)), share - _ROUNDING)
        return self.values[min(place, len(self.values) - 1)]

    def longest_of(self, draws: float) -> tuple[float, float]:
        """Mean and standard deviation of the longest of so many samples."""
        reached = [min(1.0, one) ** draws for one in accumulate(self.shares)]
        mass = [high - low for low, high in pairwise((0.0, *reached))]
        mean = sum(map(float.__mul__, mass, map(float, self.values)))
        square = sum(share * value**2 for share, value in zip(mass, self.values, strict=True))
        return mean, sqrt(max(0.0, square - mean**2))


_ROUNDING: Final = 1e-12


def expected_most(draws: int) -> float:
    """The highest of so many normal deviates, in the mean (Blom 1958)."""
    return _NORMAL.inv_cdf((draws - 0.375) / (draws + 0.25)) if draws > 1 else 0.0


def read_lengths(text: str) -> Lengths:
    """What `samples.lengths` says. UserError where that is no distribution."""
    if "=" in text and not Path(text).exists():
        return _of_quantiles(text)
    path = Path(text).expanduser()
    try:
        return _of_file(path, path.stat().st_mtime_ns)
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise UserError(_KEY, show_path(text), reason.lower(), _EXAMPLE) from None
    except UnicodeDecodeError:
        raise UserError(_KEY, show_path(text), "is not text", _EXAMPLE) from None


@lru_cache(maxsize=16)
def _of_quantiles(text: str) -> Lengths:
    given: dict[float, int] = {}
    mean = None
    for part in text.split(","):
        match = _QUANTILE.fullmatch(part.strip().replace("_", "").lower())
        if match is None:
            raise UserError(_KEY, show(part), "is not a quantile", _EXAMPLE)
        percent, name, length = match[1], match[2], int(match[3])
        if not 1 <= length <= _LONGEST:
            raise UserError(_KEY, show(part), "is not a number of tokens", _EXAMPLE)
        if name == "mean":
            mean = length
            continue
        share = {"min": 0.0, "max": 1.0}[name] if name else float(percent) / 100
        if share > 1 or given.setdefault(share, length) != length:
            raise UserError(_KEY, show(part), "is above p100, or given twice", _EXAMPLE)
    if 1.0 not in given:
        reason = "does not say the longest sample, which decides the worst microbatch"
        raise UserError(_KEY, show(text), reason, "add e.g. max=32768")
    points = sorted(given.items())
    for (low, shorter), (high, longer) in pairwise(points):
        if longer < shorter:
            names = _name(high), _name(low)
            raise UserError(_KEY, show(text), f"{names[0]} is below {names[1]}", _EXAMPLE)
    return _log_normal(points, mean, text)


def _name(share: float) -> str:
    return {0.0: "min", 1.0: "max"}.get(share, f"p{share * 100:g}")


def _log_normal(points: list[tuple[float, int]], mean: int | None, text: str) -> Lengths:
    """Piecewise log-normal through (share, length), the last of which is the longest."""
    longest, inner = points[-1][1], [share for share, _ in points[:-1]]
    rare = min(_RARE, (1 - max(inner, default=0.0)) / 10)
    top = _NORMAL.inv_cdf(1 - rare)
    knots = [(_NORMAL.inv_cdf(share or _RARE), log(length)) for share, length in points[:-1]]
    if mean is not None:
        square = top**2 - 2 * log(longest / mean) if mean <= longest else -1.0
        if knots or square < 0:
            reason = "mean goes with max alone, above it and not below a thousandth of it"
            raise UserError(_KEY, show(text), reason, _EXAMPLE)
        knots = [(0.0, log(longest) - top * (top - sqrt(square)))]
    if not knots:
        return Lengths((longest,), (1.0,))
    knots.append((top, log(longest)))
    found: Counter[int] = Counter()
    edges = [-top + _STEP * number for number in range(int(2 * top / _STEP))] + [top]
    for low, high in pairwise(edges):
        length = max(1, min(longest, round(exp(_at(knots, (low + high) / 2)))))
        found[length] += _below(high) - _below(low)  # type: ignore[assignment]
    found[longest] += rare  # type: ignore[assignment]
    return _of_counts(found)


def _at(knots: list[tuple[float, float]], deviate: float) -> float:
    """The line through two knots, of the nearest two."""
    place = min(max(1, bisect_left(knots, (deviate,))), len(knots) - 1)
    (low, start), (high, end) = knots[place - 1 : place + 1]
    return start + (end - start) * (deviate - low) / (high - low)


def _below(deviate: float) -> float:
    return (1 + erf(deviate / sqrt(2))) / 2


def _of_counts(counts: Mapping[int, float]) -> Lengths:
    """Shares of lengths; of very many lengths some are put together, never the longest."""
    lengths, total = sorted(counts), sum(counts.values())
    *most, longest = lengths
    size = -(-len(lengths) // _MOST_LENGTHS)
    values, shares = [], []
    for start in range(0, len(most), size):
        several = most[start : start + size]
        number = sum(counts[one] for one in several)
        values.append(round(sum(one * counts[one] for one in several) / number))
        shares.append(number / total)
    return Lengths((*values, longest), (*shares, counts[longest] / total))


@lru_cache(maxsize=4)
def _of_file(path: Path, _modified: int) -> Lengths:
    """One length a line, or CSV or JSON lines with a column of lengths (or of lists of tokens), and
    one of counts where it is a histogram."""
    lines = path.read_text(encoding="utf-8").splitlines()
    head = next((line for line in lines if line.strip()), "0")
    read, titled = _reader(head, path)
    counts: Counter[int] = Counter()
    for line, number in Counter(lines).items():
        if not line.strip() or (titled and line == head):
            continue
        try:
            length, times = read(line)
        except (ValueError, TypeError, LookupError):
            length, times = 0, 0
        if not 1 <= length <= _LONGEST or times < 0:
            where = (
                f"line {lines.index(line) + 1}: {show(line.strip())} is not a length of 1 or more"
            )
            raise UserError(_KEY, show_path(path), where, "write one length a line")
        counts[length] += times * number
    if not any(counts.values()):
        raise UserError(_KEY, show_path(path), "holds no lengths", "write one length a line")
    return _of_counts({length: number for length, number in counts.items() if number})


def _reader(head: str, path: Path) -> tuple[Callable[[str], tuple[int, int]], bool]:
    """What reads length and count of a line like the first one, and whether that names columns."""
    if head.lstrip().startswith("{"):
        names = list(_record(head))
        length, count = _columns(names, path)

        def of_record(line: str) -> tuple[int, int]:
            record = _record(line)
            value = record[names[length]]
            size = len(value) if isinstance(value, list) else int(value)
            return size, 1 if count is None else int(record[names[count]])

        return of_record, False
    mark = next((one for one in ",;\t" if one in head), None)

    def cells(line: str) -> list[str]:
        return next(csv.reader([line], delimiter=mark)) if mark else line.split()

    names = cells(head)
    titled = not names[0].strip().lstrip("+-").replace(".", "").isdigit()
    length, count = _columns(names, path) if titled else (0, 1 if len(names) > 1 else None)

    def of_cells(line: str) -> tuple[int, int]:
        found = cells(line)
        return int(found[length]), 1 if count is None else int(found[count])

    return of_cells, titled


def _record(line: str) -> dict[str, Any]:
    return msgspec.json.decode(line, type=dict[str, Any])


def _columns(names: list[str], path: Path) -> tuple[int, int | None]:
    """Places of the lengths and of their counts, if they have any."""
    count = next((place for place, name in enumerate(names) if _COUNT.search(name)), None)
    for place, name in enumerate(names):
        if place != count and _LENGTH.search(name):
            return place, count
    there = f"has no column of lengths: {show(', '.join(names))}"
    raise UserError(_KEY, show_path(path), there, "name it length, and its counts count")
