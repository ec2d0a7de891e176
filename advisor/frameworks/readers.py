"""Every framework's reader of configurations, in the order in which they are asked."""

from functools import cache

from advisor.reading.read_configuration import Reader


@cache
def readers() -> tuple[Reader, ...]:
    """One for each family of frameworks."""
    from advisor.frameworks.deepspeed.reader import DeepSpeedReader
    from advisor.frameworks.huggingface.reader import HuggingFaceReader
    from advisor.frameworks.megatron.lint.reader import MegatronReader
    from advisor.frameworks.torchtitan.reader import TorchTitanReader

    return MegatronReader(), TorchTitanReader(), DeepSpeedReader(), HuggingFaceReader()
