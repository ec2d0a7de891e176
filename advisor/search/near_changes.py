"""Jobs that differ from another one in one thing, a degree, the micro batch or an option."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import divisors, if_legal
from advisor.frameworks.part_types import Effect
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job
from advisor.job.layout import EVEN, DataParallelSharding, ParallelLayout
from advisor.job.samples import Packing
from advisor.models.options import CpCommType
from advisor.plan.split import split_evenly, virtual_degrees
from advisor.search.changed_options import changes

_EVERYTHING = "spreads weights, gradients and activations over more GPUs"


class Neighbour(Struct, frozen=True):
    """Another job, in words, and why it may help."""

    words: str
    why: str
    job: Job


def neighbours(job: Job, effects: frozenset[Effect] = frozenset(Effect)) -> Iterator[Neighbour]:
    """Jobs with one change each, of options those with `effects`; a framework may refuse them."""
    parts = ((words, why, partial(replace, job, **part)) for words, why, part in _variants(job))
    options = ((change.words, change.why, change.make) for change in changes(job, effects))
    made: Iterable[tuple[str, str, Callable[[], Job]]] = chain(parts, options)
    for words, why, make in made:
        other = if_legal(make)
        if other is not None and other != job:
            yield Neighbour(words, why, other)


def _variants(job: Job) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Words, why, and the part of the job that is another one."""
    layout, config = job.layout, job.config
    degrees = (
        *_other_chunk_counts(job),
        *_wider_layouts(job),
        *_narrower_layouts(job),
        *_more_expert_parallel(job),
    )
    yield from ((words, why, {"layout": other}) for words, why, other in degrees)
    for size in _other_micro_batches(job):
        words = f"micro batch {size} instead of {config.micro_batch_size}"
        why = "changes activations and the size of kernels"
        yield words, why, {"config": replace(config, micro_batch_size=size)}
    if (budget := _smaller_budget(job)) is not None:
        samples = replace(config.samples, token_budget=budget, packing=Packing.PACKED)
        words, why = f"--max-tokens-per-gpu {budget}", "packs of fewer tokens, without padding"
        yield words, why, {"config": replace(config, samples=samples, micro_batch_size=1)}
    if layout.tensor_model_parallel_size > 1 and not layout.sequence_parallel:
        words = "layout.sequence_parallel=true"
        why = "activations of norm and dropout are split over TP"
        yield words, why, {"layout": replace(layout, sequence_parallel=True)}
    if layout.data_parallel_sharding not in (None, DataParallelSharding.FULL):
        words = "shard everything (ZeRO-3, reshard after forward)"
        why, full = "parameters are gathered again for the backward", DataParallelSharding.FULL
        yield words, why, {"layout": replace(layout, data_parallel_sharding=full)}
    if layout.context_parallel_size > 1 and layout.cp_comm_type is not CpCommType.A2A_P2P:
        why = "changes buffers and how much communication is hidden"
        for kind in (CpCommType.P2P, CpCommType.ALL_GATHER, CpCommType.A2A):
            if kind is not layout.cp_comm_type:
                words = f"layout.cp_comm_type={kind}"
                yield words, why, {"layout": replace(layout, cp_comm_type=kind)}


