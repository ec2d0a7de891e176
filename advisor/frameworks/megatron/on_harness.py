"""A job as the harness runs it on Megatron Core, with all installed that its backend can use."""

from typing import Any, Final

from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.record import defaults
from advisor.job.job import Job, JobConfig
from advisor.models.options import CpCommType

_PLAIN_FIELDS: Final = (
    "cuda_graph_impl",
    "cuda_graph_modules",
    "fp8_param_gather",
    "use_precision_aware_optimizer",
    "optimizer",
    "optimizer_cpu_offload",
    "main_params_dtype",
    "exp_avg_dtype",
    "exp_avg_sq_dtype",
    "moe_load_imbalance",
)
_CONFIG_DEFAULTS: Final = defaults(JobConfig)


def harness_config(config: JobConfig) -> JobConfig:
    """Its mock data has no mask, experts get equal shares, nothing is captured in CUDA graphs,
    optimizer states are fp32 and not on the host."""
    plain: dict[str, Any] = {name: _CONFIG_DEFAULTS[name] for name in _PLAIN_FIELDS}
    own = {"create_attention_mask": False, "moe_router_force_load_balancing": True}
    return replace(config, **own, **plain)


def harness_job(job: Job) -> Job:
    """UserError where its context parallelism is of a kind that the backend lacks."""
    layout = job.layout
    if layout.context_parallel_size > 1 and layout.cp_comm_type is not CpCommType.P2P:
        raise UserError(
            "layout.cp_comm_type",
            str(layout.cp_comm_type),
            "must be p2p on the megatron_core backend",
        )
    config = harness_config(job.config)
    if job.model.num_moe_experts is None:
        routes = job.config.moe_router_force_load_balancing
        config = replace(config, moe_router_force_load_balancing=routes)
    return replace(job, config=config)
