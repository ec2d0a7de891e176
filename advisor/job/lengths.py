"""The distribution of the lengths of samples, from quantiles or from a file.

Between quantiles the logarithm of the length is linear in the normal deviate: lengths are piecewise
log-normal, and so are those below the lowest one. max is taken for what one sample in 10,000
reaches, or a tenth of those above the highest quantile, if these are fewer. That is an assumption;
a file needs none.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import accumulate, pairwise
from math import erf, exp, log, sqrt
from operator import mul
from pathlib import Path
from typing import Any, Final

from msgspec import DecodeError, Struct, json

from advisor.base.errors import UserError, show, show_path

_KEY: Final = "samples.lengths"
_LEAST_RARE, _STEP = 1e-4, 0.02
"""Share of samples that reach max; of the normal deviate, between two lengths."""
_MOST_LENGTHS: Final = 4096
_LONGEST: Final = 2**30
_ROUNDING: Final = 1e-12
_QUANTILE: Final = re.compile(r"(?:p(\d+(?:\.\d+)?)|max)=(\d+)")
_EXAMPLE: Final = "write e.g. p50=900,p99=9000,max=32768, or the path of a file"
_LINES: Final = "write one length a line, or name the columns length and count"
_LENGTH, _COUNT = "len|tok|Len|input_ids", "count|freq|weight|samples"
_CELLS, _NAMES = re.compile(r"[^,;\s]+"), re.compile(r'"([^"]*)"\s*:')


class Lengths(Struct, frozen=True):
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
        return self.sum_of(float)

    def sum_of(self, weight: Callable[[int], float]) -> float:
        """The mean of what a length weighs."""
        return float(sum(map(mul, self.shares, map(weight, self.values))))

    def changed(self, change: Callable[[int], int]) -> "Lengths":
        """With other lengths, in the same order."""
        found: dict[int, float] = {}
        for value, share in zip(map(change, self.values), self.shares, strict=True):
            found[value] = found.get(value, 0.0) + share
        return Lengths(tuple(found), tuple(found.values()))

    def not_above(self, length: int) -> float:
        """Share of the samples."""
        return min(1.0, sum(self.shares[: bisect_right(self.values, length)]))

    def quantile(self, share: float) -> int:
        """The length that so large a share of the samples do not exceed."""
        place = bisect_left(list(accumulate(self.shares)), share - _ROUNDING)
        return self.values[min(place, len(self.values) - 1)]

    def longest_of(self, draws: float) -> "Lengths":
        """Of the longest of so many samples."""
        reached = (0.0, *(min(1.0, one) ** draws for one in accumulate(self.shares)))
        return Lengths(self.values, tuple(high - low for low, high in pairwise(reached)))

    @property
    def deviation(self) -> float:
        """Standard deviation of the tokens of a sample."""
        mean = self.mean
        return sqrt(self.sum_of(lambda value: (value - mean) ** 2))


def expected_most(draws: int) -> float:
    """The highest of so many normal deviates, in the mean (Blom 1958)."""
    return deviate((draws - 0.375) / (draws + 0.25)) if draws > 1 else 0.0


def deviate(share: float) -> float:
    """The normal deviate that so large a share does not exceed."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(share)


def read_lengths(text: str) -> Lengths:
    """What `samples.lengths` says: quantiles, or a file with a length a line, or with columns of
    lengths (or of lists of tokens) and maybe of counts, as CSV or JSON lines. UserError where that
    is no distribution."""
    if "=" in text and not Path(text).exists():
        return _of_quantiles(text)
    path = Path(text).expanduser()
    try:
        return _of_file(path, path.stat().st_mtime_ns)
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
    except UnicodeDecodeError:
        reason = "is not text"
    raise UserError(_KEY, show_path(text), reason, _EXAMPLE)


@lru_cache(maxsize=16)
def _of_quantiles(text: str) -> Lengths:
    *given, (_, longest) = _points(text)
    if not given:
        return Lengths((longest,), (1.0,))
    rare = min(_LEAST_RARE, (1 - given[-1][0]) / 10)
    top = deviate(1 - rare)
    knots = [(deviate(max(share, _LEAST_RARE)), log(length)) for share, length in given]
    knots.append((top, log(longest)))
    found: dict[int, float] = {}
    for low, high in pairwise([*(_STEP * n - top for n in range(int(2 * top / _STEP))), top]):
        length = max(1, min(longest, round(exp(_between(knots, (low + high) / 2)))))
        share = (erf(high / sqrt(2)) - erf(low / sqrt(2))) / 2
        found[length] = found.get(length, 0.0) + share
    found[longest] = found.get(longest, 0.0) + rare
    return _of_counts(found)


