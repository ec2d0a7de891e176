"""What the readers of all tables share: rows, and what their cells mean."""

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from advisor.base.fields import field_types
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.presets import ModelSource
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Setting
from advisor.request.given import Given
from advisor.request.recipes import Experiment
from advisor.request.resolve import resolve_given

_RESULTS: Final = Path(__file__).resolve().parents[2] / "results"
PUBLISHED: Final = _RESULTS / "published"
MEASURED: Final = _RESULTS / "measured"

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


class RowJob(Struct, frozen=True):
    """A row's job, and what it says that no field of a job does: names and values."""

    job: Job
    options: tuple[tuple[str, str], ...]


_PARTS: Final = (ParallelLayout, JobConfig, ModelSpec)


def resolved(
    model: ModelSource,
    gpus: str,
    values: Mapping[str, Any],
    recipe: Experiment | None = None,
) -> RowJob:
    """The job of `values`, each by its name in whichever part of a job has it, over a recipe if one
    is given; what no part has is an option besides, where it is set."""
    own = {
        part: {name: values[name] for name in field_types(part) if name in values}
        for part in _PARTS
    }
    given = Given(
        model=model,
        gpus=gpus,
        model_fields=own[ModelSpec],
        layout_fields=own[ParallelLayout],
        job_fields=own[JobConfig],
        recipe=recipe,
        takes_recipe=False,
    )
    done = resolve_given(given)
    assert done.layout is not None
    known = {name for fields in own.values() for name in fields}
    options = {name: str(value) for name, value in values.items() if name not in known and value}
    return RowJob(done.job(done.layout), tuple(sorted(options.items())))


def setting_of(job: Job, spec: str = "none") -> Setting:
    """A recompute setting by its SPEC, as the job's framework runs it."""
    return parts_of(job.config.framework).settings.parse(spec).promoted


def spec_of(words: str) -> str:
    """SPEC of a cell of Megatron's fields: ``selective, recompute_modules=['mlp']``,
    ``full, recompute_method=block, recompute_num_layers=5``, or words that mean none."""
    if words.startswith("selective, recompute_modules="):
        return "selective:" + ",".join(re.findall(r"'(\w+)'", words))
    full = re.fullmatch(r"full, recompute_method=(\w+), recompute_num_layers=(\d+)", words)
    if full is not None:
        return f"full:{full[1]}:{full[2]}"
    return "none"


def batch_of(row: Row) -> dict[str, int]:
    """Tokens and batches of a row."""
    return {
        "seq_length": int(row["seq_len"]),
        "micro_batch_size": int(row["mbs"]),
        "global_batch_size": int(row["gbs"]),
    }


def seconds_of_tokens(row: Row) -> float:
    """Seconds of a step: tokens of a GPU over tokens a second of a GPU."""
    tokens = int(row["gbs"]) * int(row["seq_len"]) / int(row["num_gpus"])
    return tokens / float(row["tokens_per_s_per_gpu"])
