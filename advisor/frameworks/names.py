"""The frameworks that come with the advisor, by the names that `--framework` takes."""

from enum import StrEnum


class Framework(StrEnum):
    """Whose recompute settings are ranked and whose flags are printed."""

    MEGATRON_LM = "megatron_lm"
    MEGATRON_BRIDGE = "megatron_bridge"
    NEMO = "nemo"
    TORCHTITAN = "torchtitan"
    FSDP2 = "fsdp2"
    DEEPSPEED = "deepspeed"
    HUGGINGFACE = "huggingface"
    TRL = "trl"
    LLAMA_FACTORY = "llama_factory"
    AXOLOTL = "axolotl"
    MS_SWIFT = "ms_swift"
    AUTOMODEL = "automodel"
