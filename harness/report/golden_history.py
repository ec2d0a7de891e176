"""`harness golden history`: a metric over a golden's sessions and later runs; steps, drift."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from advisor.base.errors import UserError
from advisor.report.figures import kit
from harness.judge.golden import Golden, Session
from harness.judge.golden_page import first_metric
from harness.judge.golden_update import by_time, session_of, sessions_of
from harness.judge.metrics import Metric, find_metric
from harness.judge.render import percent
from harness.judge.stats import Seen, log_medians, session_centres
from harness.judge.trends import Step, explain
from harness.trial.result import TrialResult, TrialStatus

_HEIGHT: Final = 4.4
_MOST_NAMES: Final = 16


def history(golden: Golden, results: Sequence[TrialResult], metric: str) -> tuple[Session, ...]:
    """Sessions of the golden, and those of results of its workload, by time; or UserError."""
    good = (one for one in results if one.status is TrialStatus.OK)
    mine = [one for one in good if golden.identity.holds_for(one.trial["workload"])]
    held = [session.samples for session in golden.sessions]
    later = (session_of(one, "") for one in sessions_of(mine))
    both = (*golden.sessions, *(one for one in later if one.samples not in held))
    found = by_time(one for one in both if min(map(min, one.steps(metric)), default=0) > 0)
    if not found:
        raise UserError("--metric", metric, "is nowhere above zero")
    return found


def metric_of(golden: Golden, name: str | None) -> Metric:
    """The metric called `name`, else the first that is judged; UserError where it is not there."""
    known = [one for one in golden.summary() if find_metric(one)]
    metric = find_metric(name or first_metric(golden))
    if not known:
        raise UserError("golden", golden.identity.label, f"says {golden.status}: it has no numbers")
    if metric is None or metric.name not in known:
        raise UserError("--metric", name, "is not in the golden", f"it has {', '.join(known)}")
    return metric


def history_lines(sessions: Sequence[Session], metric: Metric) -> list[str]:
    """What was found; a line a session; how they differ."""
    steps_of = [one.steps(metric.name) for one in sessions]
    values = session_centres(steps_of)
    lines = [
        f"{'golden' if one.reason else 'run   '}  {_name(one)}  host {one.host or '?'}  "
        f"{metric.show(math.exp(value))}  " + percent(math.expm1(value - values[0]))
        for one, value in zip(sessions, values, strict=True)
    ]
    groups = {"sessions": [values], "processes of one": map(log_medians, steps_of)}
    for name, seen in ((name, Seen.pooled(one)) for name, one in groups.items()):
        lines += [f"between {name}: {math.sqrt(seen.variance) * 100:.2f} %"] if seen.freedom else []
    steps, trend, fitted = explain(values)
    found = [
        f"step of {_jump(fitted, one)} before {_name(sessions[one.at])} (p = {one.p:.2g})"
        for one in steps
    ]
    if trend:
        slope = math.expm1(trend.slope) * 100
        found.append(f"drift of {slope:+.2f} % a session (p = {trend.p:.2g})")
    return [*(found or ["neither step nor drift"]), *lines]


def draw_history(sessions: Sequence[Session], metric: Metric, title: str, path: Path) -> None:
    """Draw them into `path`, whose suffix says the format."""
    from matplotlib.figure import Figure

    steps_of = [one.steps(metric.name) for one in sessions]
    values = session_centres(steps_of)
    steps, trend, fitted = explain(values)

    def heights(logs: Sequence[float]) -> list[float]:
        return [math.expm1(one - values[0]) * 100 for one in logs]

    with kit.styled(path.stem, **{"font.size": 10}):
        figure = Figure(figsize=(kit.WIDE, _HEIGHT), layout="constrained")
        axes = figure.subplots()
        each = [(k, y) for k, one in enumerate(steps_of) for y in heights(log_medians(one))]
        kit.draw_points(axes, each, s=14, color=kit.FAINT, label="process")
        places = list(zip(range(len(values)), heights(values), strict=True))
        for golden, colour, whose in ((True, kit.BLUE, "golden"), (False, kit.VERMILION, "run")):
            own = [places[k] for k, one in enumerate(sessions) if bool(one.reason) is golden]
            kit.draw_points(axes, own, s=60, color=colour, label=f"session, {whose}")
        look: dict[str, Any] = {"color": kit.INK, "linewidth": 1.4, "zorder": 2}
        jumps = "".join(f"\nstep of {_jump(fitted, step)}" for step in steps)
        look |= {"label": "drift"} if trend else {"label": f"mean{jumps}", "drawstyle": "steps-mid"}
        axes.plot(heights(fitted), **look)
        stride = -(-len(values) // _MOST_NAMES)
        names = [_name(one) for one in sessions[::stride]]
        axes.set_xticks(range(0, len(values), stride), names, rotation=35, ha="right", fontsize=8)
        axes.set_ylabel("change since the first session, %")
        axes.set_title(title)
        axes.margins(x=0.03, y=0.15)
        kit.soften(axes)
        figure.legend(loc="outside right upper")
        kit.save(figure, path)


def _name(one: Session) -> str:
    commit = str(one.versions.get("git_commit") or "")[:9]
    return f"{one.started_at[:16].replace('T', ' ')} {commit}".strip()


def _jump(fitted: Sequence[float], step: Step) -> str:
    return percent(math.expm1(fitted[step.at] - fitted[step.at - 1]))
