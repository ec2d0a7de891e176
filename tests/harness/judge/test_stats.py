"""Robust statistics and intervals of a ratio, on numbers that can be checked by hand."""

import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.base.errors import UserError
from harness.judge.metrics import ALLOCATED, METRICS, STEP_TIME, TFLOPS
from harness.judge.stats import (
    PROCESS_SAFETY,
    Interval,
    Needed,
    Noise,
    Seen,
    Shift,
    Spread,
    half_width,
    iqr,
    multiplier,
    needed_to_settle,
    pseudo_median,
    quartiles,
    relative_shift,
    step_noise,
    summarise,
)
from harness.judge.verdict import NEAR, Verdict, Worsening, judge

pytest.importorskip("scipy")


def test_quantiles_interpolate() -> None:
    assert quartiles([4.0, 1.0, 3.0, 2.0]) == (1.75, 3.25)
    assert iqr([1.0, 2.0, 3.0, 4.0]) == 1.5
    assert quartiles([7.0]) == (7.0, 7.0)


@pytest.mark.parametrize(
    ("level", "freedom", "textbook"),
    [(0.95, math.inf, 1.959964), (0.95, 1, 12.706205), (0.95, 8, 2.306004), (0.99, 4, 4.604095)],
)
def test_the_multiplier_is_the_textbooks(level: float, freedom: int, textbook: float) -> None:
    """Tables of the normal and of Student's t distribution, six decimals."""
    assert multiplier(level, freedom) == pytest.approx(textbook, abs=5e-7)


def test_without_scipy_the_command_that_installs_it_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(UserError) as caught:
        relative_shift([[[1.0], [1.1]]], [[[1.0], [1.1]]], NOISE)
    assert str(caught.value) == (
        "harness compare: needs scipy; in the checkout run: pip install -e '.[harness]'"
    )


def test_a_summary_counts_sessions_processes_and_steps() -> None:
    first, second = [[1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0]], [[3.0, 4.0, 5.0, 6.0]]
    one = summarise([first, second])
    assert (one.median, one.iqr, one.sessions, one.processes, one.steps) == (3.5, 1.5, 2, 3, 12)
    assert one.spread == pytest.approx(1.5 / 3.5)
    assert one.process_spread == pytest.approx(0.5**0.5 / 3.5)
    assert one.session_spread == pytest.approx(1.5 / 2**0.5 / 3.5)
    assert (summarise([[[2.0]]]).process_spread, summarise([first]).session_spread) == (None, None)
    assert summarise([[[1.0, 1.0, 1.0, 50.0]]]).median == 1.0, "an outlying step moves nothing"


NOISE = Noise(process=0.01, session=0.02)
GOOD = [[1.0], [1.01], [0.99], [1.0], [1.005]]


def test_one_bad_process_of_five_does_not_decide() -> None:
    assert pseudo_median([1.0, 2.0, 9.0]) == 3.5
    shift = relative_shift([[*GOOD[:4], [3.0]]], [GOOD], NOISE)
    assert shift.ratio == pytest.approx(1.0, abs=0.01)


def test_the_error_is_the_formula_of_two_levels() -> None:
    """Much is seen, so that what is assumed has no weight: 2 % between, 1 % within."""
    seen = {
        "within": Seen(variance=1e-4, freedom=1e9),
        "between": Seen(variance=4.2e-4, freedom=1e9),
    }
    spread = Spread(**seen, noise=NOISE, repeats=5.0)
    error, freedom = spread.error(1, 3, 5)
    assert error == pytest.approx(math.sqrt(4e-4 * (1 + 1 / 3) + 1e-4 * (1 / 5 + 1 / 15)))
    assert freedom > 1e8
    alone, _ = spread.error(1, 3, 1)
    assert alone == pytest.approx(math.sqrt(4e-4 * (1 + 1 / 3) + 1e-4 * (1 + 1 / 15)))


def test_one_session_takes_what_is_assumed_and_others_goldens_correct_it() -> None:
    """2 % between sessions counts as one degree of freedom; nothing seen: normal quantiles."""
    one = relative_shift([[[1.0] * 4] * 5], [[[1.0] * 4] * 5], NOISE)
    within = NOISE.process**2 / 9  # eight degrees of freedom say 0, one says 1 %
    error = math.sqrt(2 * (NOISE.session**2 + within / 5))
    assert math.log(one.interval.high) == pytest.approx(1.96 * error, rel=1e-4)
    past = replace(NOISE, history=Seen(variance=1e-5, freedom=9.0))
    other = relative_shift([[[1.0] * 4] * 5], [[[1.0] * 4] * 5], past)
    assert other.spread.assumed == pytest.approx((4e-4 + 9e-5) / 10)
    assert other.interval.high < one.interval.high


def test_one_process_a_session_is_taken_for_three_times_as_noisy_or_as_its_steps() -> None:
    spread = relative_shift([[[1.0] * 10]], [[[1.0] * 10]], NOISE).spread
    assert spread.process == pytest.approx((PROCESS_SAFETY * NOISE.process) ** 2)
    noisy = relative_shift([[[0.9, 1.1] * 10]], [[[1.0]]], NOISE).spread
    assert noisy.process == pytest.approx(step_noise([[0.9, 1.1] * 10]) ** 2)


def test_bytes_that_are_equal_have_no_width() -> None:
    exact = relative_shift([[[2.0]] * 2], [[[1.0]] * 2], Noise(process=0.0))
    assert exact.interval.low == exact.interval.high == pytest.approx(2.0)


