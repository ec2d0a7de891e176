"""YAML of axolotl and LLaMA-Factory, which name a Trainer's arguments in words of their own.

Sources: axolotl 0.12 src/axolotl/utils/schemas; LLaMA-Factory 0.9.3 src/llamafactory/hparams.
"""

from typing import Any, Final

from advisor.frameworks.huggingface.options import CHECKPOINTING, MICRO_BATCH, OPTIM
from advisor.job.job import AttnImplementation
from advisor.reading.document_keys import Keys

_AXOLOTL: Final = {
    "base_model": "model_name_or_path",
    "sequence_len": "max_length",
    "micro_batch_size": MICRO_BATCH,
    "optimizer": OPTIM,
}
_LLAMA_FACTORY: Final = {"cutoff_len": "max_length", "enable_liger_kernel": "use_liger_kernel"}
OTHERS_OWN: Final = ("base_model", "sequence_len", "cutoff_len", "finetuning_type")
"""Keys that a document of either has."""
_KERNELS: Final = {
    ("flash_attention", True): AttnImplementation.FLASH_ATTENTION_2,
    ("eager_attention", True): AttnImplementation.EAGER,
    ("flash_attn", "fa2"): AttnImplementation.FLASH_ATTENTION_2,
    ("flash_attn", "fa3"): AttnImplementation.FLASH_ATTENTION_3,
    ("flash_attn", "disabled"): AttnImplementation.EAGER,
}


def put_trainers_names(keys: Keys) -> None:
    """Store the same values under a Trainer's names, with defaults that are none of a Trainer's."""
    if not any(keys.has(name) for name in OTHERS_OWN):
        return
    for name, trainers in (*_AXOLOTL.items(), *_LLAMA_FACTORY.items()):
        if keys.has(name) and not keys.has(trainers):
            keys.values[trainers] = keys.values[name]
    for (name, value), kernel in _KERNELS.items():
        if keys.has(name) and keys.get(name) == value:
            _put(keys, "attn_implementation", str(kernel), name)
    if keys.get("bf16") == "auto":
        _put(keys, "bf16", True, "bf16")
    of_factory = keys.has("finetuning_type") or keys.has("cutoff_len")
    if of_factory and not keys.has("finetuning_type"):
        keys.put("finetuning_type", "lora", keys.place, "finetuning_type by default")
    if of_factory and not any(keys.has(name) for name in CHECKPOINTING):
        off = "disable_gradient_checkpointing"
        stays = keys.truth(off) is not True
        keys.put(CHECKPOINTING[1], stays, keys.where(off), f"no {off}" if stays else off)


def _put(keys: Keys, trainers: str, value: Any, name: str) -> None:
    keys.values[trainers] = keys.means(name, value)
