"""Changes outside recompute: evaluated like any setting, shown where they beat recompute."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.answer import SAME_TIME, Remedy
from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError
from advisor.base.units import GIB, divisors
from advisor.frameworks.registry import adapter_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.layout import DataParallelSharding, ParallelLayout
from advisor.models.options import CpCommType
from advisor.plan.recompute_plan import Setting
from advisor.plan.split import EVEN, split_evenly, virtual_degrees
from advisor.request.layout_fields import degree_words
from advisor.search.layout_search import evaluate_settings
from advisor.search.ranking import Order, order, tier

_SHOWN = 4
_LEAST_BYTES = GIB // 20
"""What no page would show (-0.0 GiB)."""
_EVERYTHING = "weights, gradients and activations over more GPUs"


class _Change(Struct, frozen=True):
    """Another job, in words."""

    words: str
    why: str
    job: Job


def find_remedies(
    best: Evaluation,
    calibration: Calibration,
    asked: tuple[Setting, ...] = (),
) -> tuple[Remedy, ...]:
    """Remedies against `best`, the first of the ranking, most useful first.

    asked: the settings that a remedy may go with; empty means any legal one.
    Where `best` fits without recompute there is nothing to remedy. Where it fits with recompute, a
    remedy must fit and be faster. Where nothing fits, a remedy must need less memory; those that
    make it fit come first. All of them with the allocator replayed, as `best` is.
    """
    best = best.replayed
    if tier(best) == 0 and not best.recompute_overhead:
        return ()
    found: list[tuple[Order, Remedy]] = []
    stack = adapter_of(best.job.config.framework)
    waits = best.time_seconds.host > SAME_TIME * best.step_time_seconds
    for change in _changes(best.job, waits=waits):
        if stack.check(stack.none, change.job):
            continue
        settings = asked or stack.candidates(change.job)
        legal = tuple(s for s in settings if not stack.check(s, change.job))
        evaluations = evaluate_settings(change.job, legal, calibration)
        other = _first_that_helps(evaluations, best)
        if other is not None:
            found.append((order(other), _remedy(change, other, best)))
    return tuple(remedy for _, remedy in sorted(found, key=lambda pair: pair[0])[:_SHOWN])


def other_layout(found: Evaluation, best: Evaluation, num_layouts: int) -> Remedy:
    """The best that a search of all layouts has found, against `best`."""
    batch = found.job.config.micro_batch_size
    change = f"{degree_words(found.job.layout)}, DP {found.job.layout.data_parallel_size}"
    if batch != best.job.config.micro_batch_size:
        change += f", micro batch {batch}"
    why = f"the best of {num_layouts} legal layouts"
    return _remedy(_Change(change, why, found.job), found, best)


def besides(found: Evaluation, best: Evaluation, remedies: tuple[Remedy, ...]) -> Iterator[Remedy]:
    """`remedies` of `best` but for a change that makes the job of `found` of it."""
    same = {change.words for change in _changes(best.job, waits=True) if change.job == found.job}
    return (one for one in remedies if one.change.partition(" with ")[0] not in same)


def _first_that_helps(evaluations: Iterable[Evaluation], best: Evaluation) -> Evaluation | None:
    """The first of the ranking, its allocator replayed; None where it does not help."""
    ranked = [(order(evaluation), evaluation) for evaluation in evaluations]
    while ranked:
        first = min(ranked, key=itemgetter(0))
        ranked.remove(first)
        other = first[1]
        if not _helps(other, best):
            return None
        if other.requests is not None:
            return other
        ranked.append((order(other.replayed), other.replayed))
    return None


def _helps(other: Evaluation, best: Evaluation) -> bool:
    if tier(other) != tier(best):
        return tier(other) < tier(best)
    if tier(best) == 0:
        return other.step_time_seconds < best.step_time_seconds * (1 - SAME_TIME)
    return other.peak_reserved_bytes < best.peak_reserved_bytes - _LEAST_BYTES


def _remedy(change: _Change, other: Evaluation, best: Evaluation) -> Remedy:
    with_setting = "" if other.setting == best.setting else f" with {other.setting.spec}"
    return Remedy(
        change=change.words + with_setting,
        effect_bytes=other.peak_reserved_bytes - best.peak_reserved_bytes,
        effect_seconds=other.step_time_seconds - best.step_time_seconds,
        why=change.why,
        fit_probability=other.fit_probability,
    )


def _changes(job: Job, *, waits: bool) -> Iterator[_Change]:
    """Legal variants of a job, one change each. waits: the GPU waits for its processor."""
    for words, why, variant in _variants(job, waits=waits):
        try:
            yield _Change(words, why, variant())
        except UserError:
            continue


def _variants(job: Job, *, waits: bool) -> Iterator[tuple[str, str, Callable[[], Job]]]:
    layout, config = job.layout, job.config
    vpp = layout.virtual_pipeline_model_parallel_size
    for other in _other_chunk_counts(job):
        yield (
            f"VPP {other} instead of {vpp}",
            "chunks in flight and the bubble change with it",
            partial(replace, job, layout=_on_chunks(job, layout, other)),
        )
    for words, why, other_layout in (*_wider_layouts(job), *_more_expert_parallel(job)):
        yield words, why, partial(replace, job, layout=other_layout)
    if config.micro_batch_size > 1:
        half = config.micro_batch_size // 2
        yield (
            f"micro batch {half} instead of {config.micro_batch_size}",
            "activations shrink with it",
            partial(replace, job, config=replace(config, micro_batch_size=half)),
        )
    if not layout.use_distributed_optimizer and layout.data_parallel_size > 1:
        yield (
            "layout.use_distributed_optimizer=true",
            f"optimizer states over {layout.data_parallel_size} ranks",
            partial(replace, job, layout=replace(layout, use_distributed_optimizer=True)),
        )
    if layout.tensor_model_parallel_size > 1 and not layout.sequence_parallel:
        yield (
            "layout.sequence_parallel=true",
            "norm and dropout regions are cut by TP",
            partial(replace, job, layout=replace(layout, sequence_parallel=True)),
        )
    if layout.data_parallel_sharding not in (None, DataParallelSharding.FULL):
        full = DataParallelSharding.FULL
        yield (
            "sharding everything (ZeRO-3, reshard after forward)",
            "parameters are gathered again for the backward",
            partial(replace, job, layout=replace(layout, data_parallel_sharding=full)),
        )
    for change in adapter_of(config.framework).job_changes(job):
        if waits or not change.of_launches:
            yield change.words, change.why, change.make
    yield from _attention_variants(job)
    if not config.expandable_segments:
        yield (
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            "less fragmentation",
            partial(replace, job, config=replace(config, expandable_segments=True)),
        )


def _attention_variants(job: Job) -> Iterator[tuple[str, str, Callable[[], Job]]]:
    """Other ways across the ranks of context parallelism."""
    layout = job.layout
    if layout.context_parallel_size == 1 or layout.cp_comm_type is CpCommType.A2A_P2P:
        return
    for kind in (CpCommType.P2P, CpCommType.ALL_GATHER, CpCommType.A2A):
        if kind is not layout.cp_comm_type:
            yield (
                f"layout.cp_comm_type={kind}",
                "other buffers, and communication that is hidden or not",
                partial(replace, job, layout=replace(layout, cp_comm_type=kind)),
            )


def _wider_layouts(job: Job) -> Iterator[tuple[str, str, ParallelLayout]]:
    """Twice the tensor, pipeline or context parallelism at the cost of data parallelism."""
    layout = job.layout
    if layout.data_parallel_size % 2:
        return
    half = layout.data_parallel_size // 2
    tp, pp = 2 * layout.tensor_model_parallel_size, 2 * layout.pipeline_model_parallel_size
    if tp <= job.gpu.nvlink_domain_size:
        yield (
            f"TP {tp} and DP {half}",
            _EVERYTHING,
            replace(
                layout,
                tensor_model_parallel_size=tp,
                sequence_parallel=True,
                data_parallel_size=half,
            ),
        )
    if layout.hierarchical_context_parallel_sizes is None:
        cp = 2 * layout.context_parallel_size
        yield (
            f"CP {cp} and DP {half}",
            "the activations of a sequence over more GPUs",
            replace(layout, context_parallel_size=cp, data_parallel_size=half),
        )
    deeper = replace(layout, pipeline_model_parallel_size=pp, data_parallel_size=half)
    yield f"PP {pp} and DP {half}", _EVERYTHING, _on_chunks(job, deeper, 1)


def _on_chunks(job: Job, layout: ParallelLayout, vpp: int) -> ParallelLayout:
    """`layout` on PP x `vpp` chunks, split evenly, or as evenly as can be where that is worth a
    try."""
    layout = replace(layout, **EVEN, virtual_pipeline_model_parallel_size=vpp)
    ways = adapter_of(job.config.framework).splits(job.config)
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
    for degree in sorted({*more[:1], *more[-1:]}):
        yield (
            f"EP {degree} instead of {layout.expert_model_parallel_size}",
            "the experts over more GPUs",
            replace(layout, expert_model_parallel_size=degree, expert_tensor_parallel_size=tensor),
        )


def _other_chunk_counts(job: Job) -> list[int]:
    """The legal VPP next below and above the job's."""
    layout = job.layout
    pp, vpp = layout.pipeline_model_parallel_size, layout.virtual_pipeline_model_parallel_size
    legal = virtual_degrees(job.model, pp)
    return [n for n in legal if n < vpp][-1:] + [n for n in legal if n > vpp][:1]
