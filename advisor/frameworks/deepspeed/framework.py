"""DeepSpeed: ZeRO stages 0 to 3 and its own checkpoint function.

Source: DeepSpeed 0.19.8 runtime/activation_checkpointing/checkpointing.py, runtime/pipe/module.py.
"""

import json
import re
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from advisor.frameworks.deepspeed import checks, rules, static
from advisor.frameworks.deepspeed.config_file import calls_deepspeed, deepspeed_config
from advisor.frameworks.deepspeed.options import OPTIONS, SEQUENCE
from advisor.frameworks.framework_parts import FrameworkParts, Spelling
from advisor.frameworks.huggingface.options import parallelism_variables
from advisor.frameworks.huggingface.training_arguments import (
    attention_note,
    kernel_arguments,
    training_arguments,
    words,
)
from advisor.frameworks.names import Framework
from advisor.frameworks.part_types import Effect, FixedMemory, JobChange
from advisor.frameworks.registry import parts_of
from advisor.frameworks.torch import memory_model, plan, stack, supported_jobs
from advisor.frameworks.torch.setting import Granularity, Modifier, TorchSetting, as_torch
from advisor.frameworks.torch.supported_jobs import KERNEL_OPTIONS
from advisor.job.job import AttnImplementation, Job
from advisor.job.layout import DataParallelSharding
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.shape import RankShape
from advisor.models.options import CpCommType
from advisor.plan.recompute_plan import Checkpoint, InputStorage, Setting

_PIPELINE = "uniform needs a PipelineModule: DeepSpeed's pipeline engine sets the checkpoints"
_TRAINER = (
    "transformers' layers call torch's checkpoint: DeepSpeed's section activation_checkpointing "
    "has no effect on these layers"
)
_ALONE = (
    "partition_activations saves nothing here and copies every input: it splits inputs over the "
    "model-parallel group, which has one rank"
)
_ULYSSES = (
    "sequence_parallel_size by itself does not exchange heads: wrap the model's attention in "
    "DistributedAttention (deepspeed.sequence.layer) and give each rank its part of the sequence"
)
_TIMING = (
    "synchronize_checkpoint_boundary and profile synchronize at every checkpoint: steps are slower "
    "than predicted, and no memory is saved"
)
_COMPILED = (
    "DeepSpeed's file has no key that switches torch.compile on: call engine.compile() after "
    "deepspeed.initialize"
)
_COUNTED: Final = re.compile("train_|gradient_acc")
_DEVICE_ENGINE: Final = "0.19"
"""cpu_checkpointing copies on a stream of its own from here on (0.19.6); before, and with
partitioned activations, on that of the kernels, from memory that is not pinned."""
FACTS: Final = supported_jobs.StackFacts(
    framework=Framework.DEEPSPEED,
    own_options=("trainer", "optimizer_cpu_offload", "param_cpu_offload", *KERNEL_OPTIONS),
    versions=("0.17", "0.18", "0.19"),
    label="DeepSpeed",
    loops=True,
    key_options=OPTIONS,
    granularities=(Granularity.NONE, Granularity.FULL, Granularity.UNIFORM),
    shardings=(  # the first is the one that a job has by default
        DataParallelSharding.FULL,
        DataParallelSharding.GRADIENTS,
        DataParallelSharding.OPTIMIZER,
        DataParallelSharding.NONE,
    ),
    context_kinds=(CpCommType.A2A,),
    options=tuple(option for option in Modifier if option is not Modifier.OFFLOAD),
    source="DeepSpeed runtime/activation_checkpointing/checkpointing.py",
)


class ZeroJobs(supported_jobs.TorchJobs):
    """The host may hold optimizer and parameters."""

    def job_changes(self, job: Job) -> Iterator[JobChange]:
        """Liger's kernels; optimizer and, in stage 3, parameters on the host; or both back."""
        yield from super().job_changes(job)
        config, sharding = job.config, job.layout.data_parallel_sharding
        if config.optimizer_cpu_offload:
            near = replace(config, optimizer_cpu_offload=False, param_cpu_offload=False)
            yield JobChange(
                "job.optimizer_cpu_offload=false job.param_cpu_offload=false",
                "optimizer states stay on the GPU, and its step runs there",
                lambda: replace(job, config=near),
                Effect.SPEED,
            )
        if sharding is not DataParallelSharding.NONE and not config.optimizer_cpu_offload:
            yield JobChange(
                "job.optimizer_cpu_offload=true",
                "moves optimizer states and the optimizer step to the host",
                lambda: replace(job, config=replace(config, optimizer_cpu_offload=True)),
                Effect.MEMORY,
            )
        if sharding is DataParallelSharding.FULL and not config.param_cpu_offload:
            away = replace(config, optimizer_cpu_offload=True, param_cpu_offload=True)
            yield JobChange(
                "job.optimizer_cpu_offload=true job.param_cpu_offload=true",
                "moves optimizer states, the optimizer step and the parameters to the host",
                lambda: replace(job, config=away),
                Effect.MEMORY,
            )


