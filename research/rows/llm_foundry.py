"""mosaicml/llm-foundry: MPT 125M to 70B under FSDP1 on A100 and H100, checkpointing on and off.

GPT blocks with biases, learnt positions and tied embeddings (the published parameter counts say
so), eager torch with a flash kernel; FSDP2 is the nearest that the advisor has. Gradients are
reduced in fp32 under the mixed precision DEFAULT, in bf16 under PURE. The FP8 rows are Transformer
Engine's layers under FSDP, which no framework of the advisor runs: left out.
"""

from pathlib import Path
from typing import Any, Final

from advisor.base.dtypes import DType
from advisor.frameworks.names import Framework
from advisor.job.layout import DataParallelSharding
from research.rows.row import (
    PUBLISHED,
    Row,
    batch_of,
    read_rows,
    resolved,
    setting_of,
)
from research.rows.targets import Target

SHAPES: Final = {
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
"""Layers, hidden size and heads (scripts/train/yamls/pretrain/mpt-*.yaml)."""
_GPUS: Final = {
    "H100 80GB": "H100",
    "A100 80GB": "A100",
    "A100 40GB": "A100-SXM-40GB",
}
_SHORT: Final = 4
"""Times the sequence is at most the hidden size: attention is less than a tenth of a step."""
_TRITON: Final = "Triton's attention of 2023 takes more than a tenth of the step at this length"
_SHARDINGS: Final = {
    "FULL_SHARD": DataParallelSharding.FULL,
    "SHARD_GRAD_OP": DataParallelSharding.GRADIENTS,
}


def llm_foundry_targets(folder: Path = PUBLISHED) -> tuple[Target, ...]:
    """All rows in 16 bits."""
    rows = read_rows(folder, "llm_foundry")
    return tuple(_target(row) for row in rows if row["precision"] != "amp_fp8")


def mpt(size: str, seq_length: int) -> dict[str, Any]:
    """An MPT model; its table of positions is as long as its sequences."""
    layers, hidden, heads = SHAPES[size]
    return {
        "name": f"mpt_{size}",
        "base": "gpt2_large",
        "num_layers": layers,
        "hidden_size": hidden,
        "ffn_hidden_size": 4 * hidden,
        "num_attention_heads": heads,
        "num_query_groups": heads,
        "kv_channels": hidden // heads,
        "vocab_size": 50368,
        "max_position_embeddings": seq_length,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }


def _target(row: Row) -> Target:
    size, gpu = row["model"].removeprefix("MPT "), _GPUS[row["gpu"]]
    sharding, mixed = row["zero_or_fsdp"].removeprefix("FSDP ").split(" mp=")
    values = {
        **batch_of(row),
        "framework": Framework.FSDP2,
        "main_grads_dtype": DType.BF16 if mixed == "PURE" else DType.FP32,
        "data_parallel_sharding": _SHARDINGS[sharding],
        "fsdp_version": 1,
    }
    done = resolved(mpt(size, int(row["seq_len"])), f"{row['num_gpus']}x{gpu}", values)
    spec = "none" if row["recompute"] == "none" else "full"
    what = f"MPT {size} {gpu} {row['seq_len']} tokens MBS{row['mbs']} {mixed} {sharding} {spec}"
    return Target(
        name=f"{what} {row['num_gpus']}x GBS{row['gbs']}",
        table="llm_foundry",
        family=what,
        group=f"MPT {size}",
        source=row["source_path_or_table"],
        job=done.job,
        setting=setting_of(done.job, spec),
        seconds=float(row["derived_step_time_s"]),
        options=done.options,
        judged_only=_TRITON if _SHORT * int(row["seq_len"]) > SHAPES[size][1] else "",
    )
