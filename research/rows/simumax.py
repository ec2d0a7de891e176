"""MooreThreads/SimuMax: 12 layers of Llama-3 70B on eight B200, measured.

Nothing overlaps communication, gradients are fp32, the loss is Transformer Engine's. The times are
those of the second and third step of a run, whose kernels, connections and memory are still being
chosen: nothing is fitted on them.
"""

from pathlib import Path

from msgspec.structs import replace

from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.options import CrossEntropyFusion
from advisor.models.presets import load_model
from research.rows.row import PUBLISHED, Row, read_rows, setting_of
from research.rows.targets import Target


def simumax_targets(folder: Path = PUBLISHED) -> tuple[Target, ...]:
    """Every row: none recomputes anything."""
    return tuple(_target(row) for row in read_rows(folder, "simumax_b200"))


def _target(row: Row) -> Target:
    model = replace(
        load_model("llama3_70b"),
        num_layers=int(row["layers"]),
        cross_entropy_fusion=CrossEntropyFusion.TE,
    )
    tp, pp = int(row["tp"]), int(row["pp"])
    layout = ParallelLayout(
        tensor_model_parallel_size=tp,
        sequence_parallel=tp > 1,
        pipeline_model_parallel_size=pp,
        data_parallel_size=int(row["dp"]),
        overlap_grad_reduce=False,
        overlap_param_gather=False,
    )
    config = JobConfig(
        seq_length=int(row["seq_len"]),
        micro_batch_size=int(row["mbs"]),
        global_batch_size=int(row["gbs"]),
    )
    name = f"70B/12 TP{tp} PP{pp} {row['mbc']} microbatches"
    gpus = int(row["num_gpus"])
    job = Job(model=model, layout=layout, config=config, gpu=load_gpu("B200"), num_gpus=gpus)
    return Target(
        name=name,
        table="simumax_b200",
        family=name,
        group=f"TP{tp} PP{pp}",
        source=row["source_path_or_table"].split(", case ")[0],
        job=job,
        setting=setting_of(job),
        seconds=float(row["step_time_s"]),
        judged_only="times the second and third step of a run",
    )
