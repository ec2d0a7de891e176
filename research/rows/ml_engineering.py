"""stas00/ml-engineering: Llama 3.1 8B on one node of H200, 8K to 256K tokens, DeepSpeed ZeRO-3.

The run had transformers' layers with FlashAttention 3 and Liger's kernels (fused loss), each layer
in torch's checkpoint (not reentrant), Adam on the host; no tiled MLP. Step times follow
from TFLOP/s of the model: six FLOPs a parameter except the embedding's, and attention halved, which
gives the shares of attention that the source prints. One sequence a GPU. Six versions of torch at
8K, 20 % apart, are one job.
"""

from pathlib import Path
from typing import Final

from advisor.frameworks.names import Framework
from advisor.job.job import AttnImplementation, Job
from advisor.layers.parameters import parameter_count
from advisor.models.options import TransformerImpl
from research.rows.row import (
    PUBLISHED,
    Row,
    batch_of,
    read_rows,
    resolved,
    setting_of,
)
from research.rows.targets import Target

_CAVEATS: Final = "Caveats"
_GBS: Final = "8"


def ml_engineering_targets(folder: Path = PUBLISHED) -> tuple[Target, ...]:
    """Lengths, and versions of torch at the shortest, on which nothing is fitted."""
    return tuple(_target(row) for row in read_rows(folder, "stas_h200_b200"))


def model_flops_per_token(job: Job) -> float:
    """As the source counts them: logits, no embedding, attention halved."""
    model = job.model
    weights = parameter_count(model).total - model.vocab_size * model.hidden_size
    attention = 6 * model.num_layers * model.query_projection_size * job.config.seq_length
    return 6 * weights + attention


def _target(row: Row) -> Target:
    row = {**row, "gbs": row["gbs"] or _GBS}
    values = {
        **batch_of(row),
        "framework": Framework.DEEPSPEED,
        "optimizer_cpu_offload": True,
        "transformer_impl": TransformerImpl.TRANSFORMERS,
        "use_liger_kernel": True,
        "attn_implementation": AttnImplementation.FLASH_ATTENTION_3,
    }
    done = resolved("llama3.1_8b", f"{row['num_gpus']}xH200", values)
    version = row["notes"].split(":")[0] if _CAVEATS in row["source_path_or_table"] else ""
    tokens = int(row["gbs"]) * int(row["seq_len"]) / int(row["num_gpus"])
    length = f"{int(row['seq_len']) // 1024}K"
    return Target(
        name=f"Llama 3.1 8B 8xH200 ZeRO-3 {length}" + (f" {version}" if version else ""),
        table="stas_h200_b200",
        family=f"Llama 3.1 8B H200 {length}",
        group="ml-engineering",
        source=row["source_path_or_table"],
        job=done.job,
        setting=setting_of(done.job, "full"),
        seconds=tokens * model_flops_per_token(done.job) / (float(row["tflops_per_gpu"]) * 1e12),
        options=done.options,
        judged_only="one of six versions of torch" if version else "",
        comparable=not version,
    )
