"""What the choice of Adam or Muon changes in a job beside the optimizer's own name."""

from typing import Any, Final

from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.record import defaults
from advisor.frameworks.protocols import FrameworkAdapter
from advisor.job.job import JobConfig, Optimizer
from advisor.request.experiments import Experiment
from advisor.request.recipes import Recipe

ADAMS_ALONE: Final = frozenset(
    {
        "use_precision_aware_optimizer",
        "main_params_dtype",
        "exp_avg_dtype",
        "exp_avg_sq_dtype",
        "optimizer_cpu_offload",
    }
)
"""Options of JobConfig that Muon does not take (megatron-core 0.16.1 optimizer_config.py)."""


def whole_tensors(optimizer: Optimizer) -> dict[str, Any]:
    """What an optimizer of whole tensors needs of the layout, where the request says nothing.

    Megatron-LM 0.16 and 0.17 refuse overlapped reductions beside plain muon (arguments.py).
    """
    if not optimizer.is_muon:
        return {}
    reduced = {"overlap_grad_reduce": False} if optimizer is Optimizer.MUON else {}
    return {"use_distributed_optimizer": False, **reduced}


def under_optimizer(preset: Experiment, optimizer: Optimizer) -> Experiment:
    """`preset` with another optimizer, and without what only its own one has it set: Muon whole
    tensors, Adam the options that are its alone."""
    if optimizer.is_muon == preset.config.optimizer.is_muon:
        return preset
    if not optimizer.is_muon:
        layout = replace(preset.layout, use_distributed_optimizer=True)
        return replace(preset, layout=layout, config=replace(preset.config, optimizer=optimizer))
    usual = defaults(JobConfig)
    adams: dict[str, Any] = {name: usual[name] for name in ADAMS_ALONE}
    return replace(preset, config=replace(preset.config, optimizer=optimizer, **adams))


def lent_optimizer(
    config: JobConfig, recipe: Recipe | None, adapter: FrameworkAdapter
) -> JobConfig:
    """`config` with the optimizer of `recipe`; as it is where its release, its precision or its
    own options do not go with that."""
    wanted = recipe.fields_of(JobConfig).get("optimizer") if recipe else None
    if wanted is None:
        return config
    try:
        lent = replace(config, optimizer=wanted)
        adapter.check_options(lent)
    except UserError:
        return config
    return lent
