"""Robust statistics and intervals of a ratio, on numbers that can be checked by hand."""

import math
import random
import sys
from statistics import median

import pytest

from advisor.base.errors import UserError
from harness.judge.resample import Side, iqr, pooled_noise, quartiles, step_noise
from harness.judge.stats import (
    Interval,
    Repeats,
    Shift,
    half_width,
    multiplier,
    relative_shift,
    repeats_to_settle,
    summarise,
)

pytest.importorskip("numpy")
pytest.importorskip("scipy")


def test_quantiles_interpolate() -> None:
    assert quartiles([4.0, 1.0, 3.0, 2.0]) == (1.75, 3.25)
    assert iqr([1.0, 2.0, 3.0, 4.0]) == 1.5
    assert quartiles([7.0]) == (7.0, 7.0)


@pytest.mark.parametrize(
    ("level", "freedom", "textbook"),
    [(0.95, 0, 1.959964), (0.95, 1, 12.706205), (0.95, 8, 2.306004), (0.99, 4, 4.604095)],
)
def test_the_multiplier_is_the_textbooks(level: float, freedom: int, textbook: float) -> None:
    """Tables of the normal and of Student's t distribution, six decimals."""
    assert multiplier(level, freedom) == pytest.approx(textbook, abs=5e-7)


def test_without_scipy_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(UserError) as caught:
        relative_shift([[1.0], [1.1]], [[1.0], [1.1]], 0.01)
    assert str(caught.value) == (
        "harness compare: needs scipy; in the checkout run: pip install -e '.[harness]'"
    )


def test_a_summary_counts_processes_and_steps() -> None:
    one = summarise([[1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0], [3.0, 4.0, 5.0, 6.0]])
    assert (one.median, one.iqr, one.processes, one.steps) == (3.5, 1.5, 3, 12)
    assert one.spread == pytest.approx(1.5 / 3.5)
    assert one.process_spread == pytest.approx(1 / 3.5)
    assert summarise([[2.0]]).process_spread is None


def test_an_outlying_step_moves_nothing() -> None:
    assert summarise([[1.0, 1.0, 1.0, 50.0]]).median == 1.0


def test_the_ratio_is_the_median_over_pairs() -> None:
    shift = relative_shift([[1.1], [1.2], [1.3]], [[1.0], [1.0], [2.0]], 0.01)
    pairs = [math.log(new / old) for new in (1.1, 1.2, 1.3) for old in (1.0, 1.0, 2.0)]
    assert shift.ratio == pytest.approx(math.exp(median(pairs)))


def test_one_bad_process_of_five_does_not_decide() -> None:
    good = [[1.0], [1.01], [0.99], [1.0], [1.005]]
    shift = relative_shift([*good[:4], [3.0]], good, 0.01)
    assert shift.ratio == pytest.approx(1.0, abs=0.01)


def test_the_same_samples_give_the_same_interval() -> None:
    samples = [[1.0, 1.1, 1.2], [1.1, 1.0, 1.3]]
    assert relative_shift(samples, samples, 0.01) == relative_shift(samples, samples, 0.01)


def test_identical_processes_have_no_width() -> None:
    shift = relative_shift([[2.0]] * 5, [[1.0]] * 5, 0.01)
    assert shift.interval.low == shift.interval.high == pytest.approx(2.0)
    assert shift.noise == 0.0
    assert not shift.noise_assumed


def test_the_interval_holds_the_estimate_and_the_strict_one_is_wider() -> None:
    draw = random.Random(7)
    new, old = ([[draw.gauss(1.0, 0.02)] for _ in range(4)] for _ in range(2))
    shift = relative_shift(new, old, 0.01)
    assert shift.strict.low < shift.interval.low < shift.ratio
    assert shift.ratio < shift.interval.high < shift.strict.high


def test_one_process_a_side_takes_the_assumed_noise() -> None:
    shift = relative_shift([[1.0] * 10], [[1.0] * 10], 0.01)
    assert shift.noise_assumed
    assert shift.interval.high - 1 == pytest.approx(1.96 * 0.01 * math.sqrt(2), rel=0.15)
    assert shift.strict.high - 1 == pytest.approx(2 * 2.576 * 0.01 * math.sqrt(2), rel=0.2)


def test_noisy_steps_of_a_single_process_raise_the_assumed_noise() -> None:
    steps = [0.9, 1.1] * 10
    shift = relative_shift([steps], [[1.0]], 0.01)
    assert shift.noise == pytest.approx(step_noise(Side(samples=[steps])))
    assert shift.noise > 0.1


def test_blocks_keep_the_correlation_of_steps() -> None:
    """Two plateaus of one process: resampling single steps would make the median too certain."""
    np = pytest.importorskip("numpy")
    plateaus, mixed = [1.0] * 8 + [1.1] * 8, [1.0, 1.1] * 8
    spreads = [
        Side(samples=[steps]).draw(np.random.default_rng(1), 0.0).std()
        for steps in (plateaus, mixed)
    ]
    assert spreads[0] > 1.2 * spreads[1]


def test_a_single_process_borrows_the_noise_of_the_other_side() -> None:
    golden = [[0.98], [1.0], [1.02]]
    shift = relative_shift([[1.0]], golden, 0.001)
    assert not shift.noise_assumed
    assert shift.noise == pytest.approx(pooled_noise([Side(samples=golden)]))
    assert shift.noise == pytest.approx(0.02, rel=0.01)


def test_an_exact_golden_has_no_noise() -> None:
    new = [[1.0], [1.01], [0.99]]
    exact = relative_shift(new, [[1.0]], 0.01, exact_golden=True)
    assert exact.golden_processes == 0
    measured = relative_shift(new, [[1.0]], 0.01)
    assert exact.interval.high < measured.interval.high


def test_half_width_is_the_formula() -> None:
    assert half_width(0.01, 5, 5) == pytest.approx(2.306004 * 0.01 * math.sqrt(0.4))
    assert half_width(0.01, 1, 0) == pytest.approx(0.01959964)


def shift_of(noise: float, processes: int, golden: int) -> Shift:
    unit = Interval(low=1.0, high=1.0)
    return Shift(
        ratio=1.0,
        interval=unit,
        strict=unit,
        noise=noise,
        noise_assumed=False,
        processes=processes,
        golden_processes=golden,
    )


def test_repeats_are_the_least_that_settle() -> None:
    found = repeats_to_settle(shift_of(0.02, 2, 5), 0.025)
    assert found is not None
    assert not found.golden_too
    assert half_width(0.02, found.count, 5) < 0.025 <= half_width(0.02, found.count - 1, 5)


def test_a_poor_golden_must_be_repeated_too() -> None:
    assert repeats_to_settle(shift_of(0.02, 3, 1), 0.015) == Repeats(count=15, golden_too=True)
    assert half_width(0.02, 15, 15) < 0.015 <= half_width(0.02, 14, 14)


def test_what_no_number_of_repeats_settles() -> None:
    assert repeats_to_settle(shift_of(0.5, 5, 5), 0.001) is None
