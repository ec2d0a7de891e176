"""Robust statistics of repeated runs: one number each, and how far two settings are apart.

A session is what was measured at one time on one machine. Steps of one process are correlated, so
that it counts once: its median, as a logarithm. Processes of one session share its weather (heat,
clocks, neighbours). So there are two levels (one-way random effects), and a new session of n
processes differs from S golden ones of m each with the variance

    between^2 (1 + 1/S) + within^2 (1/n + 1/(S m)).

Centres are Hodges-Lehmann estimates: robust, and 95 % as efficient as means. Variances of few
sessions are often far too small; so each is joined with what is assumed, which counts as one degree
of freedom (the moderated variance of Smyth 2004, doi:10.2202/1544-6115.1027). Degrees of freedom of
the sum are Satterthwaite's (1946, doi:10.2307/3002019), intervals Student's t. What is assumed
stands in harness.judge.metrics; other goldens of the folder take part in it.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement, product
from statistics import NormalDist, mean, median, quantiles, stdev, variance
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import require
from harness.judge.trends import find_trend

Samples = Sequence[Sequence[float]]
"""process -> steps"""
Sessions = Sequence[Samples]
"""session -> process -> steps; the oldest session first"""

NORMAL_IQR: Final = 1.349


def log_medians(samples: Samples) -> list[float]:
    """Logarithm of the median step of each process."""
    return [math.log(median(steps)) for steps in samples]


def pseudo_median(values: Sequence[float]) -> float:
    """Hodges and Lehmann's estimate of a centre: the median of the means of all pairs."""
    return median([(a + b) / 2 for a, b in combinations_with_replacement(values, 2)])


def session_centres(sessions: Sessions) -> list[float]:
    """Logarithm of the centre of each session."""
    return [pseudo_median(log_medians(session)) for session in sessions]


class Seen(Struct, frozen=True, kw_only=True):
    """A variance with its degrees of freedom; 0: nothing was seen."""

    variance: float = 0.0
    freedom: float = 0.0

    @classmethod
    def pooled(cls, groups: Iterable[Sequence[float]]) -> "Seen":
        """Of several groups, each around its own centre."""
        several = [group for group in groups if len(group) > 1]
        freedom = sum(len(group) - 1 for group in several)
        squares = sum(variance(group) * (len(group) - 1) for group in several)
        return cls(variance=squares / freedom if freedom else 0.0, freedom=freedom)

    def joined(self, assumed: float) -> float:
        """The moderated variance: `assumed` counts as one degree of freedom."""
        return (assumed + self.freedom * self.variance) / (1 + self.freedom)

    def doubt(self, factor: float) -> float:
        """Half the variance of `factor` times this variance."""
        return (factor * self.variance) ** 2 / self.freedom if self.freedom else 0.0


class Noise(Struct, frozen=True, kw_only=True):
    """What is assumed: relative standard deviations between processes of a session, and between
    sessions. history: variance between sessions in other goldens."""

    process: float
    session: float = 0.0
    history: Seen = Seen()


def step_noise(samples: Samples) -> float:
    """Relative standard deviation of one process's steps, from their IQR (1.349 of a normal's)."""
    return max(iqr(steps) / NORMAL_IQR / median(steps) for steps in samples)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile of at least one value: linear interpolation, as numpy does it."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def iqr(values: Sequence[float]) -> float:
    """Distance of the quartiles, in the unit of the values."""
    low, high = quartiles(values)
    return high - low


LEVEL: Final = 0.95
STRICT_LEVEL: Final = 0.99
PROCESS_SAFETY: Final = 3
"""So much more is assumed where no session has two processes: a guess must not raise an alarm."""
_MOST: Final = 9
_REPEATS: Final = (5, 10)


class Summary(Struct, frozen=True, kw_only=True):
    """What samples say, in their unit. spread: IQR / median of the steps within the median process;
    process_spread: standard deviation of the processes' medians over their median, None for one
    process; session_spread: of the sessions' centres."""

    median: float
    iqr: float
    spread: float
    process_spread: float | None
    processes: int
    steps: int
    sessions: int = 1
    session_spread: float | None = None


class Interval(Struct, frozen=True):
    """Bounds of a ratio new / golden."""

    low: float
    high: float


class Spread(Struct, frozen=True, kw_only=True):
    """Variances between session centres and between processes (without degrees of
    freedom: assumed), and what is assumed; repeats: processes a session, harmonic mean; new:
    between processes of the new side alone, where an outlier is one of a few."""

    within: Seen
    between: Seen
    noise: Noise
    repeats: float
    new: float = 0.0

    @classmethod
    def of(cls, sides: Sequence[Sessions], noise: Noise) -> "Spread":
        """Of the sessions of both sides."""
        sessions = [session for side in sides for session in side]
        within = Seen.pooled(map(log_medians, sessions))
        if not within.freedom:
            safe = (PROCESS_SAFETY if noise.session else 1) * noise.process
            within = Seen(variance=max(safe, *map(step_noise, sessions)) ** 2)
        return cls(
            within=within,
            between=Seen.pooled(map(session_centres, sides)),
            noise=noise,
            repeats=1 / mean(1 / len(session) for session in sessions),
            new=Seen.pooled(map(log_medians, sides[0])).variance,
        )

    @property
    def process(self) -> float:
        """Variance between processes of one session."""
        seen = self.within
        return seen.joined(self.noise.process**2) if seen.freedom else seen.variance

    @property
    def assumed(self) -> float:
        """Variance between sessions that is assumed, from other goldens too."""
        return self.noise.history.joined(self.noise.session**2)

    def error(self, new: int, golden: int, repeats: float) -> tuple[float, float]:
        """Standard error and degrees of freedom (infinite: all is assumed) of a difference of `new`
        sessions of `repeats` processes from `golden` ones (0: an exact number)."""
        parts = 1 / new + (1 / golden if golden else 0.0)
        square = parts * self.between.joined(self.assumed + self.process / self.repeats)
        more = (1 / repeats - 1 / self.repeats) / new
        square = max(square + more * self.process, square / 2)
        square += max(self.new - self.process, 0.0) / repeats / new
        share = parts / (1 + self.between.freedom)
        past, inner = self.noise.history, share / self.repeats + more
        doubt = (
            self.between.doubt(share * self.between.freedom)
            + past.doubt(share * past.freedom / (1 + past.freedom))
            + self.within.doubt(inner * self.within.freedom / (1 + self.within.freedom))
        )
        return math.sqrt(square), square**2 / doubt if doubt else math.inf

    def foreseen(self, more: int, repeats: float) -> "Spread":
        """The same with more sessions of so many processes, which differ as those so far."""
        within, between = self.within, self.between
        if repeats > 1 and not within.freedom:
            within = Seen(variance=self.noise.process**2, freedom=repeats - 1)
        seen = between.variance if between.freedom else within.variance / repeats
        between = Seen(variance=seen, freedom=between.freedom + more)
        return replace(self, within=within, between=between, repeats=repeats)


