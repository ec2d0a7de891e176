"""What the probes gave, as Markdown: ``python -m research.probes.answers_page FOLDER``."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from advisor.base.grouping import grouped

Record = Mapping[str, Any]


def page(folder: Path) -> str:
    """A table a probe: each figure that was predicted or measured, and how far the two differ."""
    records = [(path.parent.name, json.loads(path.read_text())) for path in _answers(folder)]
    return "\n".join(
        line for name, found in grouped(records).items() for line in _table(name, found)
    )


def _answers(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.json"))


def _table(name: str, records: list[Record]) -> Iterator[str]:
    yield from (f"## {name}", "", "| case | status | figure | predicted | measured | error |")
    yield "|---|---|---|---|---|---|"
    for record in records:
        predicted, measured = record.get("predicted", {}), record.get("measured", {})
        for figure in dict.fromkeys((*predicted, *measured)):
            sides = predicted.get(figure), measured.get(figure)
            if any(isinstance(side, int | float) for side in sides):
                cells = (
                    record["case"],
                    record["status"],
                    figure,
                    *map(_shown, sides),
                    _error(*sides),
                )
                yield f"| {' | '.join(cells)} |"
        if record["status"] != "ok":
            yield f"| {record['case']} | {record['status']} | {_last_line(record)} | | | |"
    yield ""


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def _error(predicted: object, measured: object) -> str:
    if isinstance(predicted, int | float) and isinstance(measured, int | float) and measured:
        return f"{100 * (predicted / measured - 1):+.2f} %"
    return ""


def _last_line(record: Record) -> str:
    """Of what was raised first, where the record says it."""
    lines = [str(cause) for cause in record.get("causes", ())][:1]
    lines += str(record.get("reason", "")).strip().splitlines()[-1:]
    return lines[0].splitlines()[0].replace("|", "/")[:200] if lines else ""


if __name__ == "__main__":
    print(page(Path(sys.argv[1])))
