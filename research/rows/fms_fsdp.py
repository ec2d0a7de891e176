"""IBM's fms-fsdp: Llama 2 7B to 70B on 128 A100 under FSDP, compiled.

Which blocks are checkpointed is not printed; hardware over model FLOPs says how many: a third of
what is over one, times three, of the forwards are run again. Gradients are reduced in 16 bits
(bfSixteen of fms_fsdp/policies/mixed_precision.py). 34B is Code Llama's shape. An older
text gives 7B without compilation, and no batch: the table's is assumed, and nothing is fitted on
it. The text's 13B contradicts the table and is left out.
"""

from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.frameworks.names import Framework
from advisor.models.presets import ModelSource
from research.rows.row import (
    PUBLISHED,
    Row,
    batch_of,
    read_rows,
    resolved,
    seconds_of_tokens,
    setting_of,
)
from research.rows.targets import Target

_34B: Final[dict[str, Any]] = {
    "name": "codellama_34b",
    "base": "llama2_70b",
    "num_layers": 48,
    "ffn_hidden_size": 22016,
}
_MODELS: Final[dict[str, ModelSource]] = {
    "Llama2 7B": "llama2_7b",
    "Llama2 13B": "llama2_13b",
    "Llama2 34B": _34B,
    "Llama2 70B": "llama2_70b",
}
_OLDER: Final = {"mbs": "2", "gbs": "256"}
_GPUS_OF_A_NODE: Final = 8
_NODE_BYTES_PER_SECOND: Final = 50e9
"""400 Gb/s are a node's: the PCIe of one A100 carries 252 Gb/s."""


def fms_fsdp_targets(folder: Path = PUBLISHED) -> tuple[Target, ...]:
    """The table, and 7B without compilation."""
    rows = read_rows(folder, "ibm_fms_fsdp")
    table = [_target(row) for row in rows if row["gbs"]]
    older = [row for row in rows if not row["gbs"] and row["mfu"] == row["hfu"]]
    texts = [_target({**row, **_OLDER}, "its batch is not stated") for row in older]
    return (*table, *texts)


def _target(row: Row, judged_only: str = "") -> Target:
    compiled = "torch.compile on" in row["notes"]
    values = {
        **batch_of(row),
        "framework": Framework.FSDP2,
        "torch_compile": compiled,
        "fsdp_version": 1,
        "main_grads_dtype": DType.BF16,
        "data_parallel_replicate_size": _replicas(row),
    }
    done = resolved(_MODELS[row["model"]], f"{row['num_gpus']}xA100", values)
    shared = _NODE_BYTES_PER_SECOND / _GPUS_OF_A_NODE
    job = replace(done.job, gpu=replace(done.job.gpu, internode_bytes_per_second=shared))
    spec = spec_of_flops(float(row["hfu"]) / float(row["mfu"]))
    return Target(
        name=f"{row['model']} {row['num_gpus']}xA100" + ("" if compiled else " not compiled"),
        table="ibm_fms_fsdp",
        family=f"{row['model']} compiled {compiled}",
        group=f"IBM {row['model']}",
        source=row["source_path_or_table"],
        job=job,
        setting=setting_of(job, spec),
        seconds=seconds_of_tokens(row),
        options=done.options,
        judged_only=judged_only,
    )


def _replicas(row: Row) -> int:
    """Of shards that stay within a node, as FSDP1's HYBRID_SHARD does."""
    return int(row["num_gpus"]) // _GPUS_OF_A_NODE if row["zero_or_fsdp"] == "HSDP" else 1


def spec_of_flops(ratio: float) -> str:
    """Checkpointing of every N-th block that comes nearest to these hardware over model FLOPs."""
    specs = {"none": 0.0, "selective:4": 0.25, "selective:3": 1 / 3, "selective:2": 0.5, "full": 1}
    replayed = 3 * (ratio - 1)
    return min(specs, key=lambda spec: abs(specs[spec] - replayed))
