"""Published runs of fine-tuning of ms-swift, axolotl and transformers: memory that comments of
examples and pull requests name.

Commands of ms-swift's rows are what its examples say, with as many tokens a sample as `assumed`
says. The lengths of alpaca's samples are not published: of dense.sh both times, of all parameters
and of LoRA, are those of 192 tokens. Where a row's job is not known whole, what two rows differ by
is compared.
"""

from pathlib import Path
from typing import Final

from advisor.frameworks.registry import parts_of
from advisor.job.job import Job
from advisor.lint.request_from import read_job
from advisor.plan.recompute_plan import Setting
from advisor.request.resolve import resolve
from research.rows.row import PUBLISHED, Row, read_rows

MEMORY: Final = "device_memory_rounded"


def fine_tuning_rows(metric: str, folder: Path = PUBLISHED) -> list[Row]:
    """Those of one metric."""
    return [row for row in read_rows(folder, "fine_tuning") if row["metric"] == metric]


def commanded_job(row: Row, folder: Path) -> tuple[Job, Setting]:
    """The job of a row's command, which is written into `folder`, and its recompute."""
    script = folder / "train.sh"
    segments = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True " * (
        "Megatron" in row["framework"]
    )
    ranks = f"NPROC_PER_NODE={row['num_gpus']}"
    script.write_text(f"{segments}{ranks} {row['command']} --max_length {row['tokens']}\n")
    read = read_job(str(script), {"gpus": f"{row['num_gpus']}x{row['gpu']}"})
    found = resolve(read.request)
    assert found.layout is not None
    job = found.job(found.layout)
    spec = read.configuration.recompute or "none"
    return job, parts_of(job.config.framework).settings.parse(spec)
