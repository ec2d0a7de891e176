"""Options of a job that Megatron could run it with instead, each alone, and what they may do."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from advisor.frameworks.megatron.bridge import OPTIMIZER_RECIPE
from advisor.frameworks.megatron.revisions import Revision, resolve_revision
from advisor.frameworks.names import Framework
from advisor.frameworks.part_types import Effect, JobChange
from advisor.job.job import CudaGraphImpl, Fp8Recipe, Job
from advisor.models.options import CrossEntropyFusion, FlexBackend, TokenDispatcher, TransformerImpl

_SHARED_APART: Final = "model.moe_shared_expert_overlap=false"


def changes(job: Job, framework: str, *, loads_mask: bool) -> Iterator[JobChange]:
    """All of them; a rule may refuse what one makes. loads_mask: a mask of all pairs of positions
    comes with each microbatch."""
    revision = resolve_revision(framework, job.config.framework_version)
    if loads_mask:
        yield _of_job(
            job,
            "the boolean mask [micro batch, 1, sequence, sequence] is not loaded",
            Effect.FREE,
            create_attention_mask=False,
        )
    yield from _free(job)
    yield from _graphs(job, revision)
    if job.model.num_moe_experts is not None:
        yield _dispatcher(job, revision)
        yield _overlapped_exchange(job)
    yield from _optimizer(job, bridge=framework == Framework.MEGATRON_BRIDGE)


def _of_job(job: Job, why: str, effect: Effect, **fields: Any) -> JobChange:
    words = " ".join(f"job.{name}={_spelled(value)}" for name, value in fields.items())
    return JobChange(words, why, lambda: replace(job, config=replace(job.config, **fields)), effect)


def _of_layout(job: Job, why: str, effect: Effect, **fields: Any) -> JobChange:
    words = " ".join(f"layout.{name}={_spelled(value)}" for name, value in fields.items())
    return JobChange(words, why, lambda: replace(job, layout=replace(job.layout, **fields)), effect)


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _free(job: Job) -> Iterator[JobChange]:
    """A fused loss; collectives during products, passes and reductions."""
    model, layout = job.model, job.layout
    if model.cross_entropy_fusion is CrossEntropyFusion.NONE:
        engine = model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE
        kind = CrossEntropyFusion.TE if engine else CrossEntropyFusion.NATIVE
        fused = replace(model, cross_entropy_fusion=kind)
        yield JobChange(
            f"model.cross_entropy_fusion={kind}",
            "the loss keeps no logits in fp32",
            partial(replace, job, model=fused),
            Effect.FREE,
        )
    if not layout.tp_comm_overlap and layout.sequence_parallel:
        why = "TP collectives overlap matrix products"
        yield _of_layout(job, why, Effect.FREE, tp_comm_overlap=True)
    if not layout.overlap_grad_reduce:
        why = "gradient reduction overlaps the backward"
        yield _of_layout(job, why, Effect.FREE, overlap_grad_reduce=True)
    if not layout.overlap_param_gather and layout.use_distributed_optimizer:
        why = "parameter gathering overlaps the forward"
        yield _of_layout(job, why, Effect.FREE, overlap_param_gather=True)


def _dispatcher(job: Job, revision: Revision) -> JobChange:
    """DeepEP's kernels, which shared experts run during from 0.18 on; or NCCL's."""
    model = job.model
    if model.moe_token_dispatcher_type is TokenDispatcher.FLEX:
        usual = replace(model, moe_token_dispatcher_type=TokenDispatcher.ALLTOALL)
        why = "NCCL's kernels instead of the flex dispatcher's"
        words = "model.moe_token_dispatcher_type=alltoall"
        return JobChange(words, why, partial(replace, job, model=usual), Effect.EXCHANGE)
    words, overlapped = "model.moe_token_dispatcher_type=flex", model.moe_shared_expert_overlap
    if overlapped and not revision.at_least(0, 18):
        words, overlapped = f"{words} {_SHARED_APART}", False
    changed = replace(
        model,
        moe_token_dispatcher_type=TokenDispatcher.FLEX,
        moe_flex_dispatcher_backend=FlexBackend.DEEPEP,
        moe_shared_expert_overlap=overlapped,
    )
    return JobChange(
        words,
        "a token is sent once per node, not once per expert on that node; needs DeepEP",
        partial(replace, job, model=changed),
        Effect.EXCHANGE,
    )


def _overlapped_exchange(job: Job) -> JobChange:
    """Forward and backward of two micro batches in turn, where shared experts run in theirs; or
    each alone."""
    if job.layout.overlap_moe_expert_parallel_comm:
        why = "no second micro batch is held in memory"
        return _of_layout(
            job,
            why,
            Effect.EXCHANGE,
            overlap_moe_expert_parallel_comm=False,
            delay_wgrad_compute=False,
        )
    words = "layout.overlap_moe_expert_parallel_comm=true"
    if job.model.moe_shared_expert_overlap:
        words += f" {_SHARED_APART}"
    model = replace(job.model, moe_shared_expert_overlap=False)
    layout = replace(job.layout, overlap_moe_expert_parallel_comm=True)
    return JobChange(
        words,
        "the expert exchange overlaps the layers of another micro batch",
        partial(replace, job, model=model, layout=layout),
        Effect.EXCHANGE,
    )


def _graphs(job: Job, revision: Revision) -> Iterator[JobChange]:
    """None; or Transformer Engine's graphs of all that can be captured, from the release on that
    reads which modules."""
    impl = job.config.cuda_graph_impl
    if impl is not CudaGraphImpl.NONE:
        config = replace(job.config, cuda_graph_impl=CudaGraphImpl.NONE, cuda_graph_modules=())
        yield JobChange(
            f"job.cuda_graph_impl={CudaGraphImpl.NONE}",
            "CUDA graphs keep a separate memory pool and copies of their inputs",
            partial(replace, job, config=config),
            Effect.MEMORY,
        )
    if impl is not CudaGraphImpl.FULL_ITERATION and revision.at_least(0, 16):
        from advisor.frameworks.megatron.job_graphs import with_graphs

        changed = with_graphs(job, revision)
        modules = ",".join(changed.cuda_graph_modules)
        yield JobChange(
            f"job.cuda_graph_impl={changed.cuda_graph_impl} job.cuda_graph_modules={modules}",
            "one launch per graph: the GPU waits less for the host",
            partial(replace, job, config=changed),
            Effect.LAUNCHES,
        )


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
            yield _of_job(job, why, Effect.FREE, **aware)
    elif bridge and not config.adam_holds_main_params and not config.precision.is_fp8:
        delayed = Fp8Recipe.DELAYED
        yield JobChange(
            f"{OPTIMIZER_RECIPE}={delayed}",
            "the optimizer keeps 2-byte remainders instead of fp32 parameters, and its step copies "
            "no gradients",
            partial(replace, job, config=replace(config, fp8_recipe=delayed)),
            Effect.FREE,
        )
    if not job.layout.use_distributed_optimizer and job.layout.data_parallel_size > 1:
        why = f"shards optimizer states over {job.layout.data_parallel_size} ranks"
        yield _of_layout(job, why, Effect.FREE, use_distributed_optimizer=True)
    elif not config.optimizer_cpu_offload:
        why = "moves optimizer states and the optimizer step to the host"
        fields = {} if config.use_precision_aware_optimizer else aware
        yield _of_job(job, why, Effect.MEMORY, **fields, optimizer_cpu_offload=True)
