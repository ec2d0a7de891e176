"""Megatron-LM's CI: a step of GPT 15B, TP 8, on H100 and A100; the 7B is deterministic, left out.

What the table does not say: 256 GPUs (DP 32), and the 384 sequences that its batch starts from and
that all steps of the median have (model_config.yaml, rampup-batch-size). Gradients are fp32.
"""

from pathlib import Path
from typing import Final

from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.presets import load_model
from research.rows.row import PUBLISHED, Row, read_rows, setting_of
from research.rows.targets import Target

_MODELS: Final = {"gpt/gpt3_15b_8t_release": "megatron_ci_gpt3_15b"}
_DATA_PARALLEL_SIZE: Final = 32
_GLOBAL_BATCH_SIZE: Final = 384


def megatron_ci_targets(folder: Path = PUBLISHED) -> tuple[Target, ...]:
    """The 15B."""
    rows = read_rows(folder, "megatron_lm_ci_golden")
    return tuple(_target(row) for row in rows if row["model"] in _MODELS)


def _target(row: Row) -> Target:
    tp = int(row["tp"])
    layout = ParallelLayout(
        tensor_model_parallel_size=tp,
        sequence_parallel=row["sp"] == "1",
        data_parallel_size=_DATA_PARALLEL_SIZE,
    )
    config = JobConfig(
        seq_length=int(row["seq_len"]),
        micro_batch_size=int(row["mbs"]),
        global_batch_size=_GLOBAL_BATCH_SIZE,
    )
    job = Job(
        model=load_model(_MODELS[row["model"]]),
        layout=layout,
        config=config,
        gpu=load_gpu(row["gpu"]),
        num_gpus=layout.world_size,
    )
    return Target(
        name=f"CI 15B {layout.world_size}x{row['gpu']}",
        table="megatron_lm_ci_golden",
        family=f"CI 15B {row['gpu']}",
        group="CI 15B",
        source=row["source_path_or_table"],
        job=job,
        setting=setting_of(job),
        seconds=float(row["step_time_s"]),
    )
