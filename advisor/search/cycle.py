"""The phases of a cycle on the GPUs of one job: what each works with, and what waits next to it.

The update is the training step of the job, with what the engine, the reference and a critic hold
meanwhile. Every other phase is the same under any recompute: a forward under torch.no_grad()
replays nothing. What the passes of a step leave of a model: its weights without those that are
gathered while passes run, gradients where a buffer holds them for good (Megatron's; zero_grad frees
them elsewhere), and the optimizer's states. Sources: verl 0.9.1 workers/engine_workers.py
(update_weights) and workers/engine/base.py, trl 1.16.0 generation/vllm_generation.py.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from msgspec.structs import replace

from advisor.answer.phases import Phase, PhaseMemory, PhaseName
from advisor.base.dtypes import DType
from advisor.base.units import counted
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job
from advisor.job.layout import DataParallelSharding
from advisor.job.pipeline_split import Pipeline, Stages
from advisor.job.reinforcement import Algorithm, Engine, Reference
from advisor.layers.shape import RankShape
from advisor.memory.allocator import Reserved
from advisor.memory.resident import NamedBytes
from advisor.memory.rollout_engine import rollout_engine
from advisor.memory.static import StaticMemory
from advisor.plan.recompute_plan import RecomputePlan
from advisor.search.job_memory import JobMemory, StageDetail

_NOTHING: Final = StaticMemory(weights=0, gradients=0, optimizer=0)
_REFERENCE, _CRITIC = "reference model", "critic"


def cycle_of(
    job: Job, stages: Stages, plain: JobMemory, none: list[RecomputePlan], budget: int
) -> "Cycle":
    """The phases of a job that has any. See Cycle."""
    critic = None
    if job.config.rl.algorithm is Algorithm.PPO:  # its head is one row, and no logits
        chunks = tuple(tuple([replace(chunk, head=False) for chunk in held]) for held in stages)
        model = parts_of(job.config.framework).memory
        critic = JobMemory(plain.job, plain.shape, chunks, Pipeline(chunks), model)
    return Cycle(job, plain, critic, none, budget)


class Cycle:
    """Phases of a job that has any.

    plain: memory of the training step alone; critic: that of the critic's, a model of the same
    layers with a head of one row, None where there is none; none: plans of no recompute; budget:
    bytes that a rank may reserve. update: `plain` next to what waits meanwhile.
    """

    def __init__(
        self,
        job: Job,
        plain: JobMemory,
        critic: JobMemory | None,
        none: list[RecomputePlan],
        budget: int,
    ) -> None:
        self._job, self._rl, self._budget = job, job.config.rl, budget
        self._plain, self._critic, self._none = plain, critic, none
        self._stages = range(len(plain.fixed))
        self._policy = [_between(plain, none, stage) for stage in self._stages]
        self._values = [_NOTHING for _ in self._stages]
        if critic is not None:
            self._values = [_between(critic, none, stage) for stage in self._stages]
        left = self._here(0, used=False).total
        self.engine = rollout_engine(job, plain.reserved_with(0, left, 0, ()).total)
        others = self._engine_terms(PhaseName.UPDATE)
        self.update = plain.beside([self._waiting(k) for k in self._stages], others)
        self._critic_update = critic and critic.beside(
            [self._waiting_for_critic(k) for k in self._stages], others
        )

    def phases(
        self, plans: list[RecomputePlan], update: Sequence[StageDetail]
    ) -> tuple[Phase, ...]:
        """All of them in order, under `plans` with which the update has these stages."""
        trained = [self._trained(PhaseName.UPDATE, self.update, plans, update)]
        if (critic := self._critic_update) is not None:
            simulated = update[0].reserved.unused is not None
            stages = critic.simulated(plans) if simulated else list(critic.each_stage(plans))
            trained.insert(0, self._trained(PhaseName.CRITIC_UPDATE, critic, plans, stages))
        before = [one for one in self.quiet if one.name is not PhaseName.WEIGHT_SYNC]
        return (*before, *trained, *(one for one in self.quiet if one not in before))

    @cached_property
    def quiet(self) -> tuple[Phase, ...]:
        """Those that no recompute changes, in order."""
        rl = self._rl
        names = {
            PhaseName.ROLLOUT: rl.shares_gpus,
            PhaseName.LOG_PROBS: rl.algorithm.rolls_out,
            PhaseName.REFERENCE: rl.reference is not Reference.NONE,
            PhaseName.VALUES: self._critic is not None,
            PhaseName.WEIGHT_SYNC: rl.engine is not Engine.NONE,
        }
        return tuple(self._quiet(name) for name, runs in names.items() if runs)

    @cached_property
    def likely(self) -> float:
        """Probability that those fit."""
        return min((phase.fit_probability for phase in self.quiet), default=1.0)

    def _quiet(self, name: PhaseName) -> Phase:
        """Of all stages the one that needs most."""
        found = [self._on(name, stage) for stage in self._stages]
        reserved, memory, host = max(found, key=lambda one: one[0].total)
        likely = min(one.fit_probability(self._budget) for one, _, _ in found)
        note = ""
        if name is PhaseName.ROLLOUT and self.engine is not None:
            tokens, longest = self.engine.tokens, self._longest
            sequences = counted(tokens // longest, "sequence")
            note = f"KV cache of {tokens:,} tokens: {sequences} of {longest:,}"
            if not self.has_room:
                note = f"the KV cache has no room for one sequence of {longest:,} tokens"
                likely = 0.0
        return Phase(
            name=name,
            memory_bytes=memory,
            peak_reserved_bytes=reserved.total,
            fit_probability=likely,
            host_bytes=host,
            note=note,
        )

    @property
    def has_room(self) -> bool:
        """Whether the KV cache holds one sequence: vLLM refuses to start otherwise."""
        return self.engine is None or self.engine.tokens >= self._longest

    @property
    def _longest(self) -> int:
        """Tokens of the longest sequence that an engine must hold."""
        rl, whole = self._rl, self._job.config.seq_length
        if rl.response_length is None:
            return whole
        return (rl.prompt_length or 0) + rl.response_length

    def _on(self, name: PhaseName, stage: int) -> tuple[Reserved, PhaseMemory, int]:
        """What a rank of one stage reserves, its parts, and what waits on its host."""
        passes = name in (PhaseName.LOG_PROBS, PhaseName.REFERENCE, PhaseName.VALUES)
        adapter = self._rl.reference is Reference.ADAPTER_OFF
        used = name in (PhaseName.LOG_PROBS, PhaseName.WEIGHT_SYNC) or (
            name is PhaseName.REFERENCE and adapter
        )
        policy = self._here(stage, used=used)
        reference = self._reference(stage, here=name is PhaseName.REFERENCE)
        critic = self._values[stage]
        if not self._rl.critic_on_gpu:
            critic = replace(critic, optimizer=0, gradients=0)
            critic = critic if name is PhaseName.VALUES else _NOTHING
        of = self._critic if name is PhaseName.VALUES and self._critic else self._plain
        activations, gathered = 0, 0
        if passes:
            shape = _log_probs(self._job, of.shape)
            activations, gathered = of.forward_only(self._none, stage, shape)
        bucket = self._bucket(stage) if name is PhaseName.WEIGHT_SYNC else 0
        allocated = policy.total + reference + critic.total + activations + gathered + bucket
        others = self._engine_terms(name)
        reserved = self._plain.reserved_with(stage, allocated, None if passes else 0, others)
        parts = PhaseMemory(
            weights=policy.weights + gathered,
            gradients=policy.gradients,
            optimizer=policy.optimizer,
            reference=reference,
            critic=critic.total,
            activations=activations,
            bucket=bucket,
            **self._engine_parts(name),
        )
        host = self._waits_on_host(stage, name, policy, critic, reference)
        return reserved, replace(parts, overhead=reserved.total - parts.total), host

    def _here(self, stage: int, *, used: bool) -> StaticMemory:
        """What of the trained model is on the GPU in a phase that trains nothing, which may have
        its weights `used`. The reference of preferences runs within the step."""
        rl, states = self._rl, self._policy[stage]
        if not rl.algorithm.rolls_out:
            return replace(states, gradients=self._plain.fixed[stage].static.gradients)
        return StaticMemory(
            weights=states.weights if used or not rl.offload_params else 0,
            gradients=0 if rl.offload_gradients else states.gradients,
            optimizer=0 if rl.offload_optimizer else states.optimizer,
        )

    def _reference(self, stage: int, *, here: bool) -> int:
        """Bytes of the reference's weights on the GPU, of the type of the trained model's."""
        own = {Reference.GPU: True, Reference.HOST: here}
        return self._policy[stage].weights * own.get(self._rl.reference, False)

    def _bucket(self, stage: int) -> int:
        """The bucket of a weight sync, and the tensor that is gathered for it from all ranks; one
        tensor after another where no bucket is given."""
        largest, layout = self._plain.largest_weight(stage), self._job.layout
        tensor = largest * DType.BF16.itemsize
        gathered = tensor * (layout.tensor_model_parallel_size > 1)
        whole = layout.data_parallel_sharding is not DataParallelSharding.FULL
        if layout.sharding_ranks > 1 and not whole:
            gathered = largest * DType.FP32.itemsize
        return gathered + (self._rl.weight_sync_bucket_bytes or tensor)

    def _engine_parts(self, name: PhaseName) -> dict[str, int]:
        """What the engine holds of the GPU: all where it is awake, else its weights while they are
        sent, and what it never gives back."""
        engine, awake = self.engine, name is PhaseName.ROLLOUT or not self._rl.sleep_level
        if engine is None:
            return {}
        return {
            "engine_weights": engine.weights * (awake or name is PhaseName.WEIGHT_SYNC),
            "kv_cache": max(0, engine.kv_cache) * awake,
            "engine_other": engine.stays + engine.working * awake,
        }

    def _engine_terms(self, name: PhaseName) -> tuple[NamedBytes, ...]:
        held = sum(self._engine_parts(name).values())
        return (NamedBytes("rollout engine", held, "memory/rollout_engine.py"),) if held else ()

    def _waiting(self, stage: int) -> tuple[NamedBytes, ...]:
        """What other models hold in the process of the update."""
        critic = self._values[stage].total * self._rl.critic_on_gpu
        return self._terms((_REFERENCE, self._reference(stage, here=False)), (_CRITIC, critic))

    def _waiting_for_critic(self, stage: int) -> tuple[NamedBytes, ...]:
        """The same, while the critic is trained."""
        here = self._here(stage, used=False).total
        return self._terms((_REFERENCE, self._reference(stage, here=False)), ("policy", here))

    @staticmethod
    def _terms(*terms: tuple[str, int]) -> tuple[NamedBytes, ...]:
        return tuple(NamedBytes(name, size, "search/cycle.py") for name, size in terms if size)

    def _trained(
        self,
        name: PhaseName,
        memory: JobMemory,
        plans: list[RecomputePlan],
        stages: Sequence[StageDetail],
    ) -> Phase:
        """A training step, on the stage that needs most."""
        worst = max(self._stages, key=lambda stage: stages[stage].reserved.total)
        detail, rl = stages[worst], self._rl
        terms = {term.name: term.num_bytes for term in detail.fixed.buffers}
        static = own = detail.fixed.static
        of_critic = name is PhaseName.CRITIC_UPDATE
        if of_critic:
            static = self._here(worst, used=False)
        summary = detail.summary(worst, 1).memory_bytes
        parts = PhaseMemory(
            weights=static.weights,
            gradients=static.gradients,
            optimizer=static.optimizer,
            reference=terms.get(_REFERENCE, 0),
            critic=own.total if of_critic else terms.get(_CRITIC, 0),
            activations=summary.activations + summary.transient,
            **self._engine_parts(name),
        )
        total = detail.reserved.total
        critic = own if of_critic or rl.critic_on_gpu else _NOTHING
        held = static if of_critic else own
        return Phase(
            name=name,
            memory_bytes=replace(parts, overhead=total - parts.total),
            peak_reserved_bytes=total,
            fit_probability=min(one.reserved.fit_probability(self._budget) for one in stages),
            host_bytes=memory.host_bytes(plans, worst)
            + self._waits_on_host(worst, name, held, critic, parts.reference),
        )

    def _waits_on_host(
        self,
        stage: int,
        name: PhaseName,
        policy: StaticMemory,
        critic: StaticMemory,
        used: int,
    ) -> int:
        """Host memory of one rank: of each model what is not on the GPU, except gradients, which
        have served; the reference where none of it is `used`; and the weights of an engine that
        sleeps lightly."""
        found = _missing(self._policy[stage], policy) + _missing(self._values[stage], critic)
        if self._rl.reference is Reference.HOST and not used:
            found += self._policy[stage].weights
        asleep = name not in (PhaseName.ROLLOUT, PhaseName.WEIGHT_SYNC)
        if self.engine is not None and asleep and self._rl.sleep_level == 1:
            found += self.engine.weights
        return found


def _missing(states: StaticMemory, here: StaticMemory) -> int:
    weights = max(0, states.weights - here.weights)
    return weights + max(0, states.optimizer - here.optimizer)


def _between(memory: JobMemory, none: list[RecomputePlan], stage: int) -> StaticMemory:
    """What the passes of a step leave of a model on one rank of a stage."""
    fixed = memory.fixed[stage]
    _, gathered = memory.forward_only(none, stage, memory.shape)
    gradients = fixed.static.gradients if fixed.working_set is None else 0
    return replace(fixed.static, weights=fixed.static.weights - gathered, gradients=gradients)


def _log_probs(job: Job, shape: RankShape) -> RankShape:
    """The shape of a microbatch of the phases that only run forward."""
    rl = job.config.rl
    if rl.log_prob_token_budget is not None:
        cp = job.layout.context_parallel_size
        whole = max(rl.log_prob_token_budget * cp, job.config.seq_length)
        cut = job.layout.sequence_shards * 2 * cp
        return replace(shape, seq_length=-(-whole // cut) * cut, micro_batch_size=1)
    if rl.log_prob_micro_batch_size is not None:
        return replace(shape, micro_batch_size=rl.log_prob_micro_batch_size * rl.sequences)
    return shape
