"""The adapter behind each name of `--framework`; each is imported when it is asked for."""

from functools import cache
from typing import Final

from advisor.frameworks.protocols import FrameworkAdapter
from advisor.job.job import Framework
from advisor.models.spec import ModelSpec

_BUILDERS: Final = (Framework.MEGATRON_LM, Framework.MEGATRON_BRIDGE, Framework.HUGGINGFACE)
"""Who builds a model where no framework is named: the first of these that has its layers."""


def default_framework(model: ModelSpec | None) -> Framework:
    """The framework of a request that names none; of no model in particular the first."""
    if model is None:
        return _BUILDERS[0]
    return next((name for name in _BUILDERS if adapter_of(name).builds(model)), _BUILDERS[0])


RECIPE_FRAMEWORKS: Final = {
    "megatron_bridge": Framework.MEGATRON_BRIDGE,
    "megatron_lm": Framework.MEGATRON_LM,
    "nemo2": Framework.NEMO,
    "nemo1": Framework.NEMO,
}
"""Frameworks as the tables of configs/recipe call them, the ones whose recipes come first first."""


def framework_of_recipe(name: str) -> Framework | None:
    """The framework that a table calls so; None where it names none."""
    return RECIPE_FRAMEWORKS.get(name)


@cache
def adapter_of(framework: Framework) -> FrameworkAdapter:
    """The framework's FrameworkAdapter."""
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
