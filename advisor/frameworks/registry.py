"""The frameworks that are known by name; each is imported when it is asked for."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Final

from msgspec import Struct

from advisor.base.errors import UserError, likely_names, show
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.names import Framework
from advisor.models.spec import ModelSpec


class _Registration(Struct, frozen=True):
    """label: what pages call it. load: makes its parts."""

    label: str
    load: Callable[[], FrameworkParts]


def _shipped(label: str, module: str, *arguments: Any) -> _Registration:
    def load() -> FrameworkParts:
        made: FrameworkParts = import_module(f"advisor.frameworks.{module}").parts(*arguments)
        return made

    return _Registration(label, load)


_KNOWN: Final[dict[str, _Registration]] = {
    Framework.MEGATRON_LM: _shipped("Megatron-LM", "megatron.framework", Framework.MEGATRON_LM),
    Framework.MEGATRON_BRIDGE: _shipped(
        "Megatron Bridge", "megatron.framework", Framework.MEGATRON_BRIDGE
    ),
    Framework.NEMO: _shipped("NeMo", "megatron.framework", Framework.NEMO),
    Framework.TORCHTITAN: _shipped("torchtitan", "torchtitan.framework"),
    Framework.FSDP2: _shipped("PyTorch", "torch.fsdp2"),
    Framework.DEEPSPEED: _shipped("DeepSpeed", "deepspeed.framework"),
    Framework.HUGGINGFACE: _shipped("Hugging Face", "huggingface.framework"),
    Framework.TRL: _shipped("TRL", "trl.framework"),
    Framework.VERL: _shipped("verl", "verl.framework", Framework.VERL),
    Framework.VERL_MEGATRON: _shipped("verl (Megatron)", "verl.framework", Framework.VERL_MEGATRON),
    Framework.NEMO_RL: _shipped("NeMo-RL", "nemo_rl.framework", Framework.NEMO_RL),
    Framework.NEMO_RL_MEGATRON: _shipped(
        "NeMo-RL (Megatron)", "nemo_rl.framework", Framework.NEMO_RL_MEGATRON
    ),
    Framework.SLIME: _shipped("slime", "slime.framework"),
    Framework.PRIME_RL: _shipped("prime-rl", "prime_rl.framework"),
    Framework.OPENRLHF: _shipped("OpenRLHF", "openrlhf.framework"),
    Framework.LLAMA_FACTORY: _shipped("LLaMA-Factory", "llama_factory.framework"),
    Framework.AXOLOTL: _shipped("axolotl", "axolotl.framework"),
    Framework.MS_SWIFT: _shipped("ms-swift", "ms_swift.framework"),
    Framework.MEGATRON_SWIFT: _shipped("Megatron-SWIFT", "megatron_swift.framework"),
    Framework.AUTOMODEL: _shipped("NeMo AutoModel", "automodel.framework"),
}
_BUILDERS: Final = (Framework.MEGATRON_LM, Framework.MEGATRON_BRIDGE, Framework.HUGGINGFACE)
"""Who builds a model where no framework is named: the first of these that has its layers."""

RECIPE_FRAMEWORKS: Final = {
    "megatron_bridge": Framework.MEGATRON_BRIDGE,
    "megatron_lm": Framework.MEGATRON_LM,
    "nemo2": Framework.NEMO,
    "nemo1": Framework.NEMO,
}
"""Frameworks as the tables of configs/recipe call them, the ones whose recipes come first first."""


def register(name: str, label: str, load: Callable[[], FrameworkParts]) -> None:
    """Make a framework known by `name`, which `--framework` and ``job.framework`` then take."""
    _KNOWN[name] = _Registration(label, load)
    parts_of.cache_clear()


def framework_names() -> tuple[str, ...]:
    """Names of all frameworks, in the order of their registration."""
    return tuple(str(name) for name in _KNOWN)


def known_framework(name: str, field: str = "job.framework") -> str:
    """`name`, where it is one; UserError with all of them otherwise."""
    if name.lower() not in _KNOWN:
        names = framework_names()
        raise UserError(
            field, show(name), f"must be one of {', '.join(names)}", likely_names(name, names)
        )
    return name.lower()


def label_of(name: str) -> str:
    """What pages call a framework."""
    return _KNOWN[name].label


@cache
def parts_of(name: str) -> FrameworkParts:
    """The parts of a framework; of no name, those of a request that names none."""
    return _KNOWN[known_framework(name or _BUILDERS[0])].load()


def default_framework(model: ModelSpec | None) -> str:
    """The framework of a request that names none; of no model in particular the first."""
    if model is None:
        return _BUILDERS[0]
    return next((name for name in _BUILDERS if parts_of(name).jobs.builds(model)), _BUILDERS[0])


def runs_recipes(framework: str) -> bool:
    """Whether recipes are published for its family: those it runs as they stand, of another's jobs
    only the batch is its own."""
    return not set(RECIPE_FRAMEWORKS.values()).isdisjoint(parts_of(framework).family)


def framework_of_recipe(name: str) -> str | None:
    """The framework that a table calls so; None where it names none."""
    return RECIPE_FRAMEWORKS.get(name)
