"""A comparison as lines: the verdict, environments, then the rows, worst first. ``FAIL
llama3_8b/tp2pp1/full:block:5 tflops_per_gpu 612.4 -> 571.0 -6.8 % [-7.6, -5.9] limit -5 %``, then
why, and the command that runs the trial again."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

from advisor.report.blocks import Block, Fitted, group, hanging, wrapped
from advisor.report.text import on_screen
from harness.judge.trial_rows import ComparisonRow
from harness.judge.verdict import Verdict

if TYPE_CHECKING:
    from harness.judge.comparison import Comparison

_WORDS: Final = "FAIL ERROR UNSTABLE OPEN REFUSED GONE NEW STALE SKIPPED PASS INFO"
WORDS: Final = dict(zip(Verdict, _WORDS.split(), strict=True))
_RUN_AGAIN: Final = (Verdict.REGRESSION, Verdict.FAILED, Verdict.UNSTABLE, Verdict.OPEN)
CPU_TIMES: Final = "CPU times are shown but not judged; memory and loss are judged."


def render(comparison: "Comparison") -> str:
    """The whole comparison as text."""
    parts: list[Block] = [summary_line(comparison), *environment_lines(comparison)]
    for rows, *said in noted_rows(comparison):
        parts += [Fitted(partial(_lines, row_line(row))) for row in rows]
        parts += [Fitted(partial(_note, one)) for one in below(rows, *said)]
    parts += [CPU_TIMES] if any(row.cpu_time for row in comparison.rows) else []
    return on_screen(group(*parts))


def _lines(line: str, width: int) -> list[str]:
    """A row, broken between its figures, and between its words."""
    parts = (part if len(part) > _FIGURE else part.replace(" ", "\0") for part in line.split("  "))
    return [one.replace("\0", " ") for one in hanging("  ".join(parts), width, _INDENT)]


def _note(text: str, width: int) -> list[str]:
    """A reason wraps; a command to copy does not."""
    lines = [text] if "harness run " in text else wrapped(text, width - _INDENT)
    return [" " * _INDENT + line for line in lines]


_INDENT: Final = 6
_FIGURE: Final = 30
"""Columns of the longest figure, with its interval."""


def environment_lines(comparison: "Comparison") -> list[str]:
    """What differs between the environments, or is not known of them."""
    lines = []
    for change in comparison.environments:
        lines += [f"environment  {change.label}  {one}" for one in change.differences]
        if change.unrecorded:
            silent = f"the golden does not state: {', '.join(change.unrecorded)}"
            lines.append(f"environment  {change.label}  {silent}")
    return lines


Noted = tuple[list[ComparisonRow], list[str], list[str]]


def noted_rows(comparison: "Comparison") -> Iterator[Noted]:
    """Rows of one verdict that say the same, worst first; why; and, with the first row of a trial
    that is no pass, the command that runs it again."""
    shown: set[str] = set()
    for (verdict, notes), rows in groupby(comparison.rows, lambda one: (one.verdict, _why(one))):
        same = list(rows)
        keys = dict.fromkeys(one.workload_key for one in same if verdict in _RUN_AGAIN)
        commands = [comparison.commands.get(key, "") for key in keys if key not in shown]
        shown |= keys.keys()
        yield same, notes, [one for one in commands if one]


def _why(row: ComparisonRow) -> list[str]:
    return [note for note in (row.reason if row.metric else "", *row.notes) if note]


def below(rows: list[ComparisonRow], notes: list[str], commands: list[str]) -> list[str]:
    """What stands below the lines of rows that say the same."""
    whose = f"(these {len(rows)}) " if len(rows) > 1 else ""
    return [*(whose + note for note in notes), *commands]


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
    """What the exit code means, and how many rows of each verdict there are."""
    counts = Counter(row.verdict for row in comparison.rows)
    words = ", ".join(f"{counts[one]} {WORDS[one]}" for one in Verdict if counts[one])
    meaning = {0: "Pass", 1: "Regression", 3: "No verdict", 4: "A run failed"}
    code = comparison.exit_code
    return f"{meaning[code]} (exit {code}): {words or 'nothing to compare'}"


def percent(change: float) -> str:
    """``-6.8 %``."""
    return f"{change * 100:+.1f} %"
