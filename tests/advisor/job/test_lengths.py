"""Distributions of lengths, from quantiles and from files."""

import json
import math
import random
import statistics
from pathlib import Path

import pytest

from advisor.job.lengths import Lengths, expected_most, read_lengths
from tests.advisor.refusals import refused

QUANTILES = "p50=900,p99=9000,max=32768"


def test_quantiles_are_those_that_are_given() -> None:
    found = read_lengths(QUANTILES)
    assert sum(found.shares) == pytest.approx(1)
    assert found.quantile(0.5) == pytest.approx(900, rel=0.02)
    assert found.quantile(0.99) == pytest.approx(9000, rel=0.02)
    assert found.longest == 32768
    assert 1 - found.not_above(32767) == pytest.approx(1e-4, rel=1e-3)
    assert list(found.values) == sorted(set(found.values))


def test_between_them_lengths_are_log_normal() -> None:
    """Quantiles of one log-normal distribution, and its mean."""
    deviates = (0.8 * statistics.NormalDist().inv_cdf(share) for share in (0.99, 0.9999))
    p99, most = (round(1000 * math.exp(deviate)) for deviate in deviates)
    found = read_lengths(f"p50=1000,p99={p99},max={most}")
    assert found.mean == pytest.approx(1000 * math.exp(0.8**2 / 2), rel=0.01)


def test_the_longest_alone_is_the_length_of_all() -> None:
    assert read_lengths("max=4096") == Lengths((4096,), (1.0,))


WRITTEN = {
    "a length a line": "10\n\n30\n10\n",
    "lengths and counts": "10 2\n30 1\n",
    "csv": "id,num_tokens,count\n1,10,2\n2,30,1\n",
    "csv without counts": "token_count;text\n10;a\n30;b\n10;c\n",
    "json lines": '{"text": "a", "length": 10}\n{"text": "b", "length": 30}\n{"length": 10}\n',
    "lists of tokens": "\n".join(json.dumps({"input_ids": [1] * n}) for n in (10, 30, 10)),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    path.write_text(WRITTEN[name])
    assert read_lengths(str(path)) == Lengths((10, 30), (2 / 3, 1 / 3))
    path.write_text("7\n")  # read again where it has changed
    assert read_lengths(str(path)).longest == 7


def test_a_million_lengths(tmp_path: Path) -> None:
    """Many lengths are put together, and neither the mean nor the longest changes."""
    draws = random.Random(1)
    lengths = [1 + int(draws.expovariate(1 / 20000)) for _ in range(100_000)] * 10
    path = tmp_path / "lengths.txt"
    path.write_text("\n".join(map(str, lengths)))
    found = read_lengths(str(path))
    assert len(found.values) <= 4098
    assert found.longest == max(lengths)
    assert found.mean == pytest.approx(statistics.fmean(lengths), rel=1e-4)
    assert found.quantile(0.9) == pytest.approx(sorted(lengths)[900_000], rel=0.01)


WRONG = {
    "p50=900,p99=9000": "longest sample",
    "p50=900,max=100": "must not be shorter",
    "p50=900,p40=1000,max=2000": "must not be shorter",
    "max=0": "no quantile",
    "p50=-3,max=9": "no quantile",
    "p50=many,max=9": "no quantile",
    "p500=3,max=9": "no quantile",
    "p50=3,p50=4,max=9": "no quantile",
    "missing.txt": "no such file",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_quantiles(text: str) -> None:
    with refused("samples.lengths", WRONG[text]):
        read_lengths(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no lengths"),
        ("\n \n", "holds no lengths"),
        ("length,count\n5,0\n", "holds no lengths"),
        ("12\ntwelve\n", "twelve is not a length"),
        ("12\n-3\n", "-3 is not a length"),
        ("12\n0\n", "0 is not a length"),
        ("a,b\n1,2\n", "a,b is not a length"),
        ('{"text": "a"}\n', "is not a length"),
        ('{"length"\n', "is not a length"),
        ("\x00\n", "is not a length"),
    ],
)
def test_wrong_files(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    path.write_text(text)
    with refused("samples.lengths", says):
        read_lengths(str(path))
    with refused("is a directory"):
        read_lengths(str(tmp_path))
    path.write_bytes(b"\xff\xfe\x00")
    with refused("is not text"):
        read_lengths(str(path))


def test_the_longest_of_several() -> None:
    """Against draws: 4 times the standard error of 4,000 of them."""
    found, draws = read_lengths("p50=900,p90=4000,max=8192"), random.Random(7)
    drawn = [max(draws.choices(found.values, found.shares, k=16)) for _ in range(4000)]
    most = found.longest_of(16)
    error = statistics.stdev(drawn) / 4000**0.5
    assert most.mean == pytest.approx(statistics.fmean(drawn), abs=4 * error)
    assert most.deviation == pytest.approx(statistics.stdev(drawn), rel=0.1)


def test_the_highest_deviate() -> None:
    """Known means of normal order statistics (Harter 1961)."""
    assert expected_most(1) == 0
    assert expected_most(8) == pytest.approx(1.4236, abs=0.02)
    assert expected_most(100) == pytest.approx(2.5076, abs=0.02)
