"""torchtitan's own figures: Llama 3 8B under FSDP2 on A100, H100 and H200, in bf16 and float8.

Its H100 has 96 GB at 2.4 TB/s and a limit of 500 W: the job's card has that memory and power, and
tells what a GPU reaches with less of it. Of the A100 rows nobody says whether they are compiled.
All are older than release 0.2; their loss was compiled with the model from 0.1 on, and not before.
Left out: float8 with a scale for each row, and tables without a GPU.
"""

from pathlib import Path
from typing import Final

from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.frameworks.names import Framework
from advisor.hardware.gpu import Gpu
from research.rows.row import (
    PUBLISHED,
    Row,
    batch_of,
    degree,
    read_rows,
    resolved,
    seconds_of_tokens,
    setting_of,
)
from research.rows.targets import Target

_LONG_RINGS: Final = "rings of four and eight ranks take a quarter longer, and why is not known"
_MODELS: Final = {"Llama 3.1 8B": "llama3.1_8b", "Llama 3 8B": "llama3_8b"}
_RELEASE: Final = "0.1"
_BEFORE: Final = "_202412_"
"""In the names of tables of releases before 0.1.0."""
_SEQUENCE: Final = "8192"
_HBM2E: Final = "HBM2e"
_HBM2E_BYTES_PER_SECOND: Final = 2.4e12
_HBM2E_WATTS: Final = 500.0
_HBM2E_GIB: Final = 94.5
"""What torch sees of it, as of the 96 GB of a GH200."""


def torchtitan_targets(folder: Path = PUBLISHED) -> tuple[Target, ...]:
    """Rows in bf16, and in float8 with a scale for each tensor, on a GPU that is named."""
    rows = read_rows(folder, "torchtitan")
    usable = (
        row
        for row in rows
        if not row["gpu"].startswith("not") and not row["precision"].endswith("rowwise")
    )
    return tuple(_target(_completed(row)) for row in usable)


def _completed(row: Row) -> Row:
    """Without accumulation, where the batch is that of a rank alone."""
    ranks = int(row["num_gpus"]) // (degree(row, "tp") * degree(row, "cp"))
    batch = row["gbs"] or str(ranks * int(row["mbs"]))
    return {**row, "seq_len": row["seq_len"] or _SEQUENCE, "gbs": batch}


def _target(row: Row) -> Target:
    kind = row["gpu"].split(" ")[0]
    tp, cp = degree(row, "tp"), degree(row, "cp")
    compiled, asynchronous = row["compile"] == "1", "async TP" in row["notes"]
    eight = row["precision"] != "bf16"
    values = {
        **batch_of(row),
        "framework": Framework.TORCHTITAN,
        "framework_version": _RELEASE,
        "tensor_model_parallel_size": tp,
        "context_parallel_size": cp,
        "precision": Precision.FP8_CURRENT if eight else Precision.BF16,
        "fp8_param_gather": "all-gather" in row["precision"],
        "torch_compile": compiled,
        **({"compile_components": ("model",)} if _BEFORE in row["source_path_or_table"] else {}),
        **({"tp_comm_overlap": True} if asynchronous else {}),
    }
    done = resolved(_MODELS[row["model"]], f"{row['num_gpus']}x{kind}", values)
    slower = _HBM2E in row["gpu"]
    job = replace(done.job, gpu=hbm2e(done.job.gpu)) if slower else done.job
    spec = "selective:2" if "selective layer" in row["recompute"] else "op:torchtitan"
    if row["recompute"].startswith("full"):
        spec = "full"
    layout = f"TP{tp}" + " async" * asynchronous + f" CP{cp}" * (cp > 1)
    how = f"{layout} {spec}" + " compiled" * compiled + " float8" * eight
    return Target(
        name=f"{row['model']} {row['num_gpus']}x{kind} {how}",
        table="torchtitan",
        family=f"{row['model']} {kind} {how}",
        group=f"torchtitan {kind}",
        source=row["source_path_or_table"],
        job=job,
        setting=setting_of(job, spec),
        seconds=seconds_of_tokens(row),
        options=done.options,
        judged_only=_LONG_RINGS if cp > 2 else "",
        unexplained=cp > 2,
    )


def hbm2e(gpu: Gpu) -> Gpu:
    """The card of the tables, as far as they describe it."""
    return replace(
        gpu,
        memory_bytes=int(_HBM2E_GIB * 2**30),
        memory_bandwidth_bytes_per_second=_HBM2E_BYTES_PER_SECOND,
        board_power_watts=_HBM2E_WATTS,
    )
