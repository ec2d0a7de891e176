"""Thirty small jobs in frameworks of four kinds, of which all that flags can say is looked at."""

from typing import Any, Final

from advisor.request.request import Request
from advisor.request.resolve import Resolution, resolve

SETTLED: Final = (
    "job.expandable_segments=true",
    "job.create_attention_mask=false",
    "model.cross_entropy_fusion=te",
    "job.use_precision_aware_optimizer=true",
)
"""Options of Megatron that are always as good: given, a search leaves them alone."""


def small(
    model: str, gpus: str, *, layers: int = 2, options: tuple[str, ...] = (), **fields: Any
) -> Resolution:
    """A few layers and a small batch, so that everything can be looked at."""
    usual = {"seq_length": 4096, "global_batch_size": 4, **fields}
    overrides = (f"model.num_layers={layers}", *options)
    return resolve(Request(model=model, gpus=gpus, overrides=overrides, **usual))


def _job(framework: str, model: str, gpus: str, budget: str, **fields: Any) -> dict[str, Any]:
    usual = {"options": SETTLED} if framework.startswith("megatron") else {}
    named = {"framework": framework, "model": model, "gpus": gpus, "memory_budget": budget}
    return {**named, **usual, **fields}


SUITE: Final = (
    # fits without recompute, with it, and not at all
    _job("megatron_lm", "llama3_8b", "4xH100", "60GiB"),
    _job("megatron_lm", "llama3_8b", "2xA100", "14GiB"),
    _job("megatron_lm", "llama3_8b", "2xA100", "4GiB"),
    _job("megatron_lm", "llama3_8b", "2xH100", "20GiB", options=()),
    _job("megatron_lm", "mixtral_8x7b", "2xH100", "60GiB"),
    _job("torchtitan", "mixtral_8x7b", "2xH200", "139GiB"),
    _job("torchtitan", "llama3_8b", "4xH100", "24GiB"),
    _job("deepspeed", "llama3_8b", "4xA100", "12GiB"),
    _job("huggingface", "llama3_8b", "2xA100", "20GiB"),
)
"""What the tests compare."""
_LONG: Final = {"seq_length": 16384}
_DEEP: Final = {"layers": 8, "global_batch_size": 16}
THIRTY: Final = (
    *SUITE,
    _job("megatron_lm", "llama3_8b", "1xH100", "24GiB", **_LONG, options=()),
    _job("megatron_lm", "llama3_8b", "4xH100", "24GiB", **_LONG, options=()),
    _job("megatron_lm", "llama3_8b", "4xH100", "10GiB", layers=8, global_batch_size=8),
    _job("megatron_lm", "llama2_7b", "8xA100", "6GiB", layers=4, global_batch_size=8),
    _job("megatron_lm", "qwen3_30b_a3b", "2xH100", "14GiB", **_LONG, global_batch_size=2),
    _job("megatron_bridge", "llama3_8b", "4xH100", "16GiB", seq_length=32768),
    _job("megatron_bridge", "llama3_8b", "2xA100", "16GiB", options=()),
    _job("torchtitan", "llama3_8b", "2xH100", "36GiB", **_LONG),
    _job("torchtitan", "llama3_8b", "4xH100", "30GiB", seq_length=32768, layers=4),
    _job("torchtitan", "llama3_70b", "8xH100", "20GiB", layers=4, global_batch_size=8),
    _job("torchtitan", "qwen3_30b_a3b", "4xH100", "16GiB"),
    _job("fsdp2", "llama3_8b", "2xH100", "34GiB"),
    _job("fsdp2", "llama3_8b", "4xH100", "30GiB", **_LONG),
    _job("fsdp2", "llama3_8b", "1xH200", "80GiB", seq_length=32768, layers=4),
    _job("fsdp2", "llama2_7b", "8xA100", "14GiB", **_DEEP),
    _job("fsdp2", "mistral_7b", "4xH100", "14GiB", layers=4),
    _job("deepspeed", "llama3_8b", "8xA100", "14GiB", **_DEEP),
    _job("deepspeed", "llama3_8b", "2xH100", "28GiB", **_LONG),
    _job("deepspeed", "llama3_70b", "4xH100", "40GiB"),
    _job("huggingface", "llama3_8b", "4xA100", "24GiB", seq_length=8192, layers=4),
    _job("huggingface", "mistral_7b", "8xH100", "12GiB", **_DEEP),
)
"""What `make bench` compares: no recompute, some of it, offload, or nothing that fits."""
