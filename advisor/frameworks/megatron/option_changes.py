"""Options of a job that Megatron could run it with instead, each alone, and what they may do."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from advisor.base.fields import spelled
from advisor.frameworks.megatron.bridge import OPTIMIZER_RECIPE
from advisor.frameworks.megatron.revisions import Revision, resolve_revision
from advisor.frameworks.names import Framework
from advisor.frameworks.part_types import Effect, JobChange
from advisor.job.job import CudaGraphImpl, Fp8Recipe, Job
from advisor.job.tuning import Adapter
from advisor.models.options import CrossEntropyFusion, FlexBackend, TokenDispatcher, TransformerImpl

_SHARED_APART: Final = {"moe_shared_expert_overlap": False}


def changes(job: Job, framework: str, *, loads_mask: bool) -> Iterator[JobChange]:
    """All of them; a rule may refuse what one makes. loads_mask: a mask of all pairs of positions
    comes with each microbatch."""
    revision = resolve_revision(framework, job.config.framework_version)
    if loads_mask:
        why = "the boolean mask [micro batch, 1, sequence, sequence] is not loaded"
        yield _change(job, why, Effect.FREE, config={"create_attention_mask": False})
    yield from _free(job, revision)
    yield from _graphs(job, revision)
    if job.model.num_moe_experts is not None:
        yield _dispatcher(job, revision)
        yield _overlapped_exchange(job)
    bridge, tuning = framework == Framework.MEGATRON_BRIDGE, job.config.tuning
    yield from _optimizer(job, bridge=bridge)
    gathers = tuning.adapter is Adapter.LORA and job.layout.sequence_parallel
    if bridge and gathers and not tuning.sequence_parallel_input_regather:
        why = "adapters keep the tokens of their own TP rank, and gather the others again"
        own = replace(tuning, sequence_parallel_input_regather=True)
        words = "tuning.sequence_parallel_input_regather=true"
        yield _change(job, why, Effect.MEMORY, words, config={"tuning": own})


def _change(
    job: Job, why: str, effect: Effect, words: str = "", **parts: Mapping[str, Any]
) -> JobChange:
    """Other values of fields, by the part of the job that has them; words: what says so, where that
    is not all of these."""

    def make() -> Job:
        changed = {part: replace(getattr(job, part), **new) for part, new in parts.items()}
        return replace(job, **changed)

    words = words or " ".join(_keys(part, new) for part, new in parts.items() if new)
    return JobChange(words, why, make, effect)


def _keys(part: str, new: Mapping[str, Any]) -> str:
    section = "job" if part == "config" else part
    return " ".join(f"{section}.{name}={spelled(value)}" for name, value in new.items())


def _free(job: Job, revision: Revision) -> Iterator[JobChange]:
    """A fused loss; collectives during products, passes and reductions."""
    model, layout = job.model, job.layout
    if model.cross_entropy_fusion is CrossEntropyFusion.NONE:
        engine = model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE
        engine &= not revision.refuses_engine_loss
        kind = CrossEntropyFusion.TE if engine else CrossEntropyFusion.NATIVE
        why = "the loss keeps no logits in fp32"
        yield _change(job, why, Effect.FREE, model={"cross_entropy_fusion": kind})
    overlaps = (
        ("tp_comm_overlap", layout.sequence_parallel, "TP collectives overlap matrix products"),
        ("overlap_grad_reduce", True, "gradient reduction overlaps the backward"),
        (
            "overlap_param_gather",
            layout.use_distributed_optimizer,
            "parameter gathering overlaps the forward",
        ),
    )
    for name, able, why in overlaps:
        if able and not getattr(layout, name):
            yield _change(job, why, Effect.FREE, layout={name: True})


def _dispatcher(job: Job, revision: Revision) -> JobChange:
    """DeepEP's kernels, which shared experts run during from 0.18 on; or NCCL's."""
    model = job.model
    if model.moe_token_dispatcher_type is TokenDispatcher.FLEX:
        why = "NCCL's kernels instead of the flex dispatcher's"
        alltoall = {"moe_token_dispatcher_type": TokenDispatcher.ALLTOALL}
        return _change(job, why, Effect.EXCHANGE, model=alltoall)
    flex: dict[str, Any] = {"moe_token_dispatcher_type": TokenDispatcher.FLEX}
    if model.moe_shared_expert_overlap and not revision.at_least(0, 18):
        flex |= _SHARED_APART
    why = "a token is sent once per node, not once per expert on that node; needs DeepEP"
    deepep = {**flex, "moe_flex_dispatcher_backend": FlexBackend.DEEPEP}
    return _change(job, why, Effect.EXCHANGE, _keys("model", flex), model=deepep)


def _overlapped_exchange(job: Job) -> JobChange:
    """Forward and backward of two micro batches in turn, where shared experts run in theirs; or
    each alone."""
    if job.layout.overlap_moe_expert_parallel_comm:
        why = "no second micro batch is held in memory"
        alone = {"overlap_moe_expert_parallel_comm": False, "delay_wgrad_compute": False}
        return _change(job, why, Effect.EXCHANGE, layout=alone)
    return _change(
        job,
        "the expert exchange overlaps the layers of another micro batch",
        Effect.EXCHANGE,
        layout={"overlap_moe_expert_parallel_comm": True},
        model=_SHARED_APART if job.model.moe_shared_expert_overlap else {},
    )


def _graphs(job: Job, revision: Revision) -> Iterator[JobChange]:
    """None; or Transformer Engine's graphs of all that can be captured, from the release on that
    reads which modules."""
    impl = job.config.cuda_graph_impl
    if impl is not CudaGraphImpl.NONE:
        none = {"cuda_graph_impl": CudaGraphImpl.NONE}
        why = "CUDA graphs keep a separate memory pool and copies of their inputs"
        config = {**none, "cuda_graph_modules": ()}
        yield _change(job, why, Effect.MEMORY, _keys("config", none), config=config)
    if impl is not CudaGraphImpl.FULL_ITERATION and revision.at_least(0, 16):
        from advisor.frameworks.megatron.job_graphs import engine_graphs

        why = "one launch per graph: the GPU waits less for the host"
        yield _change(job, why, Effect.LAUNCHES, config=engine_graphs(job, revision))


def _optimizer(job: Job, *, bridge: bool) -> Iterator[JobChange]:
    """An Adam that holds the main parameters, of which it keeps what bf16 weights lack, where
    Bridge's precision keeps it from that as well; an Adam on the host."""
    config = job.config
    if config.optimizer.is_muon:
        return
    aware = {"use_precision_aware_optimizer": True}
    if not config.use_precision_aware_optimizer:
        if job.layout.use_distributed_optimizer:
            why = "Adam stores only the fp32 bits that the bf16 weight lacks"
            yield _change(job, why, Effect.FREE, config=aware)
    elif bridge and not config.adam_holds_main_params and not config.precision.is_fp8:
        why = (
            "the optimizer keeps 2-byte remainders instead of fp32 parameters, and its step copies "
            "no gradients"
        )
        words = f"{OPTIMIZER_RECIPE}={Fp8Recipe.DELAYED}"
        yield _change(job, why, Effect.FREE, words, config={"fp8_recipe": Fp8Recipe.DELAYED})
    if not job.layout.use_distributed_optimizer and job.layout.data_parallel_size > 1:
        why = f"shards optimizer states over {job.layout.data_parallel_size} ranks"
        yield _change(job, why, Effect.FREE, layout={"use_distributed_optimizer": True})
    elif not config.optimizer_cpu_offload:
        why = "moves optimizer states and the optimizer step to the host"
        fields = {} if config.use_precision_aware_optimizer else aware
        yield _change(job, why, Effect.MEMORY, config={**fields, "optimizer_cpu_offload": True})
    else:
        why = "the optimizer's states stay on the GPU, and its step runs there"
        yield _change(job, why, Effect.SPEED, config={"optimizer_cpu_offload": False})
