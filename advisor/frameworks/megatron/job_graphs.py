"""Which CUDA graphs a job has: those of a recipe that its release captures, or those that it could
have.
"""

from collections.abc import Set
from typing import Any, Final

from msgspec.structs import replace

from advisor.frameworks.megatron.raw import RawSettings, job_values
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.cuda_graphs import capturable
from advisor.frameworks.megatron.rules.engine import rules_in_force
from advisor.job.job import CudaGraphImpl, Job, JobConfig
from advisor.models.spec import ModelSpec

_OF_WHOLE_LAYERS: Final = (
    "cuda_graph_whole_experts",
    "cuda_graph_iteration_experts",
    "bridge_local_graphs",
)


def as_captured(
    model: ModelSpec, config: JobConfig, given: Set[str], revision: Revision
) -> JobConfig:
    """`config` with the graphs that the release captures: a whole iteration by its own name, and
    except what is `given` no graphs that it refuses, and no modules where none are captured
    apart."""
    impl, modules = config.cuda_graph_impl, config.cuda_graph_modules
    if impl is CudaGraphImpl.LOCAL and "full_iteration" in modules:
        impl, modules = CudaGraphImpl.FULL_ITERATION, ()
    if not _can_be_captured(model, config, revision) and "job.cuda_graph_impl" not in given:
        impl = CudaGraphImpl.NONE
    apart = impl in (CudaGraphImpl.LOCAL, CudaGraphImpl.TRANSFORMER_ENGINE)
    if not apart and "job.cuda_graph_modules" not in given:
        modules = ()
    return replace(config, cuda_graph_impl=impl, cuda_graph_modules=modules)


def engine_graphs(job: Job, revision: Revision) -> dict[str, Any]:
    """The options of Transformer Engine's graphs of all modules of `job` that they can hold."""
    engine = CudaGraphImpl.TRANSFORMER_ENGINE
    modules = capturable(RawSettings(**job_values(job, revision)), str(engine), revision)
    return {"cuda_graph_impl": engine, "cuda_graph_modules": modules}


def _can_be_captured(model: ModelSpec, config: JobConfig, revision: Revision) -> bool:
    """Whether `revision` takes graphs that may be those of a recipe for another release, or of one
    with options that no field of a job says."""
    raw = RawSettings(
        cuda_graph_impl=str(config.cuda_graph_impl),
        cuda_graph_modules=config.cuda_graph_modules,
        num_moe_experts=model.num_moe_experts,
        moe_token_dispatcher_type=str(model.moe_token_dispatcher_type),
        moe_flex_dispatcher_backend=str(model.moe_flex_dispatcher_backend),
        moe_expert_capacity_factor=model.moe_expert_capacity_factor,
        moe_pad_expert_input_to_capacity=model.moe_pad_expert_input_to_capacity,
    )
    rules = rules_in_force(revision)
    asked = (rules[name] for name in _OF_WHOLE_LAYERS if name in rules)
    return not any(True for rule in asked for _ in rule.matches(raw, revision))
