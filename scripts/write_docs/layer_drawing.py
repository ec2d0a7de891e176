"""docs/layer.svg: a layer of Llama 3 70B under four settings, what it keeps, what runs again."""

from typing import Final

from scripts.write_docs.kept import Column, Row, columns
from scripts.write_docs.svg import drawing, rect, rule, text

JOB: Final = ("llama3_70b", "32xH100")
SETTINGS: Final = ("none", "selective:core_attn", "selective:mlp", "full:uniform:1")
MIB, GIB = 2**20, 2**30

NAMES, FIRST, WIDTH, ROW, TOP = 8, 170, 170, 25, 74
BAR = 92
"""Width of the longest bar."""


def layer_drawing() -> str:
    """A row an operator, a column a setting; below them what the whole job takes."""
    shown = columns(*JOB, SETTINGS)
    most = max(row.kept + row.freed for column in shown for row in column.rows)
    right = FIRST + WIDTH * len(shown)
    bottom = TOP + ROW * len(shown[0].rows)
    parts = [
        rect(NAMES, 12, 22, 12, "kept"),
        text(NAMES + 28, 22, "kept from the forward to the backward pass"),
        rect(NAMES + 322, 12, 22, 12, "again"),
        text(NAMES + 350, 22, "freed, and computed again in the backward pass (↻)"),
        text(NAMES, 56, "operator · MiB per GPU", "muted"),
    ]
    for number, row in enumerate(shown[0].rows):
        y = TOP + ROW * number
        parts.append(text(NAMES, y + 17, row.operator.replace("_", " ")))
        parts.append(rule(NAMES, y, right))
    for number, column in enumerate(shown):
        parts += _column(column, FIRST + WIDTH * number, most, bottom)
    parts.append(rule(NAMES, bottom, right))
    for y, words in zip(
        (22, 44, 66), ("kept by a layer", "peak of a GPU", "step time"), strict=True
    ):
        parts.append(text(NAMES, bottom + y, words, "bold"))
    title = "What one layer of Llama 3 70B keeps under four recompute settings"
    return drawing(right, bottom + 80, title, _words(shown), parts)


def _column(column: Column, x: float, most: int, bottom: float) -> list[str]:
    parts = [text(x, 56, column.setting, "bold mono")]
    for number, row in enumerate(column.rows):
        parts += _cell(row, x, TOP + ROW * number, BAR / most)
    evaluation = column.evaluation
    overhead = evaluation.recompute_overhead
    seconds = f"{evaluation.step_time_seconds:.2f} s"
    totals = (
        f"{column.kept / MIB:.1f} MiB",
        f"{evaluation.peak.peak_reserved_bytes / GIB:.1f} GiB",
        seconds + (f" (+{overhead * 100:.1f} %)" if overhead else ""),
    )
    return parts + [text(x, bottom + 22 * (i + 1), words) for i, words in enumerate(totals)]


def _cell(row: Row, x: float, y: float, scale: float) -> list[str]:
    parts = []
    if row.again:
        parts.append(text(x, y + 17, "↻"))
    at = x + 18
    kept = row.kept * scale
    if row.kept:
        parts.append(rect(at, y + 6, max(kept, 1), 13, "kept"))
    if row.again and row.freed:
        parts.append(rect(at + kept, y + 6, max(row.freed * scale, 1), 13, "again"))
    size = row.kept or (row.freed if row.again else 0)
    if size:
        end = at + (row.kept + (row.freed if row.again else 0)) * scale
        parts.append(text(end + 5, y + 17, _size(size), "" if row.kept else "muted"))
    return parts


def _size(num_bytes: int) -> str:
    mib = num_bytes / MIB
    return f"{mib:.0f}" if mib >= 10 else f"{mib:.1f}"


def _words(shown: tuple[Column, ...]) -> str:
    """The drawing in a sentence a setting."""
    said = []
    for column in shown:
        again = [row.operator for row in column.rows if row.again]
        said.append(
            f"{column.setting}: a layer keeps {column.kept / MIB:.1f} MiB; "
            f"computed again: {', '.join(again) or 'nothing'}."
        )
    return "Numbers beside bars are MiB. " + " ".join(said)
