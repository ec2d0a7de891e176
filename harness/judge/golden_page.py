"""Goldens as text for a terminal."""

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from advisor.base.units import counted
from advisor.report.blocks import Block, Column, Indented, group, labelled_rows, table, verbatim
from advisor.report.text import on_screen
from harness.judge.golden import Golden
from harness.judge.golden_update import GoldenChange
from harness.judge.identity import CPU, shown
from harness.judge.metrics import LOSS, METRICS, find_metric, is_judged
from harness.judge.render import percent
from harness.judge.stats import Summary
from harness.trial.trial import Device


def list_page(goldens: Mapping[Path, Golden]) -> str:
    """One line a golden: workload, GPUs, whose, when, of how many sessions."""
    if not goldens:
        return "no goldens; make them with harness golden update --reason WHY RESULTS\n"
    spare = {"provenance": 1, "date": 2}
    found = table(
        Column(title=name, left=True, wrap=True, above=name == "workload", spare=spare.get(name, 0))
        for name in ("workload", "GPUs", "provenance", "date", "sessions", "file")
    )
    for path, golden in goldens.items():
        identity, meta = golden.identity, golden.meta
        whose = identity.label, identity.gpus, meta.provenance.value, meta.date
        found.add_row(*whose, str(len(golden.sessions) or golden.status), path.name)
    return on_screen(found)


def golden_page(golden: Golden) -> str:
    """Everything about one golden but its single steps."""
    meta, identity = golden.meta, golden.identity
    lines: list[Block] = [f"{meta.provenance}, {meta.date}: {meta.reason}"]
    lines += [f"source: {meta.source}"] if meta.source else []
    lines += [f"workload {identity.workload_key or '(only partly known)'}", *_numbers(golden)]
    lines += [labelled_rows((key, shown(value)) for key, value in sorted(meta.environment.items()))]
    return on_screen(group(f"{identity.label}  on {identity.gpus}", Indented(group(*lines), 2)))


def change_page(change: GoldenChange) -> str:
    """A golden to be written: a new one's numbers, else a line a judged metric that changes."""
    old, new, diff = change.old, change.new, change.diff() if change.old else {}
    kept = {key: pair for key, pair in diff.items() if not key.startswith("summary.")}
    lines: list[Block] = [f"{key}: {shown(a)} -> {shown(b)}" for key, (a, b) in kept.items()]
    lines += [*([] if old else [new.meta.reason]), *_numbers(new, old)]
    head = f"{'changed' if diff else 'unchanged' if old else 'new'}  {change.path}"
    return on_screen(group(verbatim(head), *([Indented(group(*lines), 2)] if lines else [])))


def _numbers(golden: Golden, old: Golden | None = None) -> list[Block]:
    """A line a metric: its median, its scatter, a limit of its own; where there is an `old` golden,
    of those that the gate judges, from its median to that of what is new, where they differ."""
    lines: list[Block] = [] if golden.sessions or old else [f"status {golden.status}"]
    found = table([Column(left=True), Column(), Column(left=True, wrap=True)])
    now, was = golden.summary(), old.summary() if old else {}
    added = tuple(one for one in golden.sessions if not old or one not in old.sessions)
    for name, one in replace(golden, sessions=added).summary().items():
        limit = f"  limit {golden.limits[name] * 100:g} %" if name in golden.limits else ""
        limit = "  not judged (CPU time)" if not judged(golden, name) else limit
        value, before, scatter = _value(name, one), was.get(name), _scatter(name, now[name])
        if before and (not judged(golden, name) or _value(name, before) == value):
            continue
        if before and before.median:
            change, scatter = percent(one.median / before.median - 1), scatter[-1:]
            value = f"{_value(name, before)} -> {value}  {change}"
        found.add_row(name, value, f"{', '.join(scatter)}{limit}")
    for name in sorted(was.keys() - now.keys()):
        found.add_row(name, f"{_value(name, was[name])} -> (none)", "")
    return [*lines, found] if found.rows else lines


def first_metric(golden: Golden) -> str:
    """The first metric of a golden that the gate judges; empty where it has no number."""
    found = golden.summary()
    return next((n for n in (*METRICS, *found) if n in found and judged(golden, n)), "")


def judged(golden: Golden, name: str) -> bool:
    """Whether the gate judges a metric of a golden."""
    return is_judged(name, Device.CPU if golden.identity.gpus == CPU else Device.CUDA)


def _value(name: str, one: Summary) -> str:
    metric = find_metric(name)
    return metric.show(one.median) if metric and name != LOSS else f"{one.median:.4g}"


def _scatter(name: str, one: Summary) -> list[str]:
    count = f"{one.processes} {'process' if one.processes == 1 else 'processes'}"
    parts = [f"{count} x {counted(one.steps // one.processes, 'step')}"]
    parts += [f"IQR {one.spread * 100:.2f} %"] if name != LOSS else []  # it falls while it trains
    words = {"processes": one.process_spread, f"{one.sessions} sessions": one.session_spread}
    return [*parts, *(f"{p * 100:.2f} % between {k}" for k, p in words.items() if p is not None)]