class Shift(Struct, frozen=True, kw_only=True):
    """How far new samples are from golden ones. ratio: new / golden. interval, strict: where it
    lies with 95 % and 99 % confidence; both reach to where the golden's sessions lead if they
    drift. processes: of one session. golden_sessions is 0 where the golden is an exact number."""

    ratio: float
    interval: Interval
    strict: Interval
    spread: Spread
    processes: int
    golden_processes: int
    sessions: int = 1
    golden_sessions: int = 1
    drift: bool = False


class Needed(Struct, frozen=True, kw_only=True):
    """What would settle a comparison: processes a session, the golden's sessions, later runs."""

    repeats: int = 0
    sessions: int = 0
    runs: int = 0


def centre(samples: Samples) -> float:
    """The median of the processes' medians."""
    return median([median(steps) for steps in samples])


def summarise(sessions: Sessions) -> Summary:
    """Summary of at least one session of at least one process with at least one step each."""
    samples = [steps for session in sessions for steps in session]
    centres = [[median(steps) for steps in session] for session in sessions]
    width = median([iqr(steps) for steps in samples])
    scale = abs(centre(samples)) or 1.0
    within, between = Seen.pooled(centres), [pseudo_median(one) for one in centres]
    return Summary(
        median=centre(samples),
        iqr=width,
        spread=width / scale,
        process_spread=math.sqrt(within.variance) / scale if within.freedom else None,
        processes=len(samples),
        steps=sum(len(steps) for steps in samples),
        sessions=len(sessions),
        session_spread=stdev(between) / scale if len(between) > 1 else None,
    )


def relative_shift(
    new: Sessions, golden: Sessions, noise: Noise, exact_golden: bool = False
) -> Shift:
    """The shift of `new` against `golden`; all samples positive. exact_golden: the golden is a
    number to be held, not a measurement with noise of its own."""
    sides = [new] if exact_golden else [new, golden]
    spread = Spread.of(sides, noise)
    now, old = session_centres(new), session_centres(golden)
    here = pseudo_median(now)
    estimate = here - pseudo_median(old)
    drift = find_trend(old) if noise.session else None  # bytes do not drift with the days
    ahead = here - drift.start - drift.slope * len(old) - estimate if drift else 0.0
    repeats = 1 / mean(1 / len(session) for session in new)
    error, freedom = spread.error(len(new), 0 if exact_golden else len(golden), repeats)

    def around(level: float) -> Interval:
        width = multiplier(level, freedom) * error
        low, high = estimate - width + min(ahead, 0.0), estimate + width + max(ahead, 0.0)
        return Interval(low=math.exp(low), high=math.exp(high))

    return Shift(
        ratio=math.exp(estimate),
        interval=around(LEVEL),
        strict=around(STRICT_LEVEL),
        spread=spread,
        processes=round(repeats),
        golden_processes=0 if exact_golden else min(map(len, golden)),
        sessions=len(new),
        golden_sessions=0 if exact_golden else len(golden),
        drift=drift is not None,
    )


def needed_to_settle(shift: Shift, gap: float, level: float = LEVEL) -> Needed | None:
    """The fewest more sessions, rather of the golden than of the run, then the fewest processes,
    that would narrow the interval's half width below `gap` (relative); None: nine would not."""
    counts = (0, *(count for count in _REPEATS if count > shift.processes))
    for more, runs, repeats in product(range(_MOST + 1), range(_MOST + 1), counts):
        if runs > more or not (more or repeats) or not (shift.golden_sessions or runs == more):
            continue
        if half_width(shift, more - runs, runs, repeats or shift.processes, level) < gap:
            return Needed(repeats=repeats, sessions=more - runs, runs=runs)
    return None


def half_width(shift: Shift, more: int, runs: int, repeats: int, level: float = LEVEL) -> float:
    """Half the interval with `more` sessions of the golden, and `runs` of the run."""
    spread = shift.spread.foreseen(more + runs, repeats)
    error, freedom = spread.error(shift.sessions + runs, shift.golden_sessions + more, repeats)
    return multiplier(level, freedom) * error


def multiplier(level: float, freedom: float) -> float:
    """Standard errors within which the truth lies with probability `level`: by Student's t for
    `freedom` degrees; infinite: by the normal distribution. UserError without scipy."""
    upper = (1 + level) / 2
    if math.isinf(freedom):
        return NormalDist().inv_cdf(upper)
    special = require("scipy.special", "harness compare", "harness")  # a third of scipy.stats' time
    return float(special.stdtrit(freedom, upper))
