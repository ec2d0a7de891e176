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
    VERL = "verl"
    VERL_MEGATRON = "verl_megatron"
    NEMO_RL = "nemo_rl"
    NEMO_RL_MEGATRON = "nemo_rl_megatron"
    SLIME = "slime"
    PRIME_RL = "prime_rl"
    OPENRLHF = "openrlhf"
    LLAMA_FACTORY = "llama_factory"
    AXOLOTL = "axolotl"
    MS_SWIFT = "ms_swift"
    AUTOMODEL = "automodel"
    MEGATRON_SWIFT = "megatron_swift"
