"""Every legal layout of a job, and the evaluation of settings on each."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, prod

from advisor.answer import Evaluation, Rejection
from advisor.cost.calibration import Calibration
from advisor.errors import UserError
from advisor.evaluate import Evaluator
from advisor.frameworks.base import Stack
from advisor.frameworks.registry import stack_of
from advisor.job import Job
from advisor.layout import ParallelLayout
from advisor.models.attention import CpCommType
from advisor.models.spec import divisors
from advisor.pipeline import chunk_texts
from advisor.ranking import order, tier
from advisor.recompute import Setting
from advisor.resolve import Resolution

_MICRO_BATCHES = (1, 2, 4, 8)
_CONTEXT_PARALLEL_FROM = 16384
"""Sequence length from which context parallelism is tried unasked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """Evaluations of a search, and the number of legal jobs, which differ in layout and micro
    batch."""

    evaluations: tuple[Evaluation, ...]
    num_layouts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """First in the ranking's order of all settings on all legal jobs. evaluated: so many settings
    were looked at; the others cannot be as fast."""

    evaluation: Evaluation
    num_layouts: int
    evaluated: int


def evaluate_settings(
    job: Job, settings: tuple[Setting, ...], calibration: Calibration
) -> tuple[Evaluation, ...]:
    """All `settings` on one job."""
    evaluator = Evaluator(job, calibration)
    return tuple(evaluator.evaluate(setting) for setting in settings)


def search_layouts(resolution: Resolution, calibration: Calibration) -> Searched:
    """Every legal recompute setting on every legal layout and micro batch; what the request fixed
    stays fixed. UserError where no layout is legal."""
    stack = stack_of(resolution.config.framework)
    jobs = _all_jobs(resolution, stack)
    evaluations = [
        found
        for job in jobs
        for found in evaluate_settings(job, stack.candidates(job), calibration)
    ]
    return Searched(evaluations=tuple(evaluations), num_layouts=len(jobs))


def best_on_any_layout(resolution: Resolution, calibration: Calibration) -> Best:
    """The first of `search_layouts` in the ranking's order.

    Jobs come in the order of the time that none of their settings undercuts: once that is more than
    the best setting that fits takes, the rest need not be looked at. Those that hold more than the
    GPU has before any activation come last, for the case that nothing fits.
    """
    stack = stack_of(resolution.config.framework)
    evaluators = [Evaluator(job, calibration) for job in _all_jobs(resolution, stack)]
    evaluators.sort(key=lambda one: (one.is_hopeless, one.at_least_seconds))
    best, evaluated, limit = None, 0, inf
    for evaluator in evaluators:
        if best is not None and (
            evaluator.at_least_seconds > limit or (evaluator.is_hopeless and tier(best) < 2)
        ):
            break
        for setting in stack.candidates(evaluator.job):
            evaluated += 1
            if limit < inf and evaluator.seconds(setting) > limit:
                continue
            found = evaluator.evaluate(setting)
            best = found if best is None else min(best, found, key=order)
            limit = best.step_time_seconds if best.fits else inf
    assert best is not None, "a legal job has legal settings"
    return Best(evaluation=best, num_layouts=len(evaluators), evaluated=evaluated)


def _all_jobs(resolution: Resolution, stack: Stack) -> list[Job]:
    """See legal_jobs. UserError where there is none."""
    refused: list[Rejection] = []
    jobs = list(legal_jobs(resolution, stack, refused))
    if refused and not jobs:
        raise UserError(
            "--framework", resolution.config.framework, refused[0].reason, refused[0].fix
        )
    if not jobs:
        raise UserError(
            "--gpus", resolution.num_gpus,
            f"no legal layout of {resolution.model.name} for global batch "
            f"{resolution.config.global_batch_size} on so many GPUs",
            "change the number of GPUs or the global batch",
        )  # fmt: skip
    return jobs


def legal_jobs(resolution: Resolution, stack: Stack, refused: list[Rejection]) -> Iterator[Job]:
    """Jobs of every layout and micro batch that the model, the GPUs and the framework allow.

    refused: gets what the framework says of the others.
    """
    fixed = resolution.layout_fields
    batches = _MICRO_BATCHES if resolution.micro_batch_is_free else (None,)
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


def layouts(resolution: Resolution) -> Iterator[ParallelLayout]:
    """TP within an NVLink domain, CP for long sequences, PP, VPP; DP takes what is left."""
    model, gpus = resolution.model, resolution.num_gpus
    domain = min(8, max(1, resolution.gpu.nvlink_domain_size))
    base = resolution.layout or ParallelLayout()
    for tp in _wanted(resolution, "tensor_model_parallel_size", _powers(domain)):
        for cp, kind in _context_degrees(resolution):
            for pp in _wanted(resolution, "pipeline_model_parallel_size", divisors(gpus)):
                if gpus % (tp * cp * pp):
                    continue
                for vpp in _virtual_degrees(model.num_layers, base, pp):
                    layout = replace(
                        base,
                        tensor_model_parallel_size=tp,
                        sequence_parallel=tp > 1
                        and resolution.layout_fields.get("sequence_parallel", True),
                        context_parallel_size=cp,
                        cp_comm_type=kind,
                        pipeline_model_parallel_size=pp,
                        virtual_pipeline_model_parallel_size=vpp,
                        data_parallel_size=gpus // (tp * cp * pp),
                    )
                    yield from _expert_layouts(resolution, layout)


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


def _virtual_degrees(num_layers: int, base: ParallelLayout, pp: int) -> tuple[int, ...]:
    """VPP that could split the layers over `pp` stages; a job says whether it does."""
    if pp == 1:
        return (1,)
    if base.pipeline_model_parallel_layout:
        return (len(chunk_texts(base.pipeline_model_parallel_layout)) // pp or 1,)
    counted = base.account_for_embedding_in_pipeline_split + base.account_for_loss_in_pipeline_split
    if not base.splits_evenly:
        return divisors(-(-(num_layers + counted) // pp))
    return divisors(num_layers // pp) if num_layers % pp == 0 else ()


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
    elif seq_length >= _CONTEXT_PARALLEL_FROM:
        degrees = _powers(seq_length // (_CONTEXT_PARALLEL_FROM // 4))
    given = fixed.get("cp_comm_type")
    for cp in _wanted(resolution, "context_parallel_size", degrees):
        kinds = (CpCommType.P2P, CpCommType.A2A) if cp > 1 else (CpCommType.P2P,)
        for kind in kinds if given is None else (given,):
            yield cp, kind
