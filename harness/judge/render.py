"""A comparison as lines: environments first, then the rows, worst first.

``FAIL  llama3_8b/tp2pp1/full:block:5  tflops_per_gpu  612.4 -> 571.0  -6.8 % [-7.6, -5.9]
limit -5 %``, then why, and the command that runs the trial again.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from advisor.report.blocks import Block, Fitted, group, wrapped
from advisor.report.breaking import hanging
from advisor.report.text import on_screen
from harness.judge.trial_rows import ComparisonRow
from harness.judge.verdict import Verdict

if TYPE_CHECKING:
    from harness.judge.comparison import Comparison

WORDS: Final = {
    Verdict.REGRESSION: "FAIL",
    Verdict.FAILED: "ERROR",
    Verdict.UNSTABLE: "UNSTABLE",
    Verdict.OPEN: "OPEN",
    Verdict.ENVIRONMENT: "REFUSED",
    Verdict.VANISHED: "GONE",
    Verdict.APPEARED: "NEW",
    Verdict.STALE: "STALE",
    Verdict.SKIPPED: "SKIPPED",
    Verdict.PASS: "PASS",
    Verdict.UNJUDGED: "INFO",
}
_RUN_AGAIN: Final = (Verdict.REGRESSION, Verdict.FAILED, Verdict.UNSTABLE, Verdict.OPEN)
CPU_TIMES: Final = "CPU times are shown but not judged; memory and loss are judged."
_MEANING: Final = {0: "pass", 1: "regression", 3: "no verdict", 4: "a run failed"}


def render(comparison: "Comparison") -> str:
    """The whole comparison as text."""
    parts: list[Block] = [*environment_lines(comparison)]
    for row, notes in noted_rows(comparison):
        parts.append(Fitted(partial(_lines, row_line(row))))
        parts += [Fitted(partial(_note, note)) for note in notes]
    parts += [CPU_TIMES] if any(row.cpu_time for row in comparison.rows) else []
    return on_screen(group(*parts, summary_line(comparison)))


def _lines(line: str, width: int) -> list[str]:
    """A row, broken between its figures; of what it says in words, between these."""
    parts = (part if len(part) > _FIGURE else part.replace(" ", "\0") for part in line.split("  "))
    return [one.replace("\0", " ") for one in hanging("  ".join(parts), width, _INDENT)]


def _note(text: str, width: int) -> list[str]:
    """A reason wraps; a command to copy does not."""
    lines = [text] if _COMMAND in text else wrapped(text, width - _INDENT)
    return [" " * _INDENT + line for line in lines]


_INDENT: Final = 6
_FIGURE: Final = 30
"""Columns of the longest figure, with its interval."""
_COMMAND: Final = "harness run "


def environment_lines(comparison: "Comparison") -> list[str]:
    """What differs between the environments, or is not known of them."""
    lines = []
    for change in comparison.environments:
        lines += [f"environment  {change.label}  {one}" for one in change.differences]
        if change.unrecorded:
            silent = f"the golden does not state: {', '.join(change.unrecorded)}"
            lines.append(f"environment  {change.label}  {silent}")
    return lines


def noted_rows(comparison: "Comparison") -> Iterator[tuple[ComparisonRow, list[str]]]:
    """Every row, worst first, with what is said below its line: why, and with the first row of a
    trial that is no pass the command that runs it again."""
    shown: set[str] = set()
    for row in comparison.rows:
        notes = [note for note in (row.reason if row.metric else "", *row.notes) if note]
        command = comparison.commands.get(row.workload_key)
        if command and row.verdict in _RUN_AGAIN and row.workload_key not in shown:
            shown.add(row.workload_key)
            notes.append(command)
        yield row, notes


def row_line(row: ComparisonRow) -> str:
    """One row as one line, the same in JUnit and in Markdown."""
    words = [f"{WORDS[row.verdict]:<4}", row.label]
    if row.metric:
        words.append(row.metric + (" (CPU time)" if row.cpu_time else ""))
    if row.shown[0]:
        words.append(f"{row.shown[0]} -> {row.shown[1]}")
    if row.change is not None:
        one = row.interval
        bounds = f" [{one.low * 100:+.1f}, {one.high * 100:+.1f}]" if one else ""
        words.append(percent(row.change) + bounds)
    if row.limit is not None:
        both = f"±{row.limit * 100:g} %" if row.limit else "equal"
        words.append(f"limit {both if row.two_sided else f'{row.limit * 100:+g} %'}")
    if row.verdict is Verdict.UNJUDGED:
        words.append(str(row.verdict))
    if not row.metric and row.reason:
        words.append(row.reason)
    return "  ".join(words)


def summary_line(comparison: "Comparison") -> str:
    """How many rows of each verdict, and what the exit code means."""
    counts = Counter(row.verdict for row in comparison.rows)
    words = ", ".join(f"{counts[one]} {one}" for one in Verdict if counts[one]) or "nothing"
    code = comparison.exit_code
    return f"{words}: {_MEANING[code]} (exit {code})"


def percent(change: float) -> str:
    """``-6.8 %``."""
    return f"{change * 100:+.1f} %"
