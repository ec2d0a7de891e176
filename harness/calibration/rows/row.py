"""What the readers of all tables share: rows, and what their cells mean."""

import csv
import re
from pathlib import Path
from typing import Final

from advisor.frameworks.registry import adapter_of
from advisor.job.job import Job
from advisor.plan.recompute_plan import Setting

PUBLISHED: Final = Path(__file__).resolve().parents[3] / "results" / "published"

Row = dict[str, str]

PACKED_SEQUENCE: Final = 256
"""Tokens of a fine-tuning sample (SQuAD, rounded up to a power of two). NeMo and Megatron Bridge
pack samples into rows of 4,096 tokens, and attention stays within a sample."""


def read_rows(folder: Path, name: str) -> list[Row]:
    """All rows of a table, their cells unconverted."""
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def degree(row: Row, column: str) -> int:
    """A degree of parallelism; one where the cell is empty."""
    return int(row[column] or 1)


def setting_of(job: Job, spec: str = "none") -> Setting:
    """A recompute setting by its SPEC, as the job's framework runs it."""
    return adapter_of(job.config.framework).parse(spec).promoted


def spec_of(words: str) -> str:
    """SPEC of a cell of Megatron's fields: ``selective, recompute_modules=['mlp']``,
    ``full, recompute_method=block, recompute_num_layers=5``, or words that mean none."""
    if words.startswith("selective, recompute_modules="):
        return "selective:" + ",".join(re.findall(r"'(\w+)'", words))
    full = re.fullmatch(r"full, recompute_method=(\w+), recompute_num_layers=(\d+)", words)
    if full is not None:
        return f"full:{full[1]}:{full[2]}"
    return "none"
