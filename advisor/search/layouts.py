"""Every legal layout and micro batch of a job, of which a search evaluates some."""

from collections.abc import Iterator
from math import prod

from msgspec.structs import replace

from advisor.answer.answer import Rejection
from advisor.base.errors import UserError
from advisor.base.units import divisors
from advisor.frameworks.protocols import FrameworkAdapter
from advisor.frameworks.registry import adapter_of
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import chunk_texts
from advisor.models.options import CpCommType
from advisor.plan.split import EVEN, split_evenly, virtual_degrees
from advisor.request.layout_fields import LONG_CONTEXT, SEARCHED
from advisor.request.resolve import Resolution

_MICRO_BATCHES = (1, 2, 4, 8)
_MOST_TOKENS = 65536
"""Tokens of a microbatch beyond which more than one sequence is not tried: its kernels have enough
to do, and the pipeline's bubble grows with it (a judgement)."""


def legal_jobs(
    resolution: Resolution, stack: FrameworkAdapter, refused: list[Rejection]
) -> Iterator[Job]:
    """Jobs of every layout and micro batch that the model, the GPUs and the framework allow.

    refused: gets what the framework says of the others.
    """
    fixed = resolution.layout_fields
    batches = _micro_batches(resolution)
    own = stack.layouts(fixed, resolution.num_gpus)
    for layout in layouts(resolution) if own is None else own:
        if any(getattr(layout, name) != value for name, value in fixed.items()):
            continue
        for micro_batch_size in batches:
            try:
                job = resolution.job(layout, micro_batch_size)
            except UserError:
                continue
            if found := stack.check(stack.none, job):
                refused += found
            else:
                yield job


def _micro_batches(resolution: Resolution) -> tuple[int | None, ...]:
    """Those worth a try; None for the one that was given."""
    if not resolution.micro_batch_is_free:
        return (None,)
    most = _MOST_TOKENS // resolution.config.seq_length
    return tuple(n for n in _MICRO_BATCHES if n <= max(1, most))


def layouts(resolution: Resolution) -> Iterator[ParallelLayout]:
    """TP within an NVLink domain, CP for long sequences, PP, VPP; DP takes what is left."""
    gpus = resolution.num_gpus
    domain = min(8, max(1, resolution.gpu.nvlink_domain_size))
    base, given = resolution.layout or ParallelLayout(), resolution.layout_fields
    others = {name: value for name, value in given.items() if name not in SEARCHED}
    for tp in _wanted(resolution, "tensor_model_parallel_size", _powers(domain)):
        for cp, kind in _context_degrees(resolution):
            for pp in _wanted(resolution, "pipeline_model_parallel_size", divisors(gpus)):
                if gpus % (tp * cp * pp):
                    continue
                layout = replace(
                    base,
                    **others,
                    tensor_model_parallel_size=tp,
                    sequence_parallel=tp > 1 and given.get("sequence_parallel", True),
                    context_parallel_size=cp,
                    cp_comm_type=kind,
                    pipeline_model_parallel_size=pp,
                    virtual_pipeline_model_parallel_size=1,
                    data_parallel_size=gpus // (tp * cp * pp),
                )
                for split in _splits(resolution, layout):
                    yield from _expert_layouts(resolution, split)


def _splits(resolution: Resolution, layout: ParallelLayout) -> Iterator[ParallelLayout]:
    """`layout` with every VPP that may split the layers: as it says itself, where it does; unless
    that was asked for, evenly as well, or nearly so. A job says whether the layers fit."""
    model, config = resolution.model, resolution.config
    own = () if layout.splits_evenly else _own_degrees(model.num_layers, layout)
    for vpp in own:
        yield replace(layout, virtual_pipeline_model_parallel_size=vpp)
    if any(resolution.layout_fields.get(name) for name in EVEN):
        return
    ways = adapter_of(config.framework).splits(config)
    plain, as_text = replace(layout, **EVEN), ways.by_text
    if model.num_layers % layout.pipeline_model_parallel_size and not ways.unevenly:
        return
    for vpp in virtual_degrees(model, layout.pipeline_model_parallel_size):
        if vpp not in own:
            even = replace(plain, virtual_pipeline_model_parallel_size=vpp)
            yield split_evenly(model, even, as_text=as_text)


def _own_degrees(num_layers: int, layout: ParallelLayout) -> tuple[int, ...]:
    """VPP that could split the layers over the stages as `layout` says."""
    pp = layout.pipeline_model_parallel_size
    if pp == 1:
        return ()
    if layout.pipeline_model_parallel_layout:
        chunks = len(chunk_texts(layout.pipeline_model_parallel_layout))
        return (chunks // pp,) if chunks % pp == 0 else ()
    counted = (
        layout.account_for_embedding_in_pipeline_split + layout.account_for_loss_in_pipeline_split
    )
    return divisors(-(-(num_layers + counted) // pp))


def _expert_layouts(resolution: Resolution, layout: ParallelLayout) -> Iterator[ParallelLayout]:
    """`layout` with every EP that divides the experts and the ranks of a stage, experts not cut by
    tensor parallelism (but without EP, where they are as the other layers are)."""
    experts = resolution.model.num_moe_experts
    if experts is None:
        yield layout
        return
    stage = layout.world_size // layout.pipeline_model_parallel_size
    etp = resolution.layout_fields.get("expert_tensor_parallel_size", 1)
    degrees = tuple(ep for ep in divisors(experts) if stage % (ep * (etp or 1)) == 0)
    for ep in _wanted(resolution, "expert_model_parallel_size", degrees):
        yield replace(
            layout,
            expert_model_parallel_size=ep,
            expert_tensor_parallel_size=etp if ep > 1 else None,
        )


def _wanted(resolution: Resolution, name: str, values: tuple[int, ...]) -> tuple[int, ...]:
    given = resolution.layout_fields.get(name)
    return values if given is None else (given,)


def _powers(limit: int) -> tuple[int, ...]:
    return tuple(2**k for k in range(limit.bit_length()) if 2**k <= limit)


def _context_degrees(resolution: Resolution) -> Iterator[tuple[int, CpCommType]]:
    """CP by ring and by all-to-all; a2a+p2p in the one degree that its sizes give."""
    fixed, seq_length = resolution.layout_fields, resolution.config.seq_length
    degrees: tuple[int, ...] = (1,)
    if sizes := fixed.get("hierarchical_context_parallel_sizes"):
        degrees = (prod(sizes),)
    elif seq_length >= LONG_CONTEXT:
        degrees = _powers(seq_length // (LONG_CONTEXT // 4))
    given = fixed.get("cp_comm_type")
    for cp in _wanted(resolution, "context_parallel_size", degrees):
        kinds = (CpCommType.P2P, CpCommType.A2A) if cp > 1 else (CpCommType.P2P,)
        for kind in kinds if given is None else (given,):
            yield cp, kind
