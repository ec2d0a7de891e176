"""Robust statistics and intervals of a ratio, on numbers that can be checked by hand."""

import math
import random
import sys
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.base.errors import UserError
from harness.judge.metrics import ALLOCATED, METRICS, STEP_TIME, TFLOPS, Better
from harness.judge.stats import (
    Interval,
    Repeats,
    SampledSetting,
    Shift,
    half_width,
    iqr,
    multiplier,
    pooled_noise,
    quartiles,
    relative_shift,
    repeats_to_settle,
    step_noise,
    summarise,
)
from harness.judge.verdict import NEAR, Verdict, Worsening, judge

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


def test_without_scipy_the_command_that_installs_it_is_named(monkeypatch) -> None:
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
    assert summarise([[1.0, 1.0, 1.0, 50.0]]).median == 1.0, "an outlying step moves nothing"


def test_the_ratio_is_the_median_over_pairs() -> None:
    shift = relative_shift([[1.1], [1.2], [1.3]], [[1.0], [1.0], [2.0]], 0.01)
    pairs = [math.log(new / old) for new in (1.1, 1.2, 1.3) for old in (1.0, 1.0, 2.0)]
    assert shift.ratio == pytest.approx(math.exp(median(pairs)))


def test_one_bad_process_of_five_does_not_decide() -> None:
    good = [[1.0], [1.01], [0.99], [1.0], [1.005]]
    shift = relative_shift([*good[:4], [3.0]], good, 0.01)
    assert shift.ratio == pytest.approx(1.0, abs=0.01)


def test_the_same_samples_give_the_same_interval_and_identical_ones_no_width() -> None:
    samples = [[1.0, 1.1, 1.2], [1.1, 1.0, 1.3]]
    assert relative_shift(samples, samples, 0.01) == relative_shift(samples, samples, 0.01)
    shift = relative_shift([[2.0]] * 5, [[1.0]] * 5, 0.01)
    assert shift.interval.low == shift.interval.high == pytest.approx(2.0)
    assert (shift.noise, shift.noise_assumed) == (0.0, False)


def test_the_interval_holds_the_estimate_and_the_strict_one_is_wider() -> None:
    draw = random.Random(7)
    new, old = ([[draw.gauss(1.0, 0.02)] for _ in range(4)] for _ in range(2))
    shift = relative_shift(new, old, 0.01)
    assert shift.strict.low < shift.interval.low < shift.ratio
    assert shift.ratio < shift.interval.high < shift.strict.high


def test_one_process_a_side_takes_the_assumed_noise_or_that_of_its_steps() -> None:
    shift = relative_shift([[1.0] * 10], [[1.0] * 10], 0.01)
    assert shift.noise_assumed
    assert shift.interval.high - 1 == pytest.approx(1.96 * 0.01 * math.sqrt(2), rel=0.15)
    assert shift.strict.high - 1 == pytest.approx(2 * 2.576 * 0.01 * math.sqrt(2), rel=0.2)
    steps = [0.9, 1.1] * 10
    noisy = relative_shift([steps], [[1.0]], 0.01)
    assert noisy.noise == pytest.approx(step_noise(SampledSetting(samples=[steps])))
    assert noisy.noise > 0.1


def test_blocks_keep_the_correlation_of_steps() -> None:
    """Two plateaus of one process: resampling single steps would make the median too certain."""
    np = pytest.importorskip("numpy")
    plateaus, mixed = [1.0] * 8 + [1.1] * 8, [1.0, 1.1] * 8
    spreads = [
        SampledSetting(samples=[steps]).draw(np.random.default_rng(1), 0.0).std()
        for steps in (plateaus, mixed)
    ]
    assert spreads[0] > 1.2 * spreads[1]


