"""The phases of a cycle as a row of bars on one scale, and what waits in host memory."""

from typing import Final

from advisor.answer.evaluation import Evaluation
from advisor.answer.phases import Phase
from advisor.base.units import percent
from advisor.report.blocks import Block, Column, Indented, Text, group, table
from advisor.report.ranking_table import Gauge
from advisor.report.wording import gib, host_words

PART_WORDS: Final = {
    "reference": "reference model",
    "bucket": "bucket and gathered tensor",
    "engine_weights": "engine's weights",
    "kv_cache": "KV cache",
    "engine_other": "engine's rest",
    "overhead": "buffers and overhead",
}
"""Parts of PhaseMemory whose name is another one."""
_COLUMNS: Final = (
    Column(title="phase", left=True),
    Column(title="GiB", left=True),
    Column(title="fits"),
    Column(title="host GiB", spare=2),
    Column(title="mostly", left=True, wrap=True, least=24, spare=1),
)
_CELLS, _NAMED, _INDENT = 16, 3, 2


def phases_block(evaluation: Evaluation, name: str) -> Block:
    """The cycle under the setting of the row called `name`, and the host memory, of an evaluation
    that has either. A narrow page does without the parts, then without host memory."""
    lines: list[Block] = []
    if evaluation.phases:
        found = table(_COLUMNS)
        for phase in evaluation.phases:
            size, share = (
                phase.peak_reserved_bytes,
                phase.peak_reserved_bytes / evaluation.budget_bytes,
            )
            found.add_row(
                phase.name,
                Gauge(f"{gib(size):>5}", share, _CELLS),
                percent(phase.fit_probability),
                gib(phase.host_bytes),
                _mostly(phase),
                style="" if phase.fit_probability >= evaluation.job.config.certainty else "yellow",
                below=Indented(Text(phase.note, "dim"), _INDENT) if phase.note else None,
            )
        words = f"Phases of a cycle with {name} ({evaluation.setting.spec})"
        lines = [
            Text(f"{words}: GiB reserved on a GPU; a full bar is the budget", "bold"),
            found,
            Text("Step times are of the update: other phases' are not predicted", "dim"),
        ]
    if evaluation.host_bytes:
        lines.append(f"Host memory: {host_words(evaluation)}.")
    return group(*lines)


def _mostly(phase: Phase) -> str:
    """``KV cache 31.0, engine's weights 15.3``: the largest parts in GiB."""
    largest = sorted(phase.memory_bytes.parts.items(), key=lambda part: -part[1])[:_NAMED]
    return ", ".join(f"{PART_WORDS.get(part, part)} {gib(size)}" for part, size in largest)
