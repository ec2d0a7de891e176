"""torchtitan: its modes by version, its rules, its FSDP2 groups, its command line.

Source: torchtitan 0.1.0, 0.2.0, 0.2.2, 0.3.0 config/job_config.py,
distributed/activation_checkpoint.py, models/llama3/infra/parallelize.py.
"""

import shlex
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from advisor.base.dtypes import DType, Precision
from advisor.frameworks import framework_parts, names, part_types
from advisor.frameworks.torch import memory_model, plan, stack, supported_jobs
from advisor.frameworks.torch.partitioner.layer_graph import AttentionKernel
from advisor.frameworks.torch.rules import Rules, block_shape, stated
from advisor.frameworks.torch.setting import Granularity, OpPolicy, as_torch
from advisor.frameworks.torchtitan import flags, options, sharding
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.operators import CollectiveKind
from advisor.layers.shape import RankShape
from advisor.models.options import AttentionBackend
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Checkpoint, Setting

_NO_SUCH_MODEL = (
    "torchtitan has no Mixtral: build a custom model from Llama 3's attention and "
    "torchtitan's experts"
)
_COMPILE_NOTE = (
    "memory_budget needs compile.enable: torchtitan compiles each block instead of wrapping it in "
    "a checkpoint"
)
_APPLY_NOTE = (
    "torchtitan has no option for a plan of blocks: call apply_plan where parallelize calls "
    "apply_ac"
)
FACTS: Final = supported_jobs.StackFacts(
    framework=names.Framework.TORCHTITAN,
    versions=("0.1", "0.2", "0.3"),
    newest_with_experts="0.2",
    label="torchtitan",
    key_options=options.OPTIONS,
    own_options=(
        *("optimizer_implementation", "optimizer_in_backward"),
        *("torch_compile", "compile_components"),
    ),
    granularities=(
        *(Granularity.NONE, Granularity.FULL, Granularity.SELECTIVE),
        *(Granularity.OP, Granularity.BUDGET, Granularity.BLOCKS),
    ),
    policies=(OpPolicy.TORCHTITAN,),
    replicates=True,
    precisions=(Precision.BF16, Precision.FP8_CURRENT),
    source="torchtitan distributed/activation_checkpoint.py",
)


class TitanJobs(supported_jobs.TorchJobs):
    """With expandable segments, in fp32 on one GPU, with tensor and expert parallelism."""

    def __init__(self, facts: supported_jobs.StackFacts) -> None:
        super().__init__(facts)
        self.degrees = replace(self.degrees, tensor=True, experts=True)

    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        """With cuDNN's attention, which comes first from 0.2 on (models/attention.py), and with
        expandable segments, which run_train.sh asks for in every release; on one GPU weights are
        fp32 (maybe_enable_amp)."""
        model, config = super().configure(model, config, given)
        if "job.expandable_segments" not in given:
            config = replace(config, expandable_segments=True)
        if model.attention_backend is AttentionBackend.AUTO and config.framework_version != "0.1":
            model = replace(model, attention_backend=AttentionBackend.FUSED)
        return model, replace(config, weights_dtype=DType.FP32)

    def layout(self, given: dict[str, Any], num_gpus: int) -> ParallelLayout | None:
        """FSDP, TP and EP."""
        return sharding.titan_layout(self.facts, given, num_gpus)


class TitanMemory(memory_model.TorchMemory):
    """Every block one non-reentrant checkpoint that does not stop early, unless asked to."""

    def semantics(self, job: Job) -> plan.Semantics:
        """early_stop is false by default in 0.2 and always in 0.3; 0.1 leaves torch's default. The
        list of operators has aten.addmm from 0.3 on, and communication by model. cuDNN's attention
        comes first (models/attention.py)."""
        version = job.config.framework_version
        hooked = Checkpoint.EARLY_STOP if version == "0.1" else Checkpoint.NON_REENTRANT
        sent = {CollectiveKind.REDUCE_SCATTER}
        qwen3 = job.model.qk_layernorm and not job.model.multi_latent_attention
        if not qwen3:  # whose list has no all-to-all
            sent.add(CollectiveKind.ALL_TO_ALL)
        return plan.Semantics(
            hooked=hooked,
            counts_addmm=version == "0.3",
            attention=AttentionKernel.CUDNN,
            saved_collectives=frozenset(sent),
        )

    def shape(self, job: Job, shape: RankShape) -> RankShape:
        """0.1 compiles the loss with the blocks, later releases where compile.components says so
        (components/loss.py)."""
        return replace(shape, compiled_loss=job.config.compiles_loss)

    def fixed_memory(
        self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]
    ) -> part_types.FixedMemory:
        """Embedding and head are groups of their own; the head's stays between the passes. From
        0.3 on one GPU is a group of one (models/llama3/parallelize.py); gradients are divided by
        1.0 (distributed/fsdp.py)."""
        lone = job.config.framework_version == "0.3"
        return memory_model.eager_memory(
            job, shape, chunks, root_holds_ends=False, wraps_one_gpu=lone, divides=True
        )


class _Settings(stack.TorchSettings):
    """The modes of each version."""

    layout_rules = sharding.LAYOUT_RULES
    own_rules: ClassVar[Rules] = stated("torchtitan")

    def notes(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """A budget needs torch.compile; Mixtral needs a model of one's own."""
        said = super().notes(setting, job)
        model = job.model
        if model.num_moe_experts and not (model.qk_layernorm or model.multi_latent_attention):
            said += (_NO_SUCH_MODEL,)
        if job.config.precision.is_quantized:
            said += ("float8: all linear layers except the output (torchao)",)
        granularity = as_torch(setting).granularity
        if granularity is Granularity.BLOCKS and job.config.framework_version == "0.3":
            said += (_APPLY_NOTE,)
        return (*said, _COMPILE_NOTE) if granularity is Granularity.BUDGET else said


class _Spelling(stack.TorchSpelling):
    """A command line; a TOML file or, from 0.3 on, a Python module."""

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """Options of the command line by version."""
        return shlex.join(flags.mode_flags(as_torch(setting), job.config.framework_version))

    def layout_flags(self, job: Job) -> str:
        return shlex.join(flags.job_flags(job))

    def omitted(self, job: Job) -> str:
        """Float8, of which options say nothing from 0.3 on."""
        return "" if flags.says_float8(job.config) else flags.FLOAT8_TO_SAY

    def config_file(self, setting: Setting, job: Job) -> str:
        """Sections of a TOML file; from 0.3 on a Python module; of a plan of blocks the module that
        runs it."""
        own, version = as_torch(setting), job.config.framework_version
        if own.blocks and not (version == "0.2" and flags.every_nth(own)):
            from advisor.frameworks.torch.optimum.plan_file import plan_file

            return plan_file(own, block_shape(job), flags.PLAN_HOOK if version == "0.2" else "")
        written = flags.python_module if version == "0.3" else flags.toml
        return written(own, job)


def parts() -> framework_parts.FrameworkParts:
    """What the registry asks for."""
    return stack.torch_parts(
        FACTS, _Spelling, settings=_Settings, jobs=TitanJobs, memory=TitanMemory
    )
