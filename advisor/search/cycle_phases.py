"""The phases of a cycle on the GPUs of one job: what each works with, and what waits next to it.

The update is the training step of the job, with what the engine, the reference and a critic hold
meanwhile. Every other phase is the same under any recompute: a forward under torch.no_grad()
replays nothing. What the passes of a step leave of a model: its weights without those that are
gathered while passes run, gradients where a buffer holds them for good (Megatron's; zero_grad frees
them elsewhere), and the optimizer's states. Sources: verl 0.9.1 workers/engine_workers.py
(update_weights) and workers/engine/base.py, trl 1.16.0 generation/vllm_generation.py.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

from msgspec.structs import replace

from advisor.answer.phases import NO_ROOM, Phase, PhaseMemory, PhaseName
from advisor.base.dtypes import DType
from advisor.base.units import counted
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job
from advisor.job.layout import DataParallelSharding
from advisor.job.pipeline_split import Pipeline, Stages
from advisor.job.reinforcement import Algorithm, Engine, Reference
from advisor.layers.shape import RankShape
from advisor.memory.allocator import Reserved
from advisor.memory.rollout_engine import rollout_engine
from advisor.memory.static import NamedBytes, StaticMemory
from advisor.plan.recompute_plan import RecomputePlan
from advisor.search.job_memory import JobMemory, StageDetail

_NOTHING: Final = StaticMemory(weights=0, gradients=0, optimizer=0)
_FORWARD: Final = (PhaseName.LOG_PROBS, PhaseName.REFERENCE, PhaseName.VALUES)
_Models = tuple[StaticMemory, StaticMemory, StaticMemory]
"""States of the model that is trained, of the reference and of the critic."""
_Taken = tuple[Reserved, PhaseMemory, int]
"""What a rank reserves, its parts in the process of the training, and what waits on its host."""


class Cycle:
    """Phases of a job that has any, on the `stages` of its pipeline.

    plain: memory of its training step alone. none: plans of no recompute. budget: bytes that a rank
    may reserve. update: `plain` next to what waits meanwhile. A critic is a model of the same
    layers whose head is one row.
    """

    def __init__(
        self, job: Job, stages: Stages, plain: JobMemory, none: list[RecomputePlan], budget: int
    ) -> None:
        self._job, self._rl, self._budget = job, job.config.rl, budget
        self._plain, self._none, self._critic = plain, none, plain
        self._stages, self._has_critic = range(len(stages)), self._rl.algorithm is Algorithm.PPO
        if self._has_critic:
            chunks = tuple(tuple([replace(chunk, head=False) for chunk in held]) for held in stages)
            model = parts_of(job.config.framework).memory
            its = self._rl.critic_token_budget, self._rl.critic_micro_batch_size
            shape = _shape_of(job, plain.shape, *its)
            self._critic = JobMemory(plain.job, shape, chunks, Pipeline(chunks), model)
        self._states = [self._between(stage) for stage in self._stages]
        left = sum(states.total for states in self._here(PhaseName.ROLLOUT, 0))
        self.engine = rollout_engine(job, plain.reserved_with(0, left, 0, ()).total)
        self.update = self._next_to_others(plain, PhaseName.UPDATE)
        self._critic_update = self._next_to_others(self._critic, PhaseName.CRITIC_UPDATE)

    def phases(
        self, plans: list[RecomputePlan], update: Sequence[StageDetail]
    ) -> tuple[Phase, ...]:
        """All of them in order, under `plans` with which the update has these stages."""
        trained = [self._trained(PhaseName.UPDATE, self.update, plans, update)]
        if self._has_critic:
            critic, simulated = self._critic_update, update[0].reserved.unused is not None
            stages = critic.simulated(plans) if simulated else list(critic.each_stage(plans))
            trained.insert(0, self._trained(PhaseName.CRITIC_UPDATE, critic, plans, stages))
        before = [one for one in self.quiet if one.name is not PhaseName.WEIGHT_SYNC]
        return (*before, *trained, *self.quiet[len(before) :])

    @cached_property
    def quiet(self) -> tuple[Phase, ...]:
        """Those that no recompute changes, in order."""
        rl = self._rl
        names = {
            PhaseName.ROLLOUT: rl.shares_gpus,
            PhaseName.LOG_PROBS: rl.algorithm.rolls_out,
            PhaseName.REFERENCE: rl.reference is not Reference.NONE,
            PhaseName.VALUES: self._has_critic,
            PhaseName.WEIGHT_SYNC: rl.engine is not Engine.NONE,
        }
        return tuple(
            self._phase(name, [self._quiet(name, stage) for stage in self._stages])
            for name, runs in names.items()
            if runs
        )

    @cached_property
    def likely(self) -> float:
        """Probability that those fit."""
        return min((phase.fit_probability for phase in self.quiet), default=1.0)

    @property
    def has_room(self) -> bool:
        """Whether the KV cache holds one sequence: vLLM refuses to start otherwise."""
        longest = self._rl.longest or self._job.config.seq_length
        return self.engine is None or self.engine.tokens >= longest

    def _between(self, stage: int) -> _Models:
        """What the passes of a step leave of each model on a rank of a stage."""
        found = []
        for memory in (self._plain, self._critic):
            fixed = memory.fixed[stage]
            _, gathered = memory.forward_only(self._none, stage, memory.shape)
            kept = fixed.static.gradients if fixed.working_set is None else 0
            weights = fixed.static.weights - gathered
            found.append(replace(fixed.static, weights=weights, gradients=kept))
        policy, critic = found
        second = self._rl.reference in (Reference.GPU, Reference.HOST)
        reference = replace(_NOTHING, weights=policy.weights) if second else _NOTHING
        return policy, reference, critic if self._has_critic else _NOTHING

    def _here(self, name: PhaseName, stage: int) -> _Models:
        """What of the models is on the GPU in a phase. The reference of preferences runs within the
        step."""
        rl, (policy, reference, critic) = self._rl, self._states[stage]
        if not rl.algorithm.rolls_out:
            policy = replace(policy, gradients=self._plain.fixed[stage].static.gradients)
        elif name is not PhaseName.UPDATE:
            uses = [PhaseName.LOG_PROBS, PhaseName.WEIGHT_SYNC]
            uses += [PhaseName.REFERENCE] * (rl.reference is Reference.ADAPTER_OFF)
            policy = StaticMemory(
                weights=policy.weights if name in uses or not rl.offload_params else 0,
                gradients=0 if rl.offload_gradients else policy.gradients,
                optimizer=0 if rl.offload_optimizer else policy.optimizer,
            )
        if rl.reference is Reference.HOST and name is not PhaseName.REFERENCE:
            reference = _NOTHING
        if not rl.critic_on_gpu and name is not PhaseName.CRITIC_UPDATE:
            used = critic.weights * (name is PhaseName.VALUES)
            critic = replace(_NOTHING, weights=used)
        return policy, reference, critic

    def _on_host(self, name: PhaseName, stage: int) -> int:
        """Host memory of a rank: of each model what is not on the GPU, except gradients, which have
        served; and the weights of an engine that sleeps lightly."""
        pairs = zip(self._states[stage], self._here(name, stage), strict=True)
        found = sum(of.weights - on.weights + of.optimizer - on.optimizer for of, on in pairs)
        asleep = self._rl.sleep_level == 1 and not self._engine_parts(name).get("engine_weights")
        return found + (self.engine.weights if self.engine is not None and asleep else 0)

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

    def _others(self, name: PhaseName) -> tuple[NamedBytes, ...]:
        return _terms([("rollout engine", sum(self._engine_parts(name).values()))])

    def _next_to_others(self, memory: JobMemory, name: PhaseName) -> JobMemory:
        """A training step next to the other models and the engine."""
        trained = 0 if name is PhaseName.UPDATE else 2
        waiting = []
        for stage in self._stages:
            here = [states.total for states in self._here(name, stage)]
            here[trained] = 0
            waiting.append(_terms(zip(("policy", "reference model", "critic"), here, strict=True)))
        return memory.next_to(waiting, self._others(name))

    def _quiet(self, name: PhaseName, stage: int) -> _Taken:
        """A rank in a phase that trains nothing. Frameworks empty torch's cache before an engine
        wakes: what runs no pass leaves nothing unused."""
        policy, reference, critic = self._here(name, stage)
        memory = self._critic if name is PhaseName.VALUES else self._plain
        working = gathered = bucket = 0
        if name in _FORWARD:
            rl, shape = self._rl, memory.shape
            if name is not PhaseName.VALUES or memory.shape == self._plain.shape:
                batch = rl.log_prob_token_budget, rl.log_prob_micro_batch_size
                shape = _shape_of(self._job, memory.shape, *batch)
            working, gathered = memory.forward_only(self._none, stage, shape)
        elif name is PhaseName.WEIGHT_SYNC:
            bucket = self._bucket(stage)
        policy = replace(policy, weights=policy.weights + gathered)
        parts = replace(_parts((policy, reference, critic), working), bucket=bucket)
        unused = None if name in _FORWARD else 0
        reserved = self._plain.reserved_with(stage, parts.total, unused, self._others(name))
        return reserved, parts, self._on_host(name, stage)

    def _trained(
        self,
        name: PhaseName,
        memory: JobMemory,
        plans: list[RecomputePlan],
        stages: Sequence[StageDetail],
    ) -> Phase:
        """A training step: weights that passes gather are among the states of what it trains."""
        found = []
        for stage, detail in enumerate(stages):
            policy, reference, critic = self._here(name, stage)
            own, summary = detail.fixed.static, detail.summary(stage, 1).memory_bytes
            policy, critic = (own, critic) if name is PhaseName.UPDATE else (policy, own)
            working = summary.activations + summary.transient
            host = memory.host_bytes(plans, stage) + self._on_host(name, stage)
            found.append((detail.reserved, _parts((policy, reference, critic), working), host))
        return self._phase(name, found)

    def _phase(self, name: PhaseName, found: list[_Taken]) -> Phase:
        """Of the ranks of all stages the one that needs most."""
        reserved, parts, host = max(found, key=lambda one: one[0].total)
        likely, note = min(one.fit_probability(self._budget) for one, _, _ in found), ""
        if name is PhaseName.ROLLOUT and self.engine is not None:
            tokens, longest = self.engine.tokens, self._rl.longest or self._job.config.seq_length
            sequences = counted(tokens // longest, "sequence")
            note = f"KV cache of {tokens:,} tokens: {sequences} of {longest:,}"
            if not self.has_room:
                note = f"{NO_ROOM} of {longest:,} tokens"
                likely = 0.0
        elif name is PhaseName.LOG_PROBS and self._rl.engine is Engine.NONE:
            note = "memory of generating is not predicted without rl.engine"
        parts = replace(parts, **self._engine_parts(name))
        return Phase(
            name=name,
            memory_bytes=replace(parts, overhead=reserved.total - parts.total),
            peak_reserved_bytes=reserved.total,
            fit_probability=likely,
            host_bytes=host,
            note=note,
        )

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


def _terms(terms: Iterable[tuple[str, int]]) -> tuple[NamedBytes, ...]:
    return tuple(NamedBytes(name, size, "search/cycle_phases.py") for name, size in terms if size)


def _parts(models: _Models, working: int) -> PhaseMemory:
    policy, reference, critic = models
    return PhaseMemory(
        weights=policy.weights,
        gradients=policy.gradients,
        optimizer=policy.optimizer,
        reference=reference.total,
        critic=critic.total,
        activations=working,
    )


def _shape_of(job: Job, shape: RankShape, budget: int | None, batch: int | None) -> RankShape:
    """The shape of a microbatch of so many tokens or samples; as it is where neither is given."""
    if budget is not None:
        cp = job.layout.context_parallel_size
        whole = max(budget * cp, job.config.seq_length)
        cut = job.layout.sequence_shards * 2 * cp
        return replace(shape, seq_length=-(-whole // cut) * cut, micro_batch_size=1)
    if batch is not None:
        return replace(shape, micro_batch_size=batch * job.config.rl.sequences)
    return shape
