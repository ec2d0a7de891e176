"""Every job and setting that flags can say of a small request, evaluated one by one."""

from collections.abc import Iterator
from itertools import product
from math import isclose

from advisor.answer.evaluation import CLEAR, Evaluation
from advisor.base.errors import UserError, divisors
from advisor.frameworks.part_types import SEARCHED
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.models.options import CpCommType
from advisor.plan.split import split_evenly
from advisor.request.resolve import Resolution
from advisor.search.changed_options import variants
from advisor.search.evaluate import Evaluator
from advisor.search.ranking import order, tier


def best_of_all(resolution: Resolution, calibration: Calibration) -> Evaluation:
    """First of the ranking of everything, its allocator simulated where that may decide."""
    found: list[Evaluation] = []
    for job in all_jobs(resolution):
        evaluator = Evaluator(job, calibration)
        stack = parts_of(job.config.framework)
        found += (evaluator.evaluate(setting) for setting in stack.settings.candidates(job))
    found.sort(key=lambda one: one.step_time_seconds)
    for one in found:
        if one.fit_probability > 1 - CLEAR and tier(one.simulated) == 0:
            return one.simulated
    return min((one.simulated if tier(one) < 2 else one for one in found), key=order)


def same_row(found: Evaluation, best: Evaluation) -> bool:
    """Whether two rows take the same time and fit; or neither fits, of which nothing is claimed."""
    if not (found.fits and best.fits):
        return found.fits == best.fits
    return isclose(found.step_time_seconds, best.step_time_seconds, rel_tol=1e-12)


def all_jobs(resolution: Resolution) -> Iterator[Job]:
    """Legal jobs of every layout, micro batch and choice of options, each once."""
    stack, seen = parts_of(resolution.config.framework), set()
    for job in _with_options(_plain_jobs(resolution), resolution):
        if job not in seen and not stack.settings.check(stack.settings.none, job):
            seen.add(job)
            yield job


def _with_options(jobs: Iterator[Job], resolution: Resolution) -> Iterator[Job]:
    """Each with every set of the changes that a search may make."""
    for job in jobs:
        found = {job}
        while True:
            more = {other for one in found for _, other in variants(one, SEARCHED, resolution)}
            if more <= found:
                break
            found |= more
        yield from found


def _plain_jobs(resolution: Resolution) -> Iterator[Job]:
    degrees = parts_of(resolution.config.framework).jobs.degrees
    ranks = divisors(resolution.num_gpus)
    experts = resolution.model.num_moe_experts if degrees.experts else None
    base = resolution.layout or ParallelLayout()
    for tp, cp, pp, ep, sp in product(
        ranks if degrees.tensor else (1,),
        ranks if degrees.context else (1,),
        ranks if degrees.pipeline else (1,),
        divisors(experts) if experts else (1,),
        (True, False),
    ):
        if resolution.num_gpus % (tp * cp * pp):
            continue
        for vpp, etp, kind, sharding in product(
            divisors(resolution.model.num_layers),
            divisors(tp) if experts else (None,),
            degrees.context if cp > 1 else (base.cp_comm_type,),
            degrees.shardings,
        ):
            for sizes in _levels(cp, kind):
                try:
                    layout = ParallelLayout(
                        tensor_model_parallel_size=tp,
                        sequence_parallel=sp,
                        context_parallel_size=cp,
                        cp_comm_type=kind,
                        hierarchical_context_parallel_sizes=sizes,
                        pipeline_model_parallel_size=pp,
                        virtual_pipeline_model_parallel_size=vpp,
                        expert_model_parallel_size=ep,
                        expert_tensor_parallel_size=etp,
                        data_parallel_size=resolution.num_gpus // (tp * cp * pp),
                        data_parallel_sharding=sharding,
                        use_distributed_optimizer=base.use_distributed_optimizer,
                        overlap_grad_reduce=base.overlap_grad_reduce,
                        overlap_param_gather=base.overlap_param_gather,
                        tp_comm_overlap=base.tp_comm_overlap,
                    )
                except UserError:
                    continue
                yield from _micro_batches(resolution, layout)


def _levels(cp: int, kind: CpCommType) -> list[tuple[int, int] | None]:
    if kind is not CpCommType.A2A_P2P:
        return [None]
    return [(inner, cp // inner) for inner in divisors(cp)[1:-1]]


def _micro_batches(resolution: Resolution, layout: ParallelLayout) -> Iterator[Job]:
    for size in divisors(resolution.config.global_batch_size):
        try:
            yield resolution.job(split_evenly(resolution.model, layout), size)
        except UserError:
            continue
