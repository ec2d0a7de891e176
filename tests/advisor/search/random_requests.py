"""Random requests for a job on many GPUs, the same ones each time."""

from collections.abc import Iterator
from random import Random
from typing import Any

from advisor.request.request import Request

_FRAMEWORKS: dict[str, tuple[str, ...]] = {
    "megatron_lm": ("llama3_8b", "llama3_70b", "mixtral_8x7b", "qwen3_30b_a3b", "deepseek_v3"),
    "megatron_bridge": ("llama3_8b", "llama3_70b", "qwen3_30b_a3b", "gpt_oss_20b", "kimi_k2"),
    "nemo": ("llama3_8b", "mixtral_8x7b", "nemotron_4_15b"),
    "torchtitan": ("llama3_8b", "llama3_70b", "mixtral_8x7b"),
    "deepspeed": ("llama3_8b", "llama3_70b"),
    "fsdp2": ("llama3_8b", "llama2_7b"),
    "huggingface": ("llama3_8b",),
}
_WEIGHTS = (6, 4, 1, 2, 2, 1, 1)


def random_requests(number: int, seed: int = 13) -> Iterator[Request]:
    """Requests as users make them; some of them no framework can run."""
    random = Random(seed)
    for _ in range(number):
        (framework,) = random.choices(tuple(_FRAMEWORKS), _WEIGHTS)
        fields: dict[str, Any] = {
            "model": random.choice(_FRAMEWORKS[framework]),
            "gpus": f"{random.choice((4, 8, 16, 24, 32, 64, 128, 256))}x"
            + random.choice(("H100", "H100", "H200", "A100", "B200")),
            "framework": framework,
        }
        if random.random() < 0.4:
            fields["seq_length"] = random.choice((2048, 4096, 8192, 16384, 32768, 131072))
        if random.random() < 0.3:
            fields["memory_budget"] = f"{random.choice((24, 36, 48, 60, 70))}GiB"
        if random.random() < 0.2:
            fields["global_batch_size"] = random.choice((64, 256, 512, 1024))
        if random.random() < 0.15 and framework != "huggingface":
            fields["micro_batch_size"] = random.choice((1, 2))
        if random.random() < 0.15 and framework.startswith("mega"):
            fields["tensor_model_parallel_size"] = random.choice((1, 2, 4, 8))
        yield Request(**fields)