class ZeroMemory(memory_model.TorchMemory):
    """The checkpoint function is reentrant; the pipeline engine's may be either."""

    def semantics(self, job: Job) -> plan.Semantics:
        """Reentrant by default; its non-reentrant function does not stop early. Of the inputs that
        go to the host the newest waits on the device, and the one before it until its copy is
        through (offload_activations.py keep_last_count, max_fwd_stash_count)."""
        if not calls_deepspeed(job):
            return plan.Semantics()
        asynchronous = job.config.framework_version == _DEVICE_ENGINE
        kept = 2 if asynchronous else 0
        return plan.Semantics(
            use_reentrant=True,
            hooked=Checkpoint.NON_REENTRANT,
            newest_stay=kept,
            offload=InputStorage(offloaded=True, overlapped=asynchronous, more=kept),
        )

    def compiles_blocks(self, job: Job) -> bool:
        """Not in stage 3, whose hooks gather each module's weights: they break the graph."""
        whole = job.layout.data_parallel_sharding is not DataParallelSharding.FULL
        return super().compiles_blocks(job) and whole

    def fixed_memory(
        self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]
    ) -> FixedMemory:
        """See static."""
        return static.zero_memory(job, shape, chunks)


class ZeroSettings(stack.TorchSettings):
    """Checkpoints of DeepSpeed's function, or of its pipeline engine."""

    own_rules = rules.RULES

    def notes(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """Who turns the checkpoints on, what an option does not do, and what the host must hold."""
        return tuple(self._notes(as_torch(setting), job))

    def _notes(self, setting: TorchSetting, job: Job) -> Iterator[str]:
        if setting.granularity is not Granularity.NONE:
            called = _PIPELINE if setting.granularity is Granularity.UNIFORM else checks.CALLS
            yield called if calls_deepspeed(job) else _TRAINER
        if calls_deepspeed(job) and job.config.torch_compile:
            yield _COMPILED
        elif job.config.attn_implementation is not AttnImplementation.SDPA and not _spells(job):
            yield attention_note(job.config.attn_implementation)
        timers = {Modifier.SYNCHRONIZE_CHECKPOINT_BOUNDARY, Modifier.PROFILE}
        notes = {
            _ALONE: Modifier.PARTITION_ACTIVATIONS in setting.options,
            _TIMING: not timers.isdisjoint(setting.options),
            _ULYSSES: job.layout.context_parallel_size > 1 and calls_deepspeed(job),
        }
        yield from (note for note, holds in notes.items() if holds)


def _spells(job: Job) -> Spelling | None:
    """The words of the dialect that calls DeepSpeed, where one does."""
    trainer = job.config.trainer
    return parts_of(trainer).spelling if trainer and not calls_deepspeed(job) else None


class _Spelling(stack.TorchSpelling):
    """A JSON file, which is everything; transformers' Trainer takes it as an option."""

    def takes_flags(self, job: Job) -> bool:
        """Trainer's command line does."""
        return not calls_deepspeed(job)

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """The whole configuration file: it has no command line. Trainer takes it as an option."""
        own = as_torch(setting)
        written = deepspeed_config(own, job)
        if calls_deepspeed(job):
            return written
        if trainer := _spells(job):
            held = json.loads(written)
            its = {key: "auto" if _COUNTED.match(key) else held[key] for key in held}
            its.pop(SEQUENCE, None)  # Accelerate's, as the numbers of samples are
            return f"{words([('deepspeed', its)])} {trainer.setting_flags(setting, job)}"
        explicit = replace(own, use_reentrant=bool(own.use_reentrant))
        return words([("deepspeed", written), *training_arguments(explicit)])

    def layout_flags(self, job: Job) -> str:
        """What the file cannot say: compilation, which is a call, and transformers' kernels."""
        if calls_deepspeed(job):
            return "engine.compile();" if job.config.torch_compile else ""
        if trainer := _spells(job):
            return trainer.layout_flags(job)
        return words(kernel_arguments(job.config))

    def assumed_flags(self, job: Job) -> str:
        return self.layout_flags(job)

    def environment(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """Accelerate's Ulysses and the allocator's option, where a Trainer runs the model."""
        said = super().environment(setting, job)
        if trainer := _spells(job):
            return trainer.environment(setting, job)
        return said if calls_deepspeed(job) else (*said, *parallelism_variables(job))

    def config_file(self, setting: Setting, job: Job) -> str:
        return json.dumps(json.loads(deepspeed_config(as_torch(setting), job)), indent=2) + "\n"


def parts() -> FrameworkParts:
    """What the registry asks for."""
    return stack.torch_parts(
        FACTS, _Spelling, settings=ZeroSettings, jobs=ZeroJobs, memory=ZeroMemory
    )
