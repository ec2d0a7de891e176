"""`harness golden history`: a metric over the sessions of a golden and of later runs; whether it
drifts or jumps."""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

from msgspec import Struct

from advisor.base.errors import UserError
from advisor.base.units import counted
from advisor.report.blocks import Column, group, table
from advisor.report.text import on_screen
from harness.judge.golden import Golden, Session, session_of, sessions_of
from harness.judge.identity import shown
from harness.judge.metrics import METRICS, Metric, find_metric, samples
from harness.judge.render import percent
from harness.judge.stats import Seen, log_medians, pseudo_median
from harness.judge.trends import Step, Trend, explain
from harness.trial.result import TrialResult, TrialStatus


class Point(Struct, frozen=True, kw_only=True):
    """One session. processes: logarithm of the median of each; golden: whether it is in it."""

    started_at: str
    host: str
    commit: str
    processes: tuple[float, ...]
    golden: bool

    @property
    def value(self) -> float:
        """Logarithm of the session's centre."""
        return pseudo_median(self.processes)


class History(Struct, frozen=True, kw_only=True, dict=True):
    """Sessions of one workload, the oldest first."""

    label: str
    metric: Metric
    points: tuple[Point, ...]

    @property
    def values(self) -> list[float]:
        """Logarithms of the sessions' centres."""
        return [point.value for point in self.points]

    @cached_property
    def found(self) -> tuple[tuple[Step, ...], Trend | None]:
        """Steps, or a drift."""
        return explain(self.values)

    def lines(self) -> Iterator[str]:
        """How sessions differ, and what was found."""
        parts = (
            ("sessions", [self.values]),
            ("processes of one", [p.processes for p in self.points]),
        )
        for name, groups in parts:
            seen = Seen.pooled(groups)
            if seen.freedom:
                yield f"between {name}: {math.sqrt(seen.variance) * 100:.2f} %"
        steps, trend = self.found
        for step in steps:
            before, after = self.points[step.at - 1], self.points[step.at]
            where = f"between {_name(before)} and {_name(after)}"
            yield f"step of {percent(math.expm1(step.change))} {where} (p = {step.p:.3f})"
        if trend:
            yield f"drift of {math.expm1(trend.slope) * 100:+.2f} % a session (p = {trend.p:.3f})"
        if not steps and not trend:
            yield f"neither step nor drift in {counted(len(self.points), 'session')}"


def history(golden: Golden, results: Sequence[TrialResult], name: str | None = None) -> History:
    """Of the golden's workload; UserError where the metric is not there."""
    known = golden.summary()
    name = name or next((one for one in METRICS if one in known), "")
    metric = find_metric(name)
    if metric is None or name not in known:
        raise UserError("--metric", name, "is not in the golden", f"it has {', '.join(known)}")
    mine = [
        one
        for one in results
        if one.status is TrialStatus.OK and golden.identity.holds_for(one.trial["workload"])
    ]
    held = [session.samples for session in golden.sessions]
    later = [session_of(one, "") for one in sessions_of(mine)]
    both = [(True, one) for one in golden.sessions]
    both += [(False, one) for one in later if one.samples not in held]
    points = (_point(one, name, of_golden) for of_golden, one in both)
    found = sorted((one for one in points if one.processes), key=lambda one: one.started_at)
    return History(label=golden.identity.label, metric=metric, points=tuple(found))


def _point(session: Session, name: str, golden: bool) -> Point:
    values = samples(tuple(session.samples.values()), name)
    return Point(
        started_at=session.started_at,
        host=session.host,
        commit=str(session.versions.get("git_commit") or "")[:9],
        processes=tuple(log_medians(values)),
        golden=golden,
    )


def history_page(one: History) -> str:
    """A line a session, then what was found."""
    heads = ("session", "host", "commit", "of", one.metric.name, "change", "processes")
    found = table(Column(title=head, left=head not in heads[4:]) for head in heads)
    for point in one.points:
        change = percent(math.expm1(point.value - one.values[0]))
        about = (shown(point.host or None), shown(point.commit or None), _whose(point))
        value = one.metric.show(math.exp(point.value))
        found.add_row(point.started_at[:16], *about, value, change, str(len(point.processes)))
    return on_screen(group(one.label, found, *one.lines()))


def _whose(point: Point) -> str:
    return "golden" if point.golden else "run"


def _name(point: Point) -> str:
    return " ".join(filter(None, (point.started_at[:10], point.commit)))