def test_a_single_process_borrows_the_noise_of_the_other_side() -> None:
    golden = [[0.98], [1.0], [1.02]]
    shift = relative_shift([[1.0]], golden, 0.001)
    assert not shift.noise_assumed
    assert shift.noise == pytest.approx(pooled_noise([SampledSetting(samples=golden)]))
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
    assert not found.golden_too
    assert half_width(0.02, found.count, 5) < 0.025 <= half_width(0.02, found.count - 1, 5)
    poor = repeats_to_settle(shift_of(0.02, 3, 1), 0.015)
    assert poor == Repeats(count=15, golden_too=True), "a poor golden must be repeated too"
    assert half_width(0.02, 15, 15) < 0.015 <= half_width(0.02, 14, 14)
    assert repeats_to_settle(shift_of(0.5, 5, 5), 0.001) is None


LIMIT = 0.05
RATIOS = st.floats(0.5, 2.0)
WIDTHS = st.floats(0.0, 0.4)
SAMPLES = st.lists(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=6), min_size=1, max_size=5)
SEVERITY = (Verdict.STALE, Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.REGRESSION)


def shift(ratio: float, half: float, strict: float = 1.4) -> Shift:
    """Intervals that are symmetric in the logarithm, as those of a ratio are."""

    def around(width: float) -> Interval:
        return Interval(low=ratio * math.exp(-width), high=ratio * math.exp(width))

    return replace(
        shift_of(0.01, 5, 5), ratio=ratio, interval=around(half), strict=around(strict * half)
    )


def verdict(ratio: float, half: float, name: str = STEP_TIME, limit: float = LIMIT) -> Verdict:
    return judge(shift(ratio, half), METRICS[name], limit, 1.0).verdict


@given(ratio=RATIOS, half=WIDTHS)
def test_a_regression_excludes_no_change_and_reaches_the_limit(ratio: float, half: float) -> None:
    assert verdict(ratio, half) in SEVERITY
    if verdict(ratio, half) is Verdict.REGRESSION:
        one = shift(ratio, half)
        assert one.strict.low > 1.0
        assert one.interval.high >= 1 + LIMIT
        assert ratio - 1 >= NEAR * LIMIT
    if verdict(ratio, half) is Verdict.PASS:
        assert shift(ratio, half).interval.high < 1 + LIMIT


@given(first=RATIOS, second=RATIOS, half=WIDTHS)
def test_a_larger_slowdown_is_never_judged_milder(first: float, second: float, half: float) -> None:
    low, high = sorted((first, second))
    assert SEVERITY.index(verdict(low, half)) <= SEVERITY.index(verdict(high, half))


@given(ratio=RATIOS, half=WIDTHS, limits=st.tuples(st.floats(0.01, 0.5), st.floats(0.01, 0.5)))
def test_a_wider_limit_makes_no_new_regression(ratio, half, limits) -> None:
    narrow, wide = sorted(limits)
    if verdict(ratio, half, limit=wide) is Verdict.REGRESSION:
        assert verdict(ratio, half, limit=narrow) is Verdict.REGRESSION


@given(ratio=RATIOS, half=WIDTHS)
def test_throughput_is_judged_as_a_step_time_turned_over(ratio: float, half: float) -> None:
    """Seen from the bad side, the same distances: 1 - r of throughput is r' - 1 of a time."""
    worse = Worsening.from_shift(shift(ratio, half), Better.HIGHER)
    one = shift(ratio, half)
    assert worse.estimate == pytest.approx(1 - ratio)
    assert worse.interval.low == pytest.approx(1 - one.interval.high)
    assert worse.interval.high == pytest.approx(1 - one.interval.low)
    twice = worse.mirrored.mirrored
    assert twice.estimate == worse.estimate
    assert (twice.strict.low, twice.strict.high) == (worse.strict.low, worse.strict.high)


