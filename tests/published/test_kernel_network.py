"""Published times of collectives and dispatches, predicted by the advisor's own functions."""

from collections import defaultdict

import pytest
from msgspec.structs import fields

from advisor.hardware.calibration import Calibration
from research.kernels import network
from research.kernels.least_squares import Fit

ROWS = network.fitted_rows()


@pytest.fixture(scope="module")
def found() -> Fit:
    return network.fit(ROWS)


def mean(values: list[float]) -> float:
    return sum(map(abs, values)) / len(values)


def test_the_defaults_are_what_the_rows_give() -> None:
    given = {field.name: field.default for field in fields(Calibration)}
    for family, values in network.constants(ROWS).items():
        for name, value in values.items():
            if isinstance(given[name], float):
                assert given[name] == pytest.approx(value, rel=0.02), (family, name)


def test_large_collectives_are_within_a_tenth(found: Fit) -> None:
    """Of 256 MiB and more, over four ranks and more: those of two, in XLA's table alone, are up to
    44 % slower than NCCL's own of four."""
    large = [row for row in ROWS if row.num_bytes >= 2**28 and row.ranks >= 4 and not row.model]
    assert len(large) > 300
    assert mean(network.errors(large, found)) < 0.08


def test_all_rows_are_within_a_fifth_on_average(found: Fit) -> None:
    assert mean(network.errors(ROWS, found)) < 0.165


@pytest.mark.parametrize("gpu", ["A100", "H100", "H200", "B200", "GB200", "GB300"])
def test_a_gpu_that_the_fit_has_not_seen(gpu: str) -> None:
    """A100 has no other of its generation: its NVLink's efficiency is then the fit's start."""
    unseen = [row for row in ROWS if row.gpu.name.startswith(gpu)]
    assert unseen
    others = network.fit([row for row in ROWS if not row.gpu.name.startswith(gpu)])
    assert mean(network.errors(unseen, others)) < 0.22


def _of(words: str, gpu: str) -> list[network.Measured]:
    rows = [
        row
        for row in (*network.collectives(), *network.dispatches())
        if words in row.words and row.gpu.name.startswith(gpu) and "Megatron-Core" in row.source
    ]
    assert rows
    return rows


@pytest.mark.parametrize("gpu", ["H100", "GB200"])
@pytest.mark.parametrize("words", ["NCCL all-to-all", "HybridEP"])
def test_dispatchers_of_the_megatron_core_report(gpu: str, words: str, found: Fit) -> None:
    """Table 7: 0.4 to 9.2 ms over 8 to 64 ranks, in a node, over nodes and in a rack."""
    assert mean(network.errors(_of(words, gpu), found)) < 0.17


@pytest.mark.parametrize("gpu", ["H100", "GB200"])
def test_hybridep_is_faster_than_nccl_at_every_size(gpu: str, found: Fit) -> None:
    times: dict[int, dict[bool, float]] = defaultdict(dict)
    for words in ("NCCL all-to-all", "HybridEP"):
        for row in _of(words, gpu):
            seconds = network.predicted(row, found.calibrations[row.family])
            times[row.ranks][row.model is not None] = seconds
    assert len(times) == 4
    assert all(by_flex[True] < by_flex[False] for by_flex in times.values())


def test_jobs_scale_as_the_spread_of_the_others_says() -> None:
    """11 jobs on 8 to 11,200 GPUs; alone a LoRA in BF16, on up to 32, does not lengthen."""
    jobs = network.weak_scaling()
    alone, spread = [], []
    for job, times in jobs.items():
        others = network.speed_spread(rows for name, rows in jobs.items() if name != job)
        assert 0.02 < others < 0.03
        alone.append(network.spread_error(times, 0.0))
        spread.append(network.spread_error(times, others))
    assert sum(now < was for was, now in zip(alone, spread, strict=True)) >= len(jobs) - 1
    assert mean(spread) < 0.6 * mean(alone)
