"""Numbers for other programs: one row a trial (CSV, Parquet), Bencher's metric format, and
`junit.xml`: one test case for each candidate and metric, in the gate's order."""

import json
from pathlib import Path
from typing import Any, Final

from msgspec.structs import asdict

from advisor.base.junit import Case
from advisor.base.junit import junit as to_junit
from harness.judge import identity, render, stats
from harness.judge.comparison import Comparison
from harness.judge.metrics import LOSS, find_metric, metric_names, samples, series_of
from harness.judge.verdict import Verdict
from harness.report.facts import Facts, numbers_of
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.trial import layout_name


def trial_rows(facts: Facts) -> list[dict[str, Any]]:
    """One row a trial, in the plan's order; what is not known is None."""
    names = ("step_time_seconds", "peak_allocated_bytes", "peak_reserved_bytes", "calibration")
    rows = []
    for setting in facts.plan.settings:
        prediction = setting.trial.prediction
        planned = {
            "micro_batch_size": setting.trial.workload.micro_batch_size,
            "layout": layout_name(setting.trial.workload.layout),
            "advisor_rank": setting.rank,
            "skipped_by": setting.skip or None,
            **{f"predicted_{one}": getattr(prediction, one, None) for one in names},
            "command": facts.command(setting.trial),
        }
        rows += [_row(facts, result) | planned for result in facts.results_of(setting)]
    return rows


def _row(facts: Facts, result: TrialResult) -> dict[str, Any]:
    workload, evidence = result.trial["workload"], result.evidence
    return {
        "trial": result.name,
        "label": identity.workload_label(workload),
        "recompute": workload["recompute"],
        "repeat": result.trial.get("repeat", 0),
        "device": str(workload["device"]),
        "clock": result.times.clock if result.times else None,
        "status": str(result.status),
        "over_bytes": evidence.over_bytes if evidence else None,
        "reason": evidence.message if evidence else None,
        "concerns": "; ".join(concern.name for concern in result.concerns) or None,
        **asdict(numbers_of(result, facts.gpu)),
    }


def write_tables(facts: Facts, folder: Path) -> list[Path]:
    """trials.csv, and trials.parquet where pyarrow is; ImportError without pandas."""
    import pandas as pd

    frame = pd.DataFrame(trial_rows(facts)).convert_dtypes()
    written = [folder / "trials.csv"]
    frame.to_csv(written[0], index=False)
    try:
        frame.to_parquet(folder / "trials.parquet", engine="pyarrow", index=False)
    except ImportError:
        return written
    return [*written, folder / "trials.parquet"]


def bmf(facts: Facts) -> str:
    """Bencher Metric Format: benchmark -> measure -> value with the quartiles around it. value is
    the median over processes of their medians; lower_value and upper_value are quartiles of all
    their steps. What a CPU's time is in has a name of its own, ``cpu_…``. Trials that are not ok
    give nothing: a number that is not trusted is no data point."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for setting in facts.plan.settings:
        good = [one for one in facts.results_of(setting) if one.status is TrialStatus.OK]
        processes = [series_of(result) for result in good]
        measures = {}
        for name in metric_names(processes):
            values = samples(processes, name)
            if name == LOSS or not values:
                continue
            low, high = stats.quartiles([value for process in values for value in process])
            metric = find_metric(name)
            of_cpu = facts.on_cpu and metric is not None and metric.timing
            sizes = {"value": stats.centre(values), "lower_value": low, "upper_value": high}
            measures[f"cpu_{name}" if of_cpu else name] = sizes
        if measures:
            workload = setting.trial.workload  # its label, and what else differs within the plan
            more = facts.name_of(setting).removeprefix(workload.recompute)
            found[workload.label + more.replace(", ", "/")] = measures
    return json.dumps(found, indent=1, sort_keys=True, allow_nan=False) + "\n"


_PASSED: Final = {Verdict.PASS: "", Verdict.STALE: ""}
_TAGS: Final = {Verdict.REGRESSION: "failure", Verdict.FAILED: "error"} | _PASSED
"""What a verdict is to a test runner; all that is no verdict is "skipped"."""


def junit(comparison: Comparison, name: str) -> str:
    """The comparison as JUnit XML; a case's message is the gate's own line."""
    cases = []
    noted = render.noted_rows(comparison)
    for row, notes in ((row, [*said, *more]) for rows, said, more in noted for row in rows):
        line, tag = render.row_line(row), _TAGS.get(row.verdict, "skipped")
        text = "\n".join([line, *notes])
        cases.append(Case(row.label, row.metric or "run", line, tag, str(row.verdict), text))
    return to_junit(name, cases)