@pytest.mark.parametrize("name", [STEP_TIME, TFLOPS])
def test_at_the_very_edges(name: str) -> None:
    """No width: the estimate alone decides, and two thirds of the limit are not the limit."""
    sign = 1 if name == STEP_TIME else -1
    assert verdict(1.0, 0.0, name) is Verdict.PASS
    assert verdict(1 + sign * 0.0499, 0.0, name) is Verdict.PASS
    assert verdict(1 + sign * 0.0501, 0.0, name) is Verdict.REGRESSION
    assert verdict(1 - sign * 0.0501, 0.0, name) is Verdict.STALE
    assert verdict(1 - sign * 0.0499, 0.0, name) is Verdict.PASS


@pytest.mark.parametrize("difference", [-63 * 2**20, 0, 63 * 2**20])
def test_the_floor_holds_in_both_directions(difference: int) -> None:
    judged = judge(shift(3.0, 0.0), METRICS[ALLOCATED], 0.02, difference)
    assert judged.verdict is Verdict.PASS
    assert judged.reason == ("differs by less than 64.00 MiB" if difference else "")


@pytest.mark.parametrize(("ratio", "verdict"), [(0.5, Verdict.STALE), (1.5, Verdict.REGRESSION)])
def test_beyond_the_floor_the_limit_holds(ratio: float, verdict: Verdict) -> None:
    difference = 65 * 2**20 if ratio > 1 else -(2**30)
    assert judge(shift(ratio, 0.0), METRICS[ALLOCATED], 0.02, difference).verdict is verdict


def test_what_would_settle_depends_on_where_the_estimate_lies() -> None:
    """Below two thirds of the limit more repeats can only lead to a pass; above, to either."""
    wide = replace(shift(1.02, 0.05), noise=0.03)
    below = judge(wide, METRICS[STEP_TIME], LIMIT, 1.0)
    above = judge(replace(shift(1.04, 0.08), noise=0.03), METRICS[STEP_TIME], LIMIT, 1.0)
    for judged in (below, above):
        assert judged.verdict is Verdict.INCONCLUSIVE
        assert judged.repeats.count > wide.processes
        assert f"measure.repeats={judged.repeats.count}" in judged.reason
    alone = replace(shift(1.02, 0.2), noise=0.03, processes=1, golden_processes=1)
    both = judge(alone, METRICS[STEP_TIME], LIMIT, 1.0)
    assert both.repeats.golden_too
    assert "of run and golden" in both.reason


@settings(max_examples=25, deadline=None)
@given(new=SAMPLES, golden=SAMPLES, scale=st.sampled_from([1e-3, 2.0, 1e9]))
def test_the_unit_of_the_samples_does_not_matter(new, golden, scale) -> None:
    def scaled(samples: list[list[float]]) -> list[list[float]]:
        return [[scale * value for value in steps] for steps in samples]

    plain = relative_shift(new, golden, 0.01)
    other = relative_shift(scaled(new), scaled(golden), 0.01)
    assert other.ratio == pytest.approx(plain.ratio)
    assert other.interval.low == pytest.approx(plain.interval.low)
    assert other.strict.high == pytest.approx(plain.strict.high)


@settings(max_examples=25, deadline=None)
@given(new=SAMPLES, golden=SAMPLES)
def test_intervals_are_nested_and_hold_the_estimate(new, golden) -> None:
    found = relative_shift(new, golden, 0.01)
    tiny = 1 + 1e-9  # exp and log of the same number
    assert found.interval.low <= found.ratio * tiny
    assert found.ratio <= found.interval.high * tiny
    assert found.strict.low <= found.interval.low * tiny
    assert found.interval.high <= found.strict.high * tiny


@settings(max_examples=25, deadline=None)
@given(new=SAMPLES, golden=SAMPLES)
def test_turned_round_the_ratio_is_turned_over(new, golden) -> None:
    there, back = relative_shift(new, golden, 0.01), relative_shift(golden, new, 0.01)
    assert there.ratio * back.ratio == pytest.approx(1.0)
    assert there.noise == pytest.approx(back.noise)
    assert there.noise_assumed == back.noise_assumed
