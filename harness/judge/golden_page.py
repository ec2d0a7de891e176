"""Goldens as text for a terminal."""

from collections.abc import Mapping
from pathlib import Path

from advisor.base.units import counted
from advisor.report.blocks import Block, Column, Indented, group, labelled_rows, table, verbatim
from advisor.report.text import on_screen
from harness.base.collections import Scalar
from harness.judge.golden import Golden
from harness.judge.identity import CPU, shown
from harness.judge.metrics import LOSS, METRICS, find_metric, is_judged
from harness.judge.stats import Summary
from harness.trial.trial import Device


def list_page(goldens: Mapping[Path, Golden]) -> str:
    """One line a golden: workload, GPUs, whose, when, the first metric that the gate judges."""
    if not goldens:
        return "no goldens; make them with harness golden update --reason WHY RESULTS\n"
    spare = {"provenance": 1, "date": 2}
    found = table(
        Column(title=name, left=True, wrap=True, above=name == "workload", spare=spare.get(name, 0))
        for name in ("workload", "GPUs", "provenance", "date", "first metric", "file")
    )
    for path, golden in goldens.items():
        identity, meta, first = golden.identity, golden.meta, first_metric(golden)
        value = f"{first} {_value(first, golden.summary()[first])}" if first else golden.status
        whose = identity.label, identity.gpus, meta.provenance.value, meta.date
        found.add_row(*whose, value, path.name)
    return on_screen(found)


def golden_page(golden: Golden) -> str:
    """Everything about one golden but its single steps."""
    meta, identity = golden.meta, golden.identity
    lines: list[Block] = [f"{meta.provenance}, {meta.date}: {meta.reason}"]
    lines += [f"source: {meta.source}"] if meta.source else []
    lines += [f"workload {identity.workload_key or '(only partly known)'}", *_numbers(golden)]
    lines += [labelled_rows((key, shown(value)) for key, value in sorted(meta.environment.items()))]
    return on_screen(group(f"{identity.label}  on {identity.gpus}", Indented(group(*lines), 2)))


def change_page(path: Path, new: Golden, diff: Mapping[str, tuple[Scalar, Scalar]] | None) -> str:
    """A golden as it is to be written to `path`: of a new one its numbers, of one that was there
    (`diff`) what becomes different, value by value."""
    if diff is None:
        head, lines = f"new  {path}", [new.meta.reason, *_numbers(new)]
    else:
        lines = [f"{key}: {shown(old)} -> {shown(value)}" for key, (old, value) in diff.items()]
        head = f"changed  {path}" if lines else f"unchanged  {path}"
    return on_screen(group(verbatim(head), *([Indented(group(*lines), 2)] if lines else [])))


def _numbers(golden: Golden) -> list[Block]:
    """A line a metric: its median, its scatter, a limit of its own."""
    lines: list[Block] = [] if golden.sessions else [f"status {golden.status}"]
    found = table([Column(left=True), Column(), Column(left=True, wrap=True)])
    for name, one in golden.summary().items():
        limit = f"  limit {golden.limits[name] * 100:g} %" if name in golden.limits else ""
        limit = "  not judged (CPU time)" if not judged(golden, name) else limit
        found.add_row(name, _value(name, one), f"{_scatter(one)}{limit}")
    return [*lines, found] if found.rows else lines


def first_metric(golden: Golden) -> str:
    """The first metric of a golden that the gate judges; empty where it has no number."""
    found = golden.summary()
    known = (name for name in (*METRICS, *found) if name in found and judged(golden, name))
    return next(known, "")


def judged(golden: Golden, name: str) -> bool:
    """Whether the gate judges a metric of a golden."""
    return is_judged(name, Device.CPU if golden.identity.gpus == CPU else Device.CUDA)


def _value(name: str, one: Summary) -> str:
    metric = find_metric(name)
    return metric.show(one.median) if metric and name != LOSS else f"{one.median:.4g}"


def _scatter(one: Summary) -> str:
    count = f"{one.processes} {'process' if one.processes == 1 else 'processes'}"
    parts = [f"{count} x {counted(one.steps // one.processes, 'step')}"]
    parts.append(f"IQR {one.spread * 100:.2f} %")
    words = {"processes": one.process_spread, f"{one.sessions} sessions": one.session_spread}
    parts += [f"{part * 100:.2f} % between {k}" for k, part in words.items() if part is not None]
    return ", ".join(parts)
