"""Parts of a job that need what its GPU has not: kernels that are built for NVIDIA's GPUs, or for
some of them.

Megatron's configuration sees no GPU: these rules are about the job, and refuse it under any
setting.
"""

from collections.abc import Iterator
from typing import ClassVar, Final

from advisor.answer.answer import Rejection
from advisor.base.rule import Rule, findings, rows_of, rules_of
from advisor.frameworks.megatron.setting import RecomputeSetting
from advisor.hardware.gpu import Vendor
from advisor.job.job import CudaGraphImpl, Job
from advisor.models.options import TokenDispatcher, TransformerImpl


class JobRule(Rule[[Job]], frozen=True, kw_only=True):
    """A rule on a job and its GPU."""

    names: ClassVar[tuple[str, ...]] = ("job",)


def _is_amd(job: Job) -> bool:
    return job.gpu.vendor is Vendor.AMD


HARDWARE_RULES: Final = rules_of(
    JobRule,
    rows_of("megatron.json")["hardware"],
    {
        "flex_dispatcher_gpu": lambda job: (
            job.model.num_moe_experts is not None
            and job.model.moe_token_dispatcher_type is TokenDispatcher.FLEX
            and not job.gpu.is_nvlink_server
        ),
        "tp_comm_overlap_gpu": lambda job: (
            job.layout.tp_comm_overlap and (_is_amd(job) or not job.gpu.peer_to_peer)
        ),
        "cuda_graphs_gpu": lambda job: (
            job.config.cuda_graph_impl is not CudaGraphImpl.NONE and _is_amd(job)
        ),
    },
)
"""None of them fires on NVIDIA's servers with NVLink."""


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
