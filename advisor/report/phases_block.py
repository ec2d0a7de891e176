"""The phases of a cycle as a row of bars on one scale, and what waits in host memory."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from advisor.answer.evaluation import Evaluation
from advisor.answer.phases import Phase
from advisor.base.units import percent
from advisor.report.blocks import Block, Column, Indented, Line, Table, Text, group, table
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
_CELLS, _NAMED, _INDENT = 16, 3, 2
_ONE_OF_MANY: Final = 0.02
"""Share of a phase below which a part is not named."""


class PhaseBars(Struct, frozen=True):
    """A row a phase: what a GPU reserves, as a bar of the budget, and what it is mostly made of."""

    phases: Sequence[Phase]
    budget_bytes: int
    certainty: float

    def lines(self, width: int) -> list[Line]:
        """The table that fits; a narrow one does without the parts, then without bars."""
        for cells, words in ((_CELLS, True), (_CELLS, False), (0, False)):
            found = self._table(cells, words)
            if found.narrowest() <= width:
                break
        return found.lines(width)

    def widest(self, width: int) -> int:
        """All of it."""
        return self._table(_CELLS, True).widest(width)

    def narrowest(self) -> int:
        """Without parts and bars."""
        return self._table(0, False).narrowest()

    def _table(self, cells: int, words: bool) -> Table:
        titles = [Column(title="phase", left=True, wrap=True), Column(title="GiB", left=True)]
        titles += [Column(title="fits")]
        titles += [Column(title="host GiB", spare=1)] if self._waits else []
        titles += [Column(title="mostly", left=True, wrap=True, least=24)] if words else []
        found = table(titles)
        for phase in self.phases:
            size = f"{gib(phase.peak_reserved_bytes):>5}"
            share = phase.peak_reserved_bytes / self.budget_bytes
            row: list[Block] = [phase.name, Gauge(size, share, cells) if cells else size]
            row += [percent(phase.fit_probability)]
            row += [gib(phase.host_bytes)] if self._waits else []
            row += [_parts(phase)] if words else []
            style = "yellow" if phase.fit_probability < self.certainty else ""
            below = Indented(Text(phase.note, "dim"), _INDENT) if phase.note else None
            found.add_row(*row, style=style, below=below)
        return found

    @property
    def _waits(self) -> bool:
        return any(phase.host_bytes for phase in self.phases)


def _parts(phase: Phase) -> str:
    """``KV cache 31.0, engine's weights 15.3``: the largest parts in GiB."""
    largest = sorted(phase.memory_bytes.parts.items(), key=lambda part: -part[1])[:_NAMED]
    least = _ONE_OF_MANY * phase.peak_reserved_bytes
    return ", ".join(f"{PART_WORDS.get(k, k)} {gib(size)}" for k, size in largest if size > least)


def phases_block(evaluation: Evaluation, name: str) -> Block | None:
    """The cycle under the setting of the row called `name`, and the host memory; None where a step
    is all and nothing waits on the host."""
    lines: list[Block] = []
    if evaluation.phases:
        words = f"Phases of a cycle with {name} ({evaluation.setting.spec})"
        lines = [
            Text(f"{words}: GiB reserved on a GPU; a full bar is the budget", "bold"),
            PhaseBars(evaluation.phases, evaluation.budget_bytes, evaluation.job.config.certainty),
            Text(
                "Step times are of the update: those of the other phases are not predicted", "dim"
            ),
        ]
    if evaluation.host_bytes:
        lines.append(f"Host memory: {host_words(evaluation)}.")
    return group(*lines) if lines else None
