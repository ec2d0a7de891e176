"""The verdict on one metric, and the operating point of the gate.

A limit of 5 % means that a slowdown of 5 % must be caught. The rule "the whole 95 % interval lies
beyond the limit" cannot do that: at a true slowdown of exactly 5 % it fires once in forty. So:

* **regression**: no change is excluded with 99 % confidence, the 95 % interval reaches the limit,
  and the estimate is beyond two thirds of it. Where the whole interval lies beyond the limit, the
  reason says so.
* **pass**: the whole 95 % interval lies inside the limit, on the side of the limit: a slowdown as
  large as the limit passes once in forty.
* **open**: all else, with what would settle it: more sessions of the golden, more repeats.

docs/ci.md has what the rule does on made-up sessions. One session a side, or one process, has only
an assumed noise: it fails on large shifts alone. The two thirds keep a noisy comparison from
failing on a small change: the wider the interval, the earlier it reaches the limit. Improvements
are judged by the same rule, mirrored: beyond the limit the golden is stale.
"""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from advisor.base.units import counted
from harness.base.collections import known
from harness.judge.metrics import Better, Metric
from harness.judge.stats import STRICT_LEVEL, Interval, Needed, Shift, needed_to_settle

NEAR: Final = 2 / 3
"""Part of the limit that the estimate must reach to be a regression."""


class Verdict(StrEnum):
    """What became of one metric, or of a whole trial; worst first."""

    REGRESSION = "regression"
    FAILED = "failed"
    UNSTABLE = "unstable"
    OPEN = "open"
    ENVIRONMENT = "environment"
    VANISHED = "vanished"
    APPEARED = "appeared"
    STALE = "stale"
    SKIPPED = "skipped"
    PASS = "pass"
    UNJUDGED = "not judged"


class Judgement(Struct, frozen=True, kw_only=True):
    """A verdict with its reason; needed: what would settle an open one."""

    verdict: Verdict
    reason: str = ""
    needed: Needed | None = None


class Worsening(Struct, frozen=True, kw_only=True):
    """A shift seen from the bad side: relative, positive is worse."""

    estimate: float
    interval: Interval
    strict: Interval

    @classmethod
    def of(cls, shift: Shift, sign: int) -> "Worsening":
        """Of a metric whose rise is bad (sign 1), or whose fall is (-1)."""
        interval, strict = (
            Interval(*sorted(sign * (bound - 1) for bound in (one.low, one.high)))
            for one in (shift.interval, shift.strict)
        )
        return cls(estimate=sign * (shift.ratio - 1), interval=interval, strict=strict)

    def beyond(self, limit: float) -> bool:
        """Whether it is a change for the worse of about `limit` or more."""
        return self.strict.low > 0 and self.interval.high >= limit and self.estimate >= NEAR * limit


def judge(shift: Shift, metric: Metric, limit: float, difference: float) -> Judgement:
    """The verdict on a shift against a relative limit. difference: new - golden, for the floor."""
    if metric.floor and abs(difference) < metric.floor:
        below = f"differs by less than {metric.show(metric.floor)}" if difference else ""
        return Judgement(verdict=Verdict.PASS, reason=below)
    sign = 1 if metric.better is Better.LOWER else -1
    worse, improved = Worsening.of(shift, sign), Worsening.of(shift, -sign)
    if worse.beyond(limit):
        where = "a change is certain, and it may be as large as the limit"
        if worse.interval.low > limit:
            where = "the whole interval is beyond the limit"
        return Judgement(verdict=Verdict.REGRESSION, reason=where)
    if improved.beyond(limit):
        return Judgement(verdict=Verdict.STALE, reason="better than the golden: record a new one")
    if worse.interval.high < limit:
        return Judgement(verdict=Verdict.PASS)
    found = [needed_to_settle(shift, limit - worse.estimate)]
    if worse.estimate >= NEAR * limit:
        found.insert(0, needed_to_settle(shift, worse.estimate, STRICT_LEVEL))
    cheapest = sorted(known(found), key=lambda one: (one.sessions + one.runs, one.repeats))
    needed = cheapest[0] if cheapest else None
    return Judgement(verdict=Verdict.OPEN, reason=closing(needed), needed=needed)


def closing(needed: Needed | None) -> str:
    """What to do about an open comparison."""
    if needed is None:
        return "too noisy: even nine more sessions of ten repeats would not settle it"
    count, more = needed.repeats, counted(needed.sessions, "more session")
    other = "another day" if needed.runs == 1 else "other days"
    parts = {
        f"{count} repeats on both sides (measure.repeats={count})": count,
        f"{more} of the golden (harness golden update --append)": needed.sessions,
        f"{counted(needed.runs, 'more run')} on {other} (harness compare A B)": needed.runs,
    }
    return f"{' and '.join(words for words, number in parts.items() if number)} would settle it"
