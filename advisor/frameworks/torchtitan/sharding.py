"""How torchtitan spreads a job: FSDP with tensor and expert parallelism.

Source: torchtitan 0.2.2 distributed/parallel_dims.py, models/llama4/infra/parallelize.py
(apply_moe_ep_tp); its pipelines are not modelled.
"""

from typing import Any, Final

from advisor.base.errors import UserError, divisors, either
from advisor.base.rule import Match
from advisor.frameworks.torch.rules import CONTEXT_RULES, Rules, stated
from advisor.frameworks.torch.setting import TorchSetting
from advisor.frameworks.torch.supported_jobs import (
    REPLICAS,
    StackFacts,
    context_ranks,
    given_sharding,
)
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout

_TP: Final = "tensor_model_parallel_size"
_OVERLAP: Final = "tp_comm_overlap"
_EP: Final = "expert_model_parallel_size"
_ETP: Final = "expert_tensor_parallel_size"
_ONE: Final = ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")


def titan_layout(facts: StackFacts, given: dict[str, Any], num_gpus: int) -> ParallelLayout:
    """FSDP over what TP and CP leave of the GPUs; experts over EP of them, cut by TP as well where
    EP is 1 (torchtitan then knows no other way) or where ETP says so."""
    sharded = {name: value for name, value in given.items() if name != _OVERLAP}
    sharding = given_sharding(facts, sharded, _ONE, "only FSDP, TP, CP and EP are modelled")
    tp, ep = given.get(_TP, 1), given.get(_EP, 1)
    if min(tp, ep) < 1:
        raise UserError(f"layout.{_TP if tp < 1 else _EP}", min(tp, ep), "must be at least 1")
    if given.get("sequence_parallel", tp > 1) != (tp > 1):
        relation = "torchtitan uses sequence parallelism if TP is more than 1, and only then"
        value = given["sequence_parallel"]
        raise UserError("layout.sequence_parallel", value, relation, "leave it out")
    if num_gpus % tp:
        relation = f"must divide the number of GPUs = {num_gpus}"
        raise UserError(
            f"layout.{_TP}", tp, relation, f"use {either(map(str, divisors(num_gpus)))}"
        )
    cp, kind = context_ranks(facts, given, num_gpus // tp)
    return ParallelLayout(
        tensor_model_parallel_size=tp,
        sequence_parallel=tp > 1,
        context_parallel_size=cp,
        cp_comm_type=kind,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=given.get(_ETP) or (1 if ep > 1 else None),
        data_parallel_size=given.get("data_parallel_size", num_gpus // (tp * cp)),
        data_parallel_sharding=sharding,
        data_parallel_replicate_size=given.get(REPLICAS, 1),
        tp_comm_overlap=given.get(_OVERLAP, False),
    )


def _other_expert_degree(_: TorchSetting, job: Job, __: StackFacts) -> Match | None:
    layout = job.layout
    tp, ep = layout.tensor_model_parallel_size, layout.expert_model_parallel_size
    if layout.expert_tensor_degree in ((1, tp) if ep > 1 else (tp,)):
        return None
    return Match(reason="" if ep > 1 else "without EP, TP splits the experts (apply_moe_ep_tp)")


def _no_shards(_: TorchSetting, job: Job, __: StackFacts) -> Match | None:
    layout = job.layout
    replicas, ranks = layout.data_parallel_replicate_size, layout.data_parallel_size
    if replicas == 1:
        return None
    if layout.expert_model_parallel_size > 1:
        return Match("replicas of shards are not modelled with EP", "EP 1")
    if ranks % replicas:
        return Match(f"{replicas} replicas must divide DP {ranks}")
    if ranks == replicas and layout.context_parallel_size == 1:
        return Match("without shards torchtitan runs DDP, which is not modelled")
    return None


LAYOUT_RULES: Final[Rules] = CONTEXT_RULES | stated(
    "torchtitan.layout",
    {
        "parallelism.data_parallel_replicate_degree": _no_shards,
        "parallelism.expert_tensor_parallel_degree": _other_expert_degree,
        "parallelism.tensor_parallel_degree": lambda _, job, __: (
            job.model.num_query_groups % job.layout.tensor_model_parallel_size
        ),
    },
)
"""What torchtitan asserts of a layout, or ends with."""
