"""`--explain N`: where each GiB of the worst rank and each millisecond of a step goes.

Every table ends in the number that the ranking shows; the totals are asserted.
"""

from collections.abc import Sequence
from dataclasses import fields

from advisor.answer import Candidate, Evaluation, MemoryBreakdown, MemoryLine, StageMemory, TimeLine
from advisor.report.text import Column, Screen, Style, table_lines, wrap
from advisor.report.wording import gib
from advisor.units import human_bytes

COMPONENTS = tuple(field.name for field in fields(MemoryBreakdown))
_TEXT_WIDTHS = (36, 28, 22, 16)  # of names and of shapes, tried until the table fits
_TIME_TOLERANCE = 1e-6  # relative: sums of floats in another order


def explanation(
    candidate: Candidate,
    memory: Sequence[MemoryLine],
    time: Sequence[TimeLine],
    screen: Screen,
) -> str:
    """Memory by component and tensor, memory by stage, time by phase and operator."""
    evaluation = candidate.evaluation
    peak = evaluation.peak
    blocks = [
        (
            f"Row {candidate.rank}, {evaluation.setting.spec}: memory of a rank of stage "
            f"{peak.stage}, the worst, at its peak ({peak.peak_phase})",
            memory_table(evaluation, memory, screen.width),
        ),
        ("Memory of a rank of every pipeline stage, GiB", stage_table(evaluation.stages)),
        (
            f"Time of one step, expected within {evaluation.step_time_low_seconds:.3f} and "
            f"{evaluation.step_time_high_seconds:.3f} s",
            time_table(evaluation, time),
        ),
    ]
    pages = []
    for title, lines in blocks:
        heads = [screen.paint(line, Style.BOLD) for line in wrap(title, screen.width)]
        pages.append("\n".join([*heads, *lines]))
    return "\n\n".join(pages) + "\n"


def memory_table(evaluation: Evaluation, memory: Sequence[MemoryLine], width: int) -> list[str]:
    """Tensors under their components, largest first; the total is the reserved peak."""
    assert_memory_total(evaluation, memory)
    sources = _numbered([line.source for line in memory if line.source])
    columns = [
        Column(title="tensor or term", left=True), Column(title="shape", left=True),
        Column(title="GiB"), Column(title="share"), Column(title="count x unit"),
        Column(title="source"),
    ]  # fmt: skip
    for text_width in _TEXT_WIDTHS:
        lines = table_lines(columns, _memory_rows(evaluation, memory, sources, text_width))
        if max(map(len, lines)) <= width:
            break
    for source, number in sources.items():
        lines += wrap(f"  [{number}] {source}", width)
    return lines


def _memory_rows(
    evaluation: Evaluation, memory: Sequence[MemoryLine], sources: dict[str, int], text_width: int
) -> list[list[str]]:
    total = evaluation.peak.peak_reserved_bytes
    rows: list[list[str]] = []
    for component in _components(memory):
        lines = [line for line in memory if line.component == component and line.num_bytes]
        subtotal = sum(line.num_bytes for line in lines)
        rows.append([component, "", gib3(subtotal), _share(subtotal, total), "", ""])
        largest_first = sorted(lines, key=lambda line: -line.num_bytes)
        rows += [_tensor_row(line, total, sources, text_width) for line in largest_first]
    return [*rows, ["total: the reserved peak", "", gib3(total), _share(total, total), "", ""]]


def _tensor_row(
    line: MemoryLine, total: int, sources: dict[str, int], text_width: int
) -> list[str]:
    return [
        _in_cell(line.name, text_width, "  "),
        _in_cell(line.shape, text_width),
        gib3(line.num_bytes),
        _share(line.num_bytes, total),
        f"{line.count:g} x {human_bytes(line.unit_bytes)}",
        f"[{sources[line.source]}]" if line.source else "",
    ]


def _in_cell(text: str, width: int, indent: str = "") -> str:
    return "\n".join(indent + line for line in wrap(text, width))


def stage_table(stages: Sequence[StageMemory]) -> list[str]:
    """One row a stage: components, reserved and allocated peak, microbatches in flight."""
    columns = [
        Column(title="stage"), *(Column(title=name) for name in COMPONENTS),
        Column(title="reserved"), Column(title="allocated"), Column(title="in flight"),
    ]  # fmt: skip
    rows = []
    for stage in stages:
        parts = [getattr(stage.memory_bytes, name) for name in COMPONENTS]
        sizes = [*parts, stage.peak_reserved_bytes, stage.peak_allocated_bytes]
        rows.append([str(stage.stage), *map(gib, sizes), f"{stage.in_flight_microbatches:g}"])
    return table_lines(columns, rows, gap=1)


def time_table(evaluation: Evaluation, time: Sequence[TimeLine]) -> list[str]:
    """Operators under their phases, longest first; the total is the step time."""
    total = evaluation.step_time_seconds
    assert_time_total(evaluation, time)
    rows: list[list[str]] = []
    for phase in dict.fromkeys(line.phase for line in time):
        lines = [line for line in time if line.phase == phase]
        rows.append([phase, *_ms(sum(line.seconds for line in lines), total), ""])
        rows += [
            [f"  {line.operator}", *_ms(line.seconds, total), line.bound_by]
            for line in sorted(lines, key=lambda line: -line.seconds)
            if line.seconds
        ]
    rows.append(["total: the step", *_ms(total, total), ""])
    columns = [
        Column(title="phase and operator", left=True), Column(title="ms"), Column(title="share"),
        Column(title="bound by", left=True),
    ]  # fmt: skip
    return table_lines(columns, rows)


def assert_memory_total(evaluation: Evaluation, memory: Sequence[MemoryLine]) -> None:
    """The lines sum to the reserved peak; each may be off by the byte it was rounded to."""
    explained = sum(line.num_bytes for line in memory)
    peak = evaluation.peak.peak_reserved_bytes
    assert abs(explained - peak) <= len(memory), f"explained {explained} of {peak} bytes"


def assert_time_total(evaluation: Evaluation, time: Sequence[TimeLine]) -> None:
    """The lines sum to the step time."""
    explained = sum(line.seconds for line in time)
    step = evaluation.step_time_seconds
    assert abs(explained - step) <= _TIME_TOLERANCE * step, f"explained {explained} of {step} s"


def gib3(num_bytes: float) -> str:
    """GiB to a MiB's precision, fine enough for a single tensor."""
    return f"{num_bytes / 2**30:.3f}"


def _components(memory: Sequence[MemoryLine]) -> list[str]:
    """Components in the order of MemoryBreakdown, then any other."""
    named = dict.fromkeys(line.component for line in memory)
    return [c for c in COMPONENTS if c in named] + [c for c in named if c not in COMPONENTS]


def _numbered(sources: Sequence[str]) -> dict[str, int]:
    return {source: number for number, source in enumerate(dict.fromkeys(sources), start=1)}


def _share(part: float, total: float) -> str:
    return f"{part / total * 100:.1f} %"


def _ms(seconds: float, total: float) -> list[str]:
    return [f"{seconds * 1e3:.2f}", _share(seconds, total)]
