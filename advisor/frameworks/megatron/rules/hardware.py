"""Parts of a job that need what its GPU has not: kernels that are built for NVIDIA's GPUs, or for
some of them.

Megatron's configuration sees no GPU: these rules are about the job, and refuse it under any
setting.
"""

from collections.abc import Iterator
from typing import ClassVar, Final

from advisor.answer.answer import Rejection
from advisor.base.rule import Rule, findings
from advisor.frameworks.megatron.setting import RecomputeSetting
from advisor.hardware.gpu import Vendor
from advisor.job.job import CudaGraphImpl, Job
from advisor.models.options import TokenDispatcher, TransformerImpl


class JobRule(Rule[[Job]], frozen=True, kw_only=True):
    """A rule on a job and its GPU."""

    names: ClassVar[tuple[str, ...]] = ("job",)


def _is_amd(job: Job) -> bool:
    return job.gpu.vendor is Vendor.AMD


HARDWARE_RULES: Final = {  # none of them fires on NVIDIA's servers with NVLink
    "flex_dispatcher_gpu": JobRule(
        summary="DeepEP and HybridEP run on A100, Hopper and Blackwell servers with NVLink.",
        given=lambda job: (
            job.model.num_moe_experts is not None
            and job.model.moe_token_dispatcher_type is TokenDispatcher.FLEX
        ),
        when=lambda job: not job.gpu.is_nvlink_server,
        reason="DeepEP and HybridEP need NVLink and an A100, Hopper, B200 or newer GPU; "
        "{job.gpu.name} does not qualify",
        fix="model.moe_token_dispatcher_type=alltoall",
        source="Megatron Bridge 0.3.1 training/flex_dispatcher_backend.py; DeepEP README.md, "
        "Requirements",
    ),
    "tp_comm_overlap_gpu": JobRule(
        summary="tp_comm_overlap needs NVIDIA GPUs that access each other's memory.",
        given=lambda job: job.layout.tp_comm_overlap,
        when=lambda job: _is_amd(job) or not job.gpu.peer_to_peer,
        reason="tp_comm_overlap writes to other GPUs' memory through CUDA multicast or CUDA IPC, "
        "which {job.gpu.name} does not support",
        fix="layout.tp_comm_overlap=false",
        source="Transformer Engine 2.20 pytorch/module/base.py initialize_ub",
    ),
    "cuda_graphs_gpu": JobRule(
        summary="On AMD, CUDA graphs become HIP graphs, which are not modelled.",
        given=lambda job: job.config.cuda_graph_impl is not CudaGraphImpl.NONE,
        when=_is_amd,
        reason="cuda_graph_impl on {job.gpu.name} captures HIP graphs, which are not modelled",
        fix="job.cuda_graph_impl=none",
        source="docs/gpus.md",
    ),
}


def hardware_rejections(setting: RecomputeSetting, job: Job) -> tuple[Rejection, ...]:
    """Why no training comes of `job` on its GPU, whatever the setting."""
    return tuple(
        Rejection(setting=setting, rule=f.rule, reason=f.reason, fix=f.fix, source=f.source)
        for f in findings(HARDWARE_RULES, job)
    )


def hardware_remarks(job: Job) -> Iterator[str]:
    """Whose Transformer Engine runs on AMD."""
    if job.model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE and _is_amd(job):
        yield "AMD's port of Transformer Engine (ROCm/TransformerEngine) behaves like NVIDIA's"
