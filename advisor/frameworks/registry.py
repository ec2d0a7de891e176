"""Which Stack stands behind each name of `--framework`; each is imported when it is asked for."""

from functools import cache

from advisor.frameworks.protocols import Stack
from advisor.job.job import Framework


@cache
def stack_of(framework: Framework) -> Stack:
    """The framework's Stack."""
    match framework:
        case Framework.TORCHTITAN:
            from advisor.frameworks.torchtitan.adapter import TorchTitan

            return TorchTitan()
        case Framework.FSDP2:
            from advisor.frameworks.torch.adapter import Fsdp2

            return Fsdp2()
        case Framework.DEEPSPEED:
            from advisor.frameworks.deepspeed.adapter import DeepSpeed

            return DeepSpeed()
        case Framework.HUGGINGFACE:
            from advisor.frameworks.huggingface.adapter import HuggingFace

            return HuggingFace()
    from advisor.frameworks.megatron.adapter import Megatron

    return Megatron(framework)
