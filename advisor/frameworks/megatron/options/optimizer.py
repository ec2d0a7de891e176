"""Options of the optimizer and of data parallelism."""

from typing import Final

from msgspec.structs import replace

from advisor.frameworks.megatron.options.section import Section
from advisor.frameworks.megatron.options.values import (
    FSDP_STRATEGIES,
    deals_whole_tensors,
    emitted_where,
    fsdp_gradients,
    fsdp_strategy,
    gathers_meanwhile,
    is_not_muon,
    runs_fsdp,
    torch_type,
    with_fsdp,
)
from advisor.frameworks.option import (
    DIFFERENT,
    EMITTED,
    ON_LINE,
    Emitted,
    Status,
    When,
    checked,
    option,
)

_FSDP: Final = emitted_where(runs_fsdp)
_RUN: Final = Emitted(line=DIFFERENT, recipe=When(always=True, only_if=is_not_muon))


class OptimizerStep(Section, title="Optimizer", home="optimizer"):
    """Options of the optimizer's update; the types of its tensors are in Precision."""

    optimizer: str = option("adam", "job", ON_LINE, means=str.lower)
    use_layer_wise_param_layout: bool = option(
        True, "job.optimizer", ON_LINE, value=deals_whole_tensors, since="0.18", bridge=""
    )
    grad_norm_skip_threshold: float = checked(float("inf"), "", Status.HARMLESS, since="0.18")


class DataParallel(Section, title="Data parallelism", home="ddp"):
    """Options of DistributedDataParallelConfig and of what shards over data-parallel ranks."""

    use_distributed_optimizer: bool = option(False, "layout", _RUN)
    overlap_grad_reduce: bool = option(False, "layout", _RUN)
    overlap_param_gather: bool = option(
        False, "layout", _RUN, value=gathers_meanwhile, means=bool, recipe=When(only_if=is_not_muon)
    )
    num_distributed_optimizer_instances: int = option(
        1, "layout.data_parallel_replicate_size", EMITTED
    )
    use_megatron_fsdp: bool = option(
        False,
        "layout.data_parallel_sharding",
        _FSDP,
        value=with_fsdp(runs_fsdp),
        strict=True,
        since="0.14",
    )
    data_parallel_sharding_strategy: str = option(
        "no_shard",
        "layout.data_parallel_sharding",
        _FSDP,
        launcher="optim_grads_params",
        value=fsdp_strategy("data_parallel_sharding"),
        since="0.12",
    )
    outer_dp_sharding_strategy: str = option(
        "no_shard",
        "layout",
        _FSDP,
        value=fsdp_strategy("outer_dp_sharding_strategy"),
        means=FSDP_STRATEGIES,
        since="0.14",
    )
    ckpt_format: str = option(
        "torch_dist",
        "layout.data_parallel_sharding",
        _FSDP,
        value=with_fsdp(lambda _: "fsdp_dtensor"),  # the one format that it takes
        bridge="checkpoint",
    )
    fsdp_double_buffer: bool = option(False, "layout.double_buffers", _FSDP, since="0.13")
    megatron_fsdp_main_grads_dtype: str | None = option(
        None,
        "job.main_grads_dtype",
        replace(_FSDP, recipe_value=torch_type("main_grads_dtype")),
        launcher="auto",
        value=fsdp_gradients,
        since="0.17",
    )


class Adapters(Section, title="Adapters", home=""):
    """What Bridge adds to a frozen model."""

    peft: str = option(
        "none",
        "job.tuning",
        value=lambda job, _: (
            "none" if job.config.tuning.cut_by_tokens else job.config.tuning.adapter
        ),
        flag="",
        bridge="peft",
    )
