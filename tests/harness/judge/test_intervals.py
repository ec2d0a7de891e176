"""Laws that verdicts and intervals keep whatever the numbers are."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from harness.judge.metrics import ALLOCATED, METRICS, STEP_TIME, TFLOPS, Better
from harness.judge.stats import Interval, Shift, relative_shift
from harness.judge.verdict import NEAR, Verdict, Worsening, judge

pytest.importorskip("numpy")

LIMIT = 0.05
RATIOS = st.floats(0.5, 2.0)
WIDTHS = st.floats(0.0, 0.4)
SAMPLES = st.lists(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=6), min_size=1, max_size=5)
SEVERITY = (Verdict.STALE, Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.REGRESSION)


def shift(ratio: float, half: float, strict: float = 1.4) -> Shift:
    """Intervals that are symmetric in the logarithm, as those of a ratio are."""

    def around(width: float) -> Interval:
        return Interval(low=ratio * math.exp(-width), high=ratio * math.exp(width))

    return Shift(
        ratio=ratio,
        interval=around(half),
        strict=around(strict * half),
        noise=0.01,
        noise_assumed=False,
        processes=5,
        golden_processes=5,
    )


def verdict(ratio: float, half: float, name: str = STEP_TIME, limit: float = LIMIT) -> Verdict:
    return judge(shift(ratio, half), METRICS[name], limit, 1.0).verdict


@given(ratio=RATIOS, half=WIDTHS)
def test_every_shift_has_one_of_four_verdicts(ratio: float, half: float) -> None:
    assert verdict(ratio, half) in SEVERITY


@given(ratio=RATIOS, half=WIDTHS)
def test_a_regression_excludes_no_change_and_reaches_the_limit(ratio: float, half: float) -> None:
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
def test_a_wider_limit_makes_no_new_regression(
    ratio: float, half: float, limits: tuple[float, float]
) -> None:
    narrow, wide = sorted(limits)
    if verdict(ratio, half, limit=wide) is Verdict.REGRESSION:
        assert verdict(ratio, half, limit=narrow) is Verdict.REGRESSION


@given(ratio=RATIOS, half=WIDTHS)
def test_throughput_is_judged_as_a_step_time_turned_over(ratio: float, half: float) -> None:
    """Seen from the bad side, the same distances: 1 - r of throughput is r' - 1 of a time."""
    worse = Worsening.of(shift(ratio, half), Better.HIGHER)
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


def test_an_improvement_beyond_the_limit_is_no_pass() -> None:
    assert judge(shift(0.5, 0.0), METRICS[ALLOCATED], 0.02, -(2**30)).verdict is Verdict.STALE


def test_what_would_settle_depends_on_where_the_estimate_lies() -> None:
    """Below two thirds of the limit more repeats can only lead to a pass; above, to either."""
    wide = replace(shift(1.02, 0.05), noise=0.03)
    below = judge(wide, METRICS[STEP_TIME], LIMIT, 1.0)
    above = judge(replace(shift(1.04, 0.08), noise=0.03), METRICS[STEP_TIME], LIMIT, 1.0)
    for judged in (below, above):
        assert judged.verdict is Verdict.INCONCLUSIVE
        assert judged.repeats is not None
        assert judged.repeats.count > wide.processes
        assert f"measure.repeats={judged.repeats.count}" in judged.reason


def test_a_single_golden_must_be_repeated_as_well() -> None:
    alone = replace(shift(1.02, 0.2), noise=0.03, processes=1, golden_processes=1)
    judged = judge(alone, METRICS[STEP_TIME], LIMIT, 1.0)
    assert judged.repeats is not None
    assert judged.repeats.golden_too
    assert "of run and golden" in judged.reason


@settings(max_examples=25, deadline=None)
@given(new=SAMPLES, golden=SAMPLES, scale=st.sampled_from([1e-3, 2.0, 1e9]))
def test_the_unit_of_the_samples_does_not_matter(
    new: list[list[float]], golden: list[list[float]], scale: float
) -> None:
    def scaled(samples: list[list[float]]) -> list[list[float]]:
        return [[scale * value for value in steps] for steps in samples]

    plain, other = (
        relative_shift(new, golden, 0.01),
        relative_shift(scaled(new), scaled(golden), 0.01),
    )
    assert other.ratio == pytest.approx(plain.ratio)
    assert other.interval.low == pytest.approx(plain.interval.low)
    assert other.strict.high == pytest.approx(plain.strict.high)


@settings(max_examples=25, deadline=None)
@given(new=SAMPLES, golden=SAMPLES)
def test_intervals_are_nested_and_hold_the_estimate(
    new: list[list[float]], golden: list[list[float]]
) -> None:
    found = relative_shift(new, golden, 0.01)
    tiny = 1 + 1e-9  # exp and log of the same number
    assert found.interval.low <= found.ratio * tiny
    assert found.ratio <= found.interval.high * tiny
    assert found.strict.low <= found.interval.low * tiny
    assert found.interval.high <= found.strict.high * tiny


@settings(max_examples=25, deadline=None)
@given(new=SAMPLES, golden=SAMPLES)
def test_turned_round_the_ratio_is_turned_over(
    new: list[list[float]], golden: list[list[float]]
) -> None:
    there, back = relative_shift(new, golden, 0.01), relative_shift(golden, new, 0.01)
    assert there.ratio * back.ratio == pytest.approx(1.0)
    assert there.noise == pytest.approx(back.noise)
    assert there.noise_assumed == back.noise_assumed