def _smaller_budget(job: Job) -> int | None:
    """Half the tokens of a pack; of padded samples packs of the longest. None where that changes
    nothing."""
    samples, cp = job.config.samples, job.layout.context_parallel_size
    if samples.padded and samples.varies:
        return -(-job.config.seq_length // cp)
    budget = samples.token_budget
    return None if budget is None or budget * cp <= job.config.seq_length else budget // 2


def _other_micro_batches(job: Job) -> Iterator[int]:
    """Half and twice as many sequences; a pack is one row."""
    size = job.config.micro_batch_size
    if job.config.samples.token_budget is not None:
        return
    if size > 1:
        yield size // 2
    if job.num_microbatches % 2 == 0:
        yield 2 * size


def _narrower_layouts(job: Job) -> Iterator[tuple[str, str, ParallelLayout]]:
    """Half the tensor, pipeline or context parallelism, and twice the data parallelism."""
    layout, twice = job.layout, 2 * job.layout.data_parallel_size
    more = replace(layout, data_parallel_size=twice)
    tp, cp = layout.tensor_model_parallel_size, layout.context_parallel_size
    pp = layout.pipeline_model_parallel_size
    if tp % 2 == 0:
        cut = layout.sequence_parallel and tp > 2
        fewer = replace(more, tensor_model_parallel_size=tp // 2, sequence_parallel=cut)
        why = "less TP communication; tensors are split over fewer GPUs"
        yield f"TP {tp // 2} and DP {twice}", why, fewer
    if cp % 2 == 0 and layout.hierarchical_context_parallel_sizes is None:
        why = "less CP communication; a sequence is split over fewer GPUs"
        yield f"CP {cp // 2} and DP {twice}", why, replace(more, context_parallel_size=cp // 2)
    if pp % 2 == 0:
        why = "less PP communication; layers are split over fewer stages"
        fewer = replace(
            more, pipeline_model_parallel_size=pp // 2, virtual_pipeline_model_parallel_size=1
        )
        fewer = _on_chunks(job, fewer, 1)
        yield f"PP {pp // 2} and DP {twice}", why, fewer
        ep = 2 * layout.expert_model_parallel_size
        if job.model.num_moe_experts and job.model.num_moe_experts % ep == 0:
            why = "fewer stages, whose layers have their experts on more GPUs"
            spread = replace(fewer, expert_model_parallel_size=ep)
            yield f"PP {pp // 2}, DP {twice} and EP {ep}", why, spread


def _wider_layouts(job: Job) -> Iterator[tuple[str, str, ParallelLayout]]:
    """Twice the tensor, pipeline or context parallelism at the cost of data parallelism."""
    layout = job.layout
    if layout.data_parallel_size % 2:
        return
    half = layout.data_parallel_size // 2
    fewer = replace(layout, data_parallel_size=half)
    tp, pp = 2 * layout.tensor_model_parallel_size, 2 * layout.pipeline_model_parallel_size
    if tp <= job.gpu.nvlink_domain_size:
        wider = replace(fewer, tensor_model_parallel_size=tp, sequence_parallel=True)
        yield f"TP {tp} and DP {half}", _EVERYTHING, wider
    if layout.hierarchical_context_parallel_sizes is None:
        cp = 2 * layout.context_parallel_size
        why = "spreads the activations of a sequence over more GPUs"
        yield f"CP {cp} and DP {half}", why, replace(fewer, context_parallel_size=cp)
    deeper = replace(fewer, pipeline_model_parallel_size=pp)
    yield f"PP {pp} and DP {half}", _EVERYTHING, _on_chunks(job, deeper, 1)


def _on_chunks(job: Job, layout: ParallelLayout, vpp: int) -> ParallelLayout:
    """`layout` on PP x `vpp` chunks, split evenly, or as evenly as can be where that is worth a
    try."""
    layout = replace(layout, **EVEN, virtual_pipeline_model_parallel_size=vpp)
    ways = parts_of(job.config.framework).jobs.splits(job.config)
    if not ways.unevenly or vpp not in virtual_degrees(
        job.model, layout.pipeline_model_parallel_size
    ):
        return layout
    return split_evenly(job.model, layout, as_text=ways.by_text)


def _more_expert_parallel(job: Job) -> Iterator[tuple[str, str, ParallelLayout]]:
    """The next EP and the largest, over the same ranks of a stage; experts are then not cut."""
    layout, experts = job.layout, job.model.num_moe_experts
    if experts is None:
        return
    stage = layout.world_size // layout.pipeline_model_parallel_size
    tensor = layout.expert_tensor_parallel_size or 1
    more = [
        degree
        for degree in divisors(experts)
        if degree > layout.expert_model_parallel_size and stage % (degree * tensor) == 0
    ]
    whole = replace(layout, expert_tensor_parallel_size=tensor)
    for degree in sorted({*more[:1], *more[-1:]}):
        words = f"EP {degree} instead of {layout.expert_model_parallel_size}"
        why = "spreads the experts over more GPUs"
        yield words, why, replace(whole, expert_model_parallel_size=degree)


def _other_chunk_counts(job: Job) -> Iterator[tuple[str, str, ParallelLayout]]:
    """The legal VPP next below the job's, and two above: the first may take more memory."""
    layout = job.layout
    pp, vpp = layout.pipeline_model_parallel_size, layout.virtual_pipeline_model_parallel_size
    legal = virtual_degrees(job.model, pp)
    why = "changes the microbatches in flight and the pipeline bubble"
    for other in [n for n in legal if n < vpp][-1:] + [n for n in legal if n > vpp][:2]:
        yield f"VPP {other} instead of {vpp}", why, _on_chunks(job, layout, other)
