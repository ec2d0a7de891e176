"""The judgement as a report for people, and the rows as CSV for programs."""

import csv
from collections.abc import Sequence
from io import StringIO
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import astuple

from advisor.base.grouping import grouped
from advisor.base.units import MIB, counted, gib
from harness.judge import accuracy_rows
from harness.judge.predicted import Pair, cells, or_dash
from harness.report.document import Document, Picture, Section, Table, table_of
from harness.trial.trial import Device

_OF_ROW: Final = "setting status processes calibration predicted_fits measured_fits why"
FIELDS: Final = {"group": "cell.group", "cell": "cell.label", "key": "cell.key"} | {
    **{"half": "cell.half", "device": "cell.device"},
    **{name: name for name in _OF_ROW.split()},
}
"""Column -> attribute of a row."""
PAIRS: Final = {
    "kept": "saved_bytes_per_layer",
    "allocated": "peak_allocated_bytes",
    "reserved": "peak_reserved_bytes",
    "step": "step_time_seconds",
    "overhead": "overhead",
}


def csv_text(rows: Sequence[accuracy_rows.SettingRow]) -> str:
    """One line a row, bytes and seconds; empty: not known. Column `device` marks times of a CPU."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [f"{side}_{name}" for name in PAIRS.values() for side in ("predicted", "measured")]
    writer.writerow([*FIELDS, *columns])
    for row in rows:
        pairs: list[Pair] = [getattr(row, name) for name in PAIRS]
        numbers = [value for pair in pairs for value in astuple(pair)]
        writer.writerow([_plain(value) for value in (*attrgetter(*FIELDS.values())(row), *numbers)])
    return text.getvalue()


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def accuracy_report(
    rows: Sequence[accuracy_rows.SettingRow], subtitle: str, pictures: Sequence[Picture] = ()
) -> Document:
    """accuracy.md: errors by group and half, then every cell, then what was not trusted."""
    own_rows, groups = grouped((row.cell, row) for row in rows), _groups(rows)
    on_cpu = {cell.device for cell in own_rows} == {Device.CPU}
    sections = [
        Section(
            title="Errors",
            prose=(
                "A cell is one job on one machine; its rows are recompute settings. An error is "
                "predicted / measured - 1; the table has the mean absolute error, the worst error "
                "and, in brackets, the number of rows. The overhead is the step time relative to "
                "`none`; its error is in percentage points. tau: Kendall's rank correlation of "
                "predicted and measured step times in a cell. Regret: how much slower the "
                "advisor's first choice is than the fastest setting measured.",
                "A hash of the cell's key puts each cell into one of two halves: the model may be "
                "improved on `fit`, and is judged on `held_out`.",
                *(("All times are CPU times, which say nothing about a GPU.",) if on_cpu else ()),
            ),
            tables=(table_of(map(_judged, groups)),),
        ),
        Section(title="Will it fit", prose=(_VERDICTS,), tables=(table_of(map(_fits, groups)),)),
        *(_cell_section(cell, own) for cell, own in own_rows.items()),
    ]
    if pictures:
        sections.insert(2, Section(title="Predicted and measured", pictures=tuple(pictures)))
    left_out = [row for row in rows if row.why]
    if left_out:
        table = Table(
            columns=("cell", "setting", "trusted processes", "why"),
            left=4,
            rows=tuple((r.cell.label, r.setting, str(r.processes), r.why) for r in left_out),
        )
        title = "Not measured, or not trusted"
        sections.append(Section(title=title, tables=(table,), prose=(_LEFT_OUT,)))
    whole = accuracy_rows.accuracy_of("all", rows)
    return Document(
        title="Accuracy",
        subtitle=subtitle,
        good=None,
        sections=tuple(sections),
        outcome=f"{counted(whole.cells, 'cell')}, {counted(whole.rows, 'setting')}; peak "
        f"allocated {or_dash(whole.allocated, _shown)}, step time {or_dash(whole.step, _shown)}",
    )


_VERDICTS: Final = (
    'What the advisor said ("fits" is a probability of at least 90 %), and what happened.'
)
_LEFT_OUT: Final = (
    "These trials are left out of the means. A trial that ran out of memory still counts under "
    '"Will it fit".'
)


def _groups(rows: Sequence[accuracy_rows.SettingRow]) -> list[accuracy_rows.Accuracy]:
    """All, each half, each group."""
    halves = grouped((row.cell.half, row) for row in rows)
    groups = grouped((row.cell.group, row) for row in rows)
    named = [("all", rows), *sorted(halves.items()), *groups.items()]
    return [accuracy_rows.accuracy_of(name, own) for name, own in named if own]


def _judged(one: accuracy_rows.Accuracy) -> dict[str, str]:
    errors = {"kept per layer": one.kept, "allocated": one.allocated, "reserved": one.reserved}
    errors |= {"step time": one.step, "overhead": one.overhead}
    return {
        **{"group": one.name, "cells": str(one.cells), "settings": str(one.rows)},
        **{name: or_dash(error, _shown) for name, error in errors.items()},
        "tau": or_dash(one.tau, "{:+.2f}".format),
        "regret": or_dash(one.regret, _lost),
        "worst regret": or_dash(one.worst_regret, _lost),
    }


def _fits(one: accuracy_rows.Accuracy) -> dict[str, str]:
    return {
        "group": one.name,
        'said "fits": ran': str(one.verdicts[True, True]),
        'said "fits": out of memory': str(one.verdicts[True, False]),
        'said "does not fit": out of memory': str(one.verdicts[False, False]),
        'said "does not fit": ran': str(one.verdicts[False, True]),
    }


def _cell_section(cell: accuracy_rows.Cell, own: Sequence[accuracy_rows.SettingRow]) -> Section:
    columns = ["setting", "status"]
    for name in ("kept MiB", "allocated GiB", "reserved GiB", "step ms", "overhead %"):
        columns += [name, "measured", "error"]
    table = Table(columns=tuple(columns), rows=tuple(map(_cell_row, own)), left=2)
    title = f"{cell.label} ({cell.device}, {cell.half}, {cell.key})"
    return Section(title=title, tables=(table,), folded=True)


def _cell_row(row: accuracy_rows.SettingRow) -> tuple[str, ...]:
    return (
        row.setting,
        str(row.status),
        *cells(row.kept, lambda n: f"{n / MIB:.2f}"),
        *cells(row.allocated, gib),
        *cells(row.reserved, gib),
        *cells(row.step, lambda s: f"{s * 1e3:.1f}"),
        *cells(row.overhead, lambda r: f"{r * 100:+.1f}")[:2],
        or_dash(row.overhead.difference, lambda points: f"{points * 100:+.1f} points"),
    )


def _shown(errors: accuracy_rows.Errors) -> str:
    return f"{errors.mean * 100:.2f} %, worst {errors.worst * 100:+.2f} % ({errors.count})"


def _lost(share: float) -> str:
    return "out of memory" if share == float("inf") else f"{share * 100:.1f} %"
