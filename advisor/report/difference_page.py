"""The page of `advise diff`: what differs in the jobs, in memory, in time and in the flags."""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from advisor.answer.difference import ChangedField, Difference, Side
from advisor.base.units import DASH, GIB, percent, signed_percent
from advisor.report.blocks import (
    Block,
    Column,
    Indented,
    Table,
    Text,
    group,
    labelled_rows,
    spec_cell,
    table,
    verbatim,
)
from advisor.report.wording import PHASES, gib

_STEP: Final = "Step time, s; difference in % of the first step time"
_SHOWN_BYTES: Final = GIB / 20
_SHOWN_SHARE: Final = 0.0005
"""Of a step: less is 0.0 %."""


def difference_page(found: Difference) -> Block:
    """Both sides in a line each, then what differs."""
    parts: list[Block] = [
        labelled_rows([("first", _heading(found.first)), ("second", _heading(found.second))]),
        "",
        Text("The job", "bold"),
        Indented(_job(found.job), 2) if found.job else "The jobs are the same.",
        "",
        Text("Chosen rows", "bold"),
        Indented(_rows(found), 2),
    ]
    if found.memory_bytes:
        parts += ["", Text("Peak of the worst rank, GiB", "bold"), Indented(_memory(found), 2)]
        sides = (("first", found.first), ("second", found.second))
        moments = ((name, f"stage {x.peak_stage}, in the {x.peak_phase}") for name, x in sides)
        parts.append(Indented(labelled_rows(moments), 2))
        parts += ["", Text(_STEP, "bold"), Indented(_time(found), 2)]
        if {one.field for one in found.job} & {"job.global_batch_size", "job.seq_length"}:
            parts.append("The steps train different numbers of tokens: compare tokens/s/GPU.")
    return group(*parts, "", *_flags(found))


def _heading(side: Side) -> Block:
    words = f"{side.model} on {side.gpus}, {side.framework} {side.framework_version}".rstrip()
    return Text(f"{side.request} ({words})" if side.request else words)


def _job(fields: tuple[ChangedField, ...]) -> Table:
    titles = (("field", 0), ("first", 0), ("origin", 1), ("second", 0), ("origin", 2))
    found = table(
        Column(title=title, left=True, wrap=True, above=title == "field", spare=spare)
        for title, spare in titles
    )
    for one in fields:
        cells: list[Block] = [one.field]
        for value, origin in ((one.first, one.first_origin), (one.second, one.second_origin)):
            cells += [spec_cell(value) if value else "(empty)", Text(origin, "dim")]
        found.add_row(*cells)
    return found


def _sides(name: str) -> Table:
    sides = (Column(title=side, wrap=True) for side in ("first", "second"))
    return table([Column(title=name, left=True), *sides, Column(title="difference")])


def _rows(found: Difference) -> Table:
    first, second = found.first, found.second
    rows = _sides("")
    rows.add_row("recompute", spec_cell(first.recompute), spec_cell(second.recompute), "")
    for name, field, write in (
        ("rank", "rank", str),
        ("fits", "fit_probability", percent),
        ("tokens/s/GPU", "tokens_per_second_per_gpu", "{:,.0f}".format),
        ("calibration", "calibration", str),
    ):
        values = [getattr(side, field) for side in (first, second)]
        is_rate = name == "tokens/s/GPU" and None not in values
        less = _share(values[1] - values[0], values[0]) if is_rate else ""
        rows.add_row(name, *(DASH if value is None else write(value) for value in values), less)
    return rows


def _memory(found: Difference) -> Table:
    rows = _sides("component")
    assert found.first.memory_bytes is not None
    assert found.second.memory_bytes is not None
    _add(rows, found.first.memory_bytes, found.second.memory_bytes, found.memory_bytes, gib)
    sides = found.first, found.second
    rows.add_row(
        "reserved",
        *(gib(side.peak_reserved_bytes or 0) for side in sides),
        _signed_gib(found.peak_reserved_bytes or 0),
        style="bold",
    )
    return rows


def _time(found: Difference) -> Table:
    rows = _sides("phase")
    first, second = found.first.time_seconds, found.second.time_seconds
    assert first is not None
    assert second is not None
    whole = found.first.step_time_seconds or 1.0
    _add(rows, first, second, found.time_seconds, "{:.3f}".format, whole)
    rows.add_row(
        "step",
        *(f"{side.step_time_seconds or 0:.3f}" for side in (found.first, found.second)),
        _share(found.step_time_seconds or 0, whole),
        style="bold",
    )
    return rows


def _add(
    rows: Table,
    first: Struct,
    second: Struct,
    less: Mapping[str, float],
    write: Callable[[float], str],
    whole: float = 0.0,
) -> None:
    """A row a part that either side has; times as shares of the `whole` of the first."""
    for name, change in less.items():
        both = getattr(first, name), getattr(second, name)
        if any(both):
            shown = _share(change, whole) if whole else _signed_gib(change)
            rows.add_row(PHASES.get(name, name.replace("_", " ")), *map(write, both), shown)


def _signed_gib(num_bytes: float) -> str:
    return f"{num_bytes / GIB:+.1f}" if abs(num_bytes) >= _SHOWN_BYTES else "0.0"


def _share(change: float, whole: float) -> str:
    """A change of time as a share of the first side's step."""
    share = change / whole
    return signed_percent(share) if abs(share) >= _SHOWN_SHARE else "0.0 %"


def _flags(found: Difference) -> list[Block]:
    """Options that one side says alone, one a line, to be copied."""
    if not (found.flags_only_first or found.flags_only_second):
        return [Text("The flags are the same.", "bold")]
    parts: list[Block] = []
    for side, flags in (("first", found.flags_only_first), ("second", found.flags_only_second)):
        if flags:
            own = verbatim(*(f"  {flag}" for flag in flags))
            parts += [Text(f"Flags only in the {side}", "bold"), own]
    return parts