def test_an_exact_golden_has_no_noise() -> None:
    new = [[[1.0], [1.01], [0.99]]]
    exact = relative_shift(new, [[[1.0]]], NOISE, exact_golden=True)
    assert (exact.golden_processes, exact.golden_sessions) == (0, 0)
    assert exact.interval.high < relative_shift(new, [[[1.0]]], NOISE).interval.high


def test_sessions_that_drift_widen_the_interval_to_where_they_lead() -> None:
    rising = [[[1 + 0.01 * day]] * 3 for day in range(5)]
    drifts = relative_shift([[[1.05]] * 3], rising, NOISE)
    mixed = relative_shift([[[1.05]] * 3], [rising[k] for k in (2, 0, 4, 1, 3)], NOISE)
    assert not mixed.drift
    assert drifts.drift
    assert drifts.interval.high == pytest.approx(mixed.interval.high)
    assert drifts.strict.low < mixed.strict.low < 1.03


def shift_of(sessions: int = 2, repeats: int = 2, between: float = 0.01, freedom: int = 0) -> Shift:
    unit = Interval(low=1.0, high=1.0)
    seen = Seen(variance=between**2, freedom=freedom or sessions - 1)
    within = Seen(variance=1e-4, freedom=8)
    spread = Spread(within=within, between=seen, noise=NOISE, repeats=float(repeats))
    sizes = {"processes": repeats, "golden_processes": repeats, "golden_sessions": sessions}
    return Shift(ratio=1.0, interval=unit, strict=unit, spread=spread, **sizes)


def test_what_is_needed_is_the_least_that_settles() -> None:
    for gap in (0.02, 0.03, 0.04):
        shift = shift_of()
        found = needed_to_settle(shift, gap)
        repeats = found.repeats or 2
        assert half_width(shift, found.sessions, found.runs, repeats) < gap
        assert not found.sessions or half_width(shift, found.sessions - 1, found.runs, 10) >= gap
    assert needed_to_settle(shift_of(1), 0.05) == Needed(sessions=1)
    assert needed_to_settle(shift_of(5), 0.017).runs > 0, "the run's own session is the noise"
    assert needed_to_settle(shift_of(5, 1, 0.5), 0.001) is None


LIMIT = 0.05
RATIOS = st.floats(0.5, 2.0)
WIDTHS = st.floats(0.0, 0.4)
PROCESSES = st.lists(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=6), min_size=1, max_size=5)
SAMPLES = st.lists(PROCESSES, min_size=1, max_size=5)
SEVERITY = (Verdict.STALE, Verdict.PASS, Verdict.OPEN, Verdict.REGRESSION)


def shift(ratio: float, half: float, strict: float = 1.4) -> Shift:
    """Intervals that are symmetric in the logarithm, as those of a ratio are."""
    around, wide = (
        Interval(low=ratio * math.exp(-width), high=ratio * math.exp(width))
        for width in (half, strict * half)
    )
    return replace(shift_of(), ratio=ratio, interval=around, strict=wide)


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
    one = shift(ratio, half)
    worse, better = Worsening.of(one, -1), Worsening.of(one, 1)
    assert worse.estimate == pytest.approx(1 - ratio) == -better.estimate
    assert worse.interval.low == pytest.approx(1 - one.interval.high) == -better.interval.high
    assert worse.interval.high == pytest.approx(1 - one.interval.low)
    assert (worse.strict.low, worse.strict.high) == (-better.strict.high, -better.strict.low)


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


def test_an_open_verdict_says_what_would_settle_it() -> None:
    wide = replace(shift(1.02, 0.05), spread=shift_of(1).spread)
    judged = judge(replace(wide, golden_sessions=1), METRICS[STEP_TIME], LIMIT, 1.0)
    assert judged.verdict is Verdict.OPEN
    assert judged.reason == (
        "5 repeats on both sides (measure.repeats=5) and 2 more sessions of the golden "
        "(harness golden update --append) would settle it"
    )
    many = replace(wide, spread=shift_of(3, 10).spread, processes=10, golden_sessions=3)
    poor = judge(replace(many, golden_processes=10), METRICS[STEP_TIME], LIMIT, 1.0).reason
    assert poor.startswith("1 more run on another day (harness compare A B) would")


@settings(max_examples=25, deadline=None)
@given(new=SAMPLES, golden=SAMPLES, scale=st.sampled_from([1e-3, 2.0, 1e9]))
def test_the_unit_of_the_samples_does_not_matter(new, golden, scale) -> None:
    def scaled(sessions: list[list[list[float]]]) -> list[list[list[float]]]:
        return [[[scale * value for value in steps] for steps in one] for one in sessions]

    plain = relative_shift(new, golden, NOISE)
    other = relative_shift(scaled(new), scaled(golden), NOISE)
    assert other.ratio == pytest.approx(plain.ratio)
    assert other.interval.low == pytest.approx(plain.interval.low)
    assert other.strict.high == pytest.approx(plain.strict.high)


@settings(max_examples=25, deadline=None)
@given(new=SAMPLES, golden=SAMPLES)
def test_intervals_are_nested_around_a_ratio_that_can_be_turned_round(new, golden) -> None:
    found, back = relative_shift(new, golden, NOISE), relative_shift(golden, new, NOISE)
    assert found.ratio * back.ratio == pytest.approx(1.0)
    assert found.spread.process == pytest.approx(back.spread.process)
    tiny = 1 + 1e-9  # exp and log of the same number
    assert found.interval.low <= found.ratio * tiny
    assert found.ratio <= found.interval.high * tiny
    assert found.strict.low <= found.interval.low * tiny
    assert found.interval.high <= found.strict.high * tiny