def _points(text: str) -> list[tuple[float, int]]:
    """Shares of samples and the lengths that they do not exceed, the longest last."""
    points: dict[float, int] = {}
    for part in text.split(","):
        match = _QUANTILE.fullmatch(part.strip().lower())
        share = float(match[1] or 100) / 100 if match else 2.0
        if match is None or share > 1 or not 1 <= int(match[2]) <= _LONGEST or share in points:
            raise UserError(_KEY, show(text), f"{show(part)} is no quantile", _EXAMPLE)
        points[share] = int(match[2])
    if 1.0 not in points:
        reason = "does not say the longest sample, which decides the worst microbatch"
        raise UserError(_KEY, show(text), reason, "add e.g. max=32768")
    found = sorted(points.items())
    if any(longer < shorter for (_, shorter), (_, longer) in pairwise(found)):
        raise UserError(_KEY, show(text), "higher quantiles must not be shorter", _EXAMPLE)
    return found


def _between(knots: list[tuple[float, float]], place: float) -> float:
    """The line through the two knots around a deviate, or nearest to it."""
    upper = min(max(1, bisect_left(knots, (place,))), len(knots) - 1)
    (low, start), (high, end) = knots[upper - 1 : upper + 1]
    return start + (end - start) * (place - low) / (high - low)


def _of_counts(counts: Mapping[int, float]) -> Lengths:
    """Shares of lengths; of very many lengths neighbours are put together, never the longest."""
    *most, longest = sorted(counts)
    size, total = len(most) // _MOST_LENGTHS + 1, sum(counts.values())
    groups: Iterable[list[int]] = (most[n : n + size] for n in range(0, len(most), size))
    values, shares = [], []
    for several in (*groups, [longest]):
        number = sum(counts[one] for one in several)
        values.append(round(sum(one * counts[one] for one in several) / number))
        shares.append(number / total)
    return Lengths(tuple(values), tuple(shares))


@lru_cache(maxsize=4)
def _of_file(path: Path, _modified: int) -> Lengths:
    lines = Counter(filter(str.strip, path.read_text(encoding="utf-8").splitlines()))
    cells, names = _cells_of(head := next(iter(lines), ""))
    if (named := _columns(names)) and not head.startswith("{"):
        del lines[head]
    length, count = named or (0, 1 if len(names) > 1 else None)
    counts: Counter[int] = Counter()
    for line, number in lines.items():
        try:
            row = cells(line)
            size, times = int(row[length]), 1 if count is None else int(row[count])
        except (ValueError, TypeError, LookupError, DecodeError):
            size, times = 0, 0
        if not 1 <= size <= _LONGEST or times < 0:
            reason = f"{show(line.strip())} is not a length of 1 or more"
            raise UserError(_KEY, show_path(path), reason, _LINES)
        counts[size] += times * number
    if not any(counts.values()):
        raise UserError(_KEY, show_path(path), "holds no lengths", _LINES)
    return _of_counts(+counts)


def _cells_of(head: str) -> tuple[Callable[[str], list[Any]], list[str]]:
    """What reads the cells of a line like the first one, and the cells or the names of that."""
    if not head.startswith("{"):
        return _CELLS.findall, _CELLS.findall(head)
    names = [name for name in _NAMES.findall(head) if re.search(f"{_LENGTH}|{_COUNT}", name)]

    def cells(line: str) -> list[Any]:
        values = map(json.decode(line).get, names)
        return [len(value) if isinstance(value, list) else value for value in values]

    return cells, names


def _columns(names: list[str]) -> tuple[int, int | None] | None:
    """Places of lengths and of counts, if they have any; None where no name is that of lengths."""
    length, count = (
        next((place for place, name in enumerate(names) if re.search(column, name)), None)
        for column in (_LENGTH, _COUNT)
    )
    return None if length is None else (length, None if count == length else count)
