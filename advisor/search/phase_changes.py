"""Changes of a cycle's options by which its phases may need less: sleep, the engine's share, what
waits on the host, and the microbatch of the phases that only run forward."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from advisor.base.fields import join_key_values
from advisor.base.sharing import first_equal
from advisor.frameworks.part_types import Effect, JobChange
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job
from advisor.job.microbatches import microbatches
from advisor.job.pipeline_split import pipeline_of, pipeline_stages
from advisor.job.reinforcement import Algorithm, Reference
from advisor.search.cycle_phases import Cycle
from advisor.search.job_memory import JobMemory
from advisor.search.rank_shape import rank_shape


def phase_changes(job: Job) -> Iterator[JobChange]:
    """Those that are not made yet, in the order in which they cost: nothing, room for sequences,
    copies between phases, smaller kernels."""
    rl, gives_back = job.config.rl, "gives back its weights and its KV cache during the update"
    if rl.shares_gpus and not rl.sleep_level:
        yield _change(job, f"the rollout engine {gives_back}", sleep_level=2)
    if rl.shares_gpus and (share := _other_share(job)) != rl.gpu_memory_utilization:
        why = "the most with which the phases fit in which the engine is awake"
        if share > rl.gpu_memory_utilization:
            why = "the least with which the KV cache holds a sequence"
        yield _change(job, why, gpu_memory_utilization=share)
    if rl.shares_gpus and (ranks := _more_ranks(job)):
        why = "cuts the engine's weights, and leaves more room for its cache"
        yield _change(job, why, engine_tensor_parallel_size=ranks)
    if rl.algorithm.rolls_out and not rl.offload_optimizer:
        yield _change(job, "optimizer states wait on the host", offload_optimizer=True)
    if rl.algorithm.rolls_out and not (rl.offload_params and rl.offload_optimizer):
        why = "weights, gradients and optimizer states leave the GPU between phases"
        states = ("params", "gradients", "optimizer")
        yield _change(job, why, **{f"offload_{name}": True for name in states})
    if rl.reference is Reference.GPU:
        yield _change(job, "it is needed in one phase alone", reference=Reference.HOST)
    if rl.algorithm is Algorithm.PPO and rl.critic_on_gpu:
        yield _change(job, "it is needed in two phases alone", critic_on_gpu=False)
    why = "changes the phases that only run forward"
    if rl.log_prob_token_budget is not None and rl.log_prob_token_budget > job.config.seq_length:
        half = max(rl.log_prob_token_budget // 2, job.config.seq_length)
        yield _change(job, why, log_prob_token_budget=half)
    size = rl.log_prob_micro_batch_size or job.config.micro_batch_size
    if rl.log_prob_token_budget is None and size > 1:
        yield _change(job, why, log_prob_micro_batch_size=size // 2)


def _change(job: Job, why: str, **values: Any) -> JobChange:
    other = _with(job, **values)
    words = join_key_values({f"rl.{name}": value for name, value in values.items()})
    return JobChange(words, why, lambda: other, Effect.MEMORY)


def _with(job: Job, **values: Any) -> Job:
    return replace(job, config=replace(job.config, rl=replace(job.config.rl, **values)))


def _more_ranks(job: Job) -> int:
    """The fewest GPUs of one engine, more than now, with which its KV cache holds a sequence; 0
    where no number does."""
    now, heads = job.config.rl.engine_tensor_parallel_size, job.model.num_attention_heads
    tried = (ranks for ranks in (2 * now, 4 * now, 8 * now) if ranks <= job.gpus_of_a_server)
    legal = (ranks for ranks in tried if not (job.num_gpus % ranks or heads % ranks))

    def has_room(ranks: int) -> bool:
        return _cycle(_with(job, engine_tensor_parallel_size=ranks)).has_room

    return next(filter(has_room, legal), 0)


def _other_share(job: Job) -> float:
    """The part of the GPU, in hundredths, with which the phases fit that no recompute changes: the
    largest below the job's own, or the least with which the KV cache holds a sequence; its own
    where it fits, or none does."""
    own, certainty = job.config.rl.gpu_memory_utilization, job.config.certainty
    shares = [hundredth / 100 for hundredth in range(1, 100)]

    def cycle(share: float) -> Cycle:
        return _cycle(_with(job, gpu_memory_utilization=share))

    if cycle(own).likely >= certainty:
        return own
    least = bisect_left(shares, True, key=lambda share: cycle(share).has_room)
    most = bisect_left(shares, True, least, key=lambda share: cycle(share).likely < certainty) - 1
    return own if least > most else max(shares[least], min(own, shares[most]))


def _cycle(job: Job) -> Cycle:
    parts, stages = parts_of(job.config.framework), pipeline_stages(job.model, job.layout)
    worst = microbatches(job).worst
    shape = first_equal(parts.memory.shape(worst, rank_shape(worst)))
    pipeline = pipeline_of(job.model, job.layout)
    plain = JobMemory(worst, shape, stages, pipeline, parts.memory)
    none = [parts.memory.plan(parts.settings.none, shape, one, worst) for one in pipeline.groups]
    budget = job.config.memory_budget_bytes or job.gpu.memory_bytes
    return Cycle(job, stages, plain, none, budget)
