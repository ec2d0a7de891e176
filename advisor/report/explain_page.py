"""`--explain N`: where each GiB of the worst rank and each millisecond of a step goes.

Every table ends in the number that the ranking shows; the totals are asserted.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from advisor.answer.answer import MemoryLine, TimeLine
from advisor.answer.evaluation import Evaluation, MemoryBreakdown, StageMemory
from advisor.base.units import human_bytes
from advisor.report.blocks import (
    Block,
    Column,
    Fitted,
    Indented,
    Text,
    group,
    labelled_rows,
    spec_lines,
    table,
)
from advisor.report.wording import PHASES, gib

COMPONENTS = MemoryBreakdown.__struct_fields__
_INDENT = 2
_TIME_TOLERANCE = 1e-6  # relative: sums of floats in another order


def explanation(
    evaluation: Evaluation, name: str, memory: Sequence[MemoryLine], time: Sequence[TimeLine]
) -> Block:
    """Memory by component and tensor, memory by stage, time by phase and operator, of the row that
    is called `name`."""
    peak = evaluation.peak
    low, high = evaluation.step_time_low_seconds, evaluation.step_time_high_seconds
    return group(
        "",
        Text(
            f"{name}, {evaluation.setting.spec}: memory of the worst rank"
            f"{' in the update' * bool(evaluation.phases)} (stage "
            f"{peak.stage}) at its peak, in the {peak.peak_phase}",
            "bold",
        ),
        memory_table(evaluation, memory),
        "",
        Text("Pipeline stages: GiB per rank, and microbatches in flight", "bold"),
        stage_table(evaluation.stages),
        "",
        Text(f"Time of one step, expected between {low:.3f} and {high:.3f} s", "bold"),
        time_table(evaluation, time),
    )


def memory_table(evaluation: Evaluation, memory: Sequence[MemoryLine]) -> Block:
    """Tensors under their components, largest first; the total is the reserved peak."""
    total, explained = evaluation.peak.peak_reserved_bytes, sum(line.num_bytes for line in memory)
    assert abs(explained - total) <= len(memory), f"explained {explained} of {total} bytes"
    found = table(
        [
            Column(title="tensor or term", left=True, wrap=True),
            Column(title="shape", left=True, wrap=True),
            Column(title="GiB"),
            Column(title="share", spare=1),
            Column(title="count x unit", spare=2),
            Column(title="source"),
        ]
    )
    sources: dict[str, int] = {}
    named = dict.fromkeys(line.component for line in memory)
    for component in (c for c in dict.fromkeys((*COMPONENTS, *named)) if c in named):
        lines = [line for line in memory if line.component == component and line.num_bytes]
        subtotal = sum(line.num_bytes for line in lines)
        found.add_row(component, "", gib3(subtotal), _share(subtotal, total), "", "")
        for line in sorted(lines, key=lambda line: -line.num_bytes):
            found.add_row(*_tensor_cells(line, total, sources))
    found.add_row("total: the reserved peak", "", gib3(total), _share(total, total), "", "")
    numbered = labelled_rows(((f"[{number}]", source) for source, number in sources.items()), gap=1)
    return Indented(group(found, numbered) if sources else found, _INDENT)


def _tensor_cells(line: MemoryLine, total: int, sources: dict[str, int]) -> tuple[Block, ...]:
    """One line; its source gets the next number where it is new."""
    number = sources.setdefault(line.source, len(sources) + 1) if line.source else 0
    return (
        Indented(_name(line.name), _INDENT),
        line.shape,
        gib3(line.num_bytes),
        _share(line.num_bytes, total),
        f"{line.count:g} x {human_bytes(line.unit_bytes)}",
        f"[{number}]" if number else "",
    )


def _name(name: str) -> Block:
    """Words wrap; an identifier breaks at its joints, where no line holds it."""
    return name if " " in name else Fitted(partial(spec_lines, name), least=len(name))


def stage_table(stages: Sequence[StageMemory]) -> Block:
    """One row a stage: components, reserved and allocated peak, microbatches in flight."""
    titles = ("stage", *COMPONENTS, "reserved", "allocated", "in flight")
    found = table([Column(title=title, spare=_SPARE.get(title, 0)) for title in titles], gap=1)
    for stage in stages:
        parts = [getattr(stage.memory_bytes, name) for name in COMPONENTS]
        sizes = [*parts, stage.peak_reserved_bytes, stage.peak_allocated_bytes]
        found.add_row(str(stage.stage), *map(gib, sizes), f"{stage.in_flight_microbatches:.3g}")
    return Indented(found, _INDENT)


_SPARE = {"in flight": 1, "allocated": 2, "transient": 3, "gradients": 4}
"""What a narrow page leaves out of the stages, in this order."""


def time_table(evaluation: Evaluation, time: Sequence[TimeLine]) -> Block:
    """Operators under their phases, longest first; the total is the step time."""
    total, explained = evaluation.step_time_seconds, sum(line.seconds for line in time)
    assert abs(explained - total) <= _TIME_TOLERANCE * total, f"explained {explained} of {total} s"
    found = table(
        [
            Column(title="phase and operator", left=True, wrap=True),
            Column(title="ms"),
            Column(title="share"),
            Column(title="bound by", left=True),
        ]
    )
    for phase in dict.fromkeys(line.phase for line in time):
        lines = [line for line in time if line.phase == phase]
        found.add_row(
            _WORDS.get(phase, phase), *_ms(sum(line.seconds for line in lines), total), ""
        )
        for line in sorted(lines, key=lambda line: -line.seconds):
            if line.seconds:
                name = Indented(line.operator, _INDENT)
                found.add_row(name, *_ms(line.seconds, total), line.bound_by)
    found.add_row("total: the step", *_ms(total, total), "")
    return Indented(found, _INDENT)


_WORDS: Final = {**PHASES, "waiting": PHASES["host"]}


def gib3(num_bytes: float) -> str:
    """GiB to a MiB's precision, fine enough for a single tensor."""
    return f"{num_bytes / 2**30:.3f}"


def _share(part: float, total: float) -> str:
    return f"{part / total * 100:.1f} %"


def _ms(seconds: float, total: float) -> list[str]:
    return [f"{seconds * 1e3:.2f}", _share(seconds, total)]
