"""prime-rl's nightly baselines: Qwen3 0.6B and 4B, its trainers of reinforcement learning and of
supervised training on random tokens, all parameters or LoRA of rank 16.

Two microbatches a step, each one packed row. Every layer is in a checkpoint ("Recompute"), whose
inputs go to the host as well ("Offload"). Until May 2026 the fused head went through the vocabulary
in chunks of all tokens, supervised training had whole logits, and Adam's states stayed on the GPU;
in June it had tiles, and states and inputs of the checkpoints on the host, which is the default
since. On Blackwell attention fell back to FlashAttention 2: 2 to 16 % MFU, no use as times.
"""

from pathlib import Path
from typing import Final

from advisor.frameworks.names import Framework
from advisor.job.job import Job
from advisor.job.loss_head import HeadImplementation, LossHead
from advisor.job.tuning import Adapter, Tuning
from advisor.models.options import AttentionBackend
from advisor.plan.recompute_plan import Setting
from research.rows.row import PUBLISHED, Row, batch_of, read_rows, resolved, setting_of

_MODELS: Final = {"Qwen/Qwen3-0.6B": "qwen3_0.6b", "Qwen/Qwen3-4B-Instruct-2507": "qwen3_4b"}
_GPUS: Final = {"RTX A6000": "A6000", "H100 80GB HBM3": "H100"}
_JUNE: Final = "2026-06"
_RUNS: Final = 4
"""--max-concurrent-runs of all rows with LoRA."""
_KERNELS: Final = {
    "flash_attention_2": AttentionBackend.FLASH,
    "flash_attention_3": AttentionBackend.FUSED,
}


def prime_rl_rows(folder: Path = PUBLISHED) -> list[Row]:
    """All of them."""
    return read_rows(folder, "prime_rl")


def is_old(row: Row) -> bool:
    """Whether it is of the trainer of January 2026."""
    return row["date"] < _JUNE


def prime_rl_job(row: Row) -> tuple[Job, Setting]:
    """A row's job, and its recompute."""
    name = HeadImplementation.PRIME_RL_VOCABULARY if is_old(row) else HeadImplementation.PRIME_RL
    if row["trainer"] == "sft":
        name = HeadImplementation.PRIME_RL_CROSS_ENTROPY
    tuning = Tuning()
    if row["lora_rank"]:
        tuning = Tuning(adapter=Adapter.LORA, rank=int(row["lora_rank"]), num_adapters=_RUNS)
    values = {
        **batch_of(row),
        "framework": Framework.PRIME_RL,
        "attention_backend": _KERNELS[row["attention_impl"]],
        "optimizer_cpu_offload": not is_old(row),
        "head": LossHead(implementation=name),
        "tuning": tuning,
    }
    gpu = _GPUS.get(row["gpu"], row["gpu"])
    job = resolved(_MODELS[row["model"]], f"{row['num_gpus']}x{gpu}", values).job
    away = row["recompute"] == "Offload" or not is_old(row)
    return job, setting_of(job, "full+offload" if away else "full")
