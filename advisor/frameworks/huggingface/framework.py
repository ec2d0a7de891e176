"""Hugging Face's Trainer with Accelerate's FSDP2: gradient checkpointing of decoder layers.

Source: transformers 4.57.1 and 5.23.0 modeling_layers.py, modeling_utils.py, training_args.py;
accelerate 1.15.0 utils/fsdp_utils.py.
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Final

from msgspec.structs import replace

from advisor.base.dtypes import DType, Precision
from advisor.base.errors import UserError
from advisor.base.rule import Match
from advisor.frameworks import framework_parts, names, part_types
from advisor.frameworks.huggingface.options import OPTIONS, parallelism_variables
from advisor.frameworks.huggingface.training_arguments import (
    REDUCE_DTYPE,
    accelerate_file,
    attention_note,
    job_arguments,
    training_arguments,
    words,
)
from advisor.frameworks.torch import memory_model, plan, stack, supported_jobs
from advisor.frameworks.torch.rules import Rules, stated
from advisor.frameworks.torch.setting import (
    ALL_TO_HOST,
    Granularity,
    Modifier,
    OpPolicy,
    TorchSetting,
    as_torch,
)
from advisor.job.job import AttnImplementation, Job, JobConfig
from advisor.job.layout import DataParallelSharding
from advisor.job.pipeline_split import ModelChunk
from advisor.job.tuning import Adapter, StoredAs, Tuning
from advisor.layers.shape import RankShape
from advisor.models.options import PositionEmbedding, TransformerImpl
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Checkpoint, Setting

FACTS: Final = supported_jobs.StackFacts(
    framework=names.Framework.HUGGINGFACE,
    own_options=(*supported_jobs.EAGER_OPTIONS, "sync_each_batch", "param_cpu_offload"),
    versions=("4", "5"),
    newest_with_experts="5",
    label="transformers",
    key_options=OPTIONS,
    replicates=True,
    has_ddp=True,
    impl=TransformerImpl.TRANSFORMERS,
    granularities=(Granularity.NONE, Granularity.FULL, Granularity.SELECTIVE, Granularity.OP),
    policies=(OpPolicy.SAVE_ATTENTION,),
    options=(Modifier.OFFLOAD,),
    offloads_all=True,
    precisions=(Precision.BF16, Precision.FP16, Precision.FP8_DELAYED, Precision.FP8_CURRENT),
    source="transformers modeling_layers.py GradientCheckpointingLayer",
)


class TrainerJobs(supported_jobs.TorchJobs):
    """Accelerate's types, and its reduction with every microbatch. reduce_dtype: of gradients;
    None: as the job has it."""

    reduce_dtype: ClassVar[DType | None] = REDUCE_DTYPE

    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        """Gradients are reduced in 16 bits (Accelerate). Weights are loaded as their checkpoint has
        them, before 5 in fp32 (from_pretrained's dtype), adapters in fp32 (peft's
        autocast_adapter_dtype); FSDP2 gathers torchao's in 8 bits."""
        model, config = super().configure(model, config, given)
        if config.param_cpu_offload:
            config = replace(config, optimizer_cpu_offload=True)
        dtype = config.weights_dtype
        if dtype is None and config.framework_version == "4":
            dtype = DType.FP32
        if config.precision is Precision.FP8_CURRENT and "job.fp8_param_gather" not in given:
            config = replace(config, fp8_param_gather=not config.flat_parameters)
        if config.tuning.has_adapter and config.tuning.adapter_dtype is None:
            config = replace(config, tuning=replace(config.tuning, adapter_dtype=DType.FP32))
        own = self.reduce_dtype and config.precision.parameter_dtype
        reduces_in = own or config.main_grads_dtype
        return model, replace(config, main_grads_dtype=reduces_in, weights_dtype=dtype)

    def job_changes(self, job: Job) -> Iterator[part_types.JobChange]:
        """Liger's kernels, gradients reduced with every microbatch, and peft's adapters."""
        yield from super().job_changes(job)
        config = job.config
        if config.tuning.trains_all and not (config.torch_compile or config.precision.is_quantized):
            yield from _adapters(job)
        if job.layout.data_parallel_sharding is DataParallelSharding.FULL and self.reduce_dtype:
            yield from _less_on_each(job)
        if job.num_gpus > 1 and job.num_microbatches > 1 and not config.sync_each_batch:
            yield part_types.JobChange(
                "job.sync_each_batch=true (Accelerate)",
                "keeps shards of gradients between microbatches, not whole gradients",
                partial(replace, job, config=replace(config, sync_each_batch=True)),
                part_types.Effect.EXCHANGE,
            )


def _less_on_each(job: Job) -> Iterator[part_types.JobChange]:
    """4-bit weights in FSDP's groups; and all shards on the host."""
    config = job.config
    packed = replace(config.tuning, quant_storage=DType.BF16)
    if config.tuning.base_weights is StoredAs.NF4 and not config.tuning.packs_weights:
        yield part_types.JobChange(
            "tuning.quant_storage=bfloat16 (bnb_4bit_quant_storage)",
            "FSDP cuts the 4-bit weights, which each GPU has whole",
            partial(replace, job, config=replace(config, tuning=packed)),
            part_types.Effect.EXCHANGE,
        )
        config = replace(config, tuning=packed)
    if job.num_gpus > 1 and not config.param_cpu_offload:
        away = replace(config, param_cpu_offload=True, optimizer_cpu_offload=True)
        both = "tuning.quant_storage=bfloat16 " * (config is not job.config)
        yield part_types.JobChange(
            f"{both}job.param_cpu_offload=true (fsdp_offload_params)",
            "parameters, gradients, optimizer states and its step on the host",
            partial(replace, job, config=away),
            part_types.Effect.MEMORY,
        )


def _adapters(job: Job) -> Iterator[part_types.JobChange]:
    """LoRA over 16-bit weights, and over NF4 ones."""
    lora = Tuning(adapter=Adapter.LORA, adapter_dtype=DType.FP32)
    for said, tuning in (
        ("tuning.adapter=lora (package peft)", lora),
        (
            "tuning.adapter=lora tuning.base_weights=nf4 (packages peft and bitsandbytes)",
            replace(lora, base_weights=StoredAs.NF4),
        ),
    ):
        yield part_types.JobChange(
            said,
            f"trains matrices of rank {tuning.rank} next to frozen weights, not the weights",
            partial(replace, job, config=replace(job.config, tuning=tuning)),
            part_types.Effect.TRAINS,
        )


class TrainerMemory(memory_model.TorchMemory):
    """One decoder layer is one checkpoint: reentrant by default in 4.x, not in 5.x. upcasts: shards
    are fp32, whatever the weights are."""

    upcasts: ClassVar[bool] = True

    def semantics(self, job: Job) -> plan.Semantics:
        """Layers 0, n, 2n, ... are checkpointed."""
        return plan.Semantics(
            hooked=Checkpoint.EARLY_STOP,
            use_reentrant=job.config.framework_version == "4",
            starts_with_first=True,
        )

    def shape(self, job: Job, shape: RankShape) -> RankShape:
        """The loss is in the model's forward, which is compiled as a whole."""
        return replace(shape, compiled_loss=job.config.torch_compile)

    def root_holds_ends(self, job: Job) -> bool:
        """Whether embedding and head are in the root's group."""
        return job.config.framework_version == "4"

    def fixed_memory(
        self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]
    ) -> part_types.FixedMemory:
        """Accelerate 1.15 makes groups of embedding and head, as it is read for transformers 5;
        before, they were the root's. Gradients of a batch's microbatches are reduced with the last
        one (Accelerator.no_sync), or each time under sync_each_batch."""
        return memory_model.eager_memory(
            job,
            shape,
            chunks,
            root_holds_ends=self.root_holds_ends(job),
            syncs_every_microbatch=job.config.sync_each_batch,
            upcasts=self.upcasts,
        )

    def reductions(self, job: Job) -> int:
        """See fixed_memory."""
        return job.num_microbatches if job.config.sync_each_batch else 1


def _refused_fp8(setting: TorchSetting, job: Job, _: object) -> Iterator[Match]:
    """Run with a stand-in for Transformer Engine; what it asks of tokens and widths is read."""
    config, model = job.config, job.model
    if config.flat_parameters and config.fp8_param_gather:
        yield Match("FSDP1 gathers parameters in 16 bits", "use job.fp8_param_gather=false")
    if not job.has_te_linear:
        return
    widths = (model.hidden_size, model.ffn_hidden_size, model.num_query_groups * model.kv_channels)
    conv1d = model.position_embedding_type is PositionEmbedding.LEARNED
    refused = (
        (
            job.num_gpus > 1 and not config.flat_parameters,
            "FSDP2 enters no fp8_autocast: te.Linear computes in 16 bits",
            "use job.flat_parameters=true (FSDP1), or job.precision=fp8_current (torchao)",
        ),
        (
            setting.granularity is not Granularity.NONE,
            "a replay runs outside fp8_autocast: torch raises CheckpointError",
            "use none",
        ),
        (
            model.share_embeddings_and_output_weights,
            "the output layer is untied, and no optimizer steps it",
            "use --precision bf16",
        ),
        (
            config.micro_batch_size * config.seq_length % 8,
            "FP8 execution requires tokens divisible by 8",
            "use a sequence divisible by 8",
        ),
        (
            conv1d or any(n % 16 for n in widths) or config.torch_compile or config.tiled_mlp,
            "te.Linear is not modelled with features not divisible by 16, Conv1D, torch.compile "
            "and TiledMLP",
            "use --precision bf16",
        ),
    )
    yield from (Match(reason, fix) for holds, reason, fix in refused if holds)


class TrainerSettings(stack.TorchSettings):
    """Checkpointing of decoder layers, every n-th from 5 on."""

    own_rules: ClassVar[Rules] = stated("huggingface", {"fp8": _refused_fp8})

    def tried(self, job: Job) -> tuple[Setting, ...]:
        """Of policies, which no argument of a Trainer sets, those that are asked for."""
        found = map(as_torch, super().tried(job))
        return tuple(one for one in found if one.granularity is not Granularity.OP)

    def notes(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """What the Trainer warns of, and Accelerate does."""
        return tuple(_notes(as_torch(setting), job))


class TrainerSpelling(stack.TorchSpelling):
    """Arguments of a Trainer, or Accelerate's file."""

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """Options of TrainingArguments."""
        return words(training_arguments(as_torch(setting)))

    def layout_flags(self, job: Job) -> str:
        """Batch, precision, FSDP2."""
        return words(job_arguments(job))

    def omitted(self, job: Job) -> str:
        """On several GPUs te.Linear needs FSDP1, with which Accelerate refuses a Trainer."""
        alone = not job.has_te_linear or job.num_gpus == 1
        return "" if alone else "no Trainer can run this: use --format file and an Accelerator"

    def environment(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """Context parallelism and the allocator's option: a Trainer has no argument for it."""
        return (*super().environment(setting, job), *parallelism_variables(job))

    def config_file(self, setting: Setting, job: Job) -> str:
        """A file for ``accelerate launch --config_file``, for scripts with an Accelerator of their
        own; a Trainer's checkpointing belongs into its arguments."""
        own = as_torch(setting)
        plain = own.granularity in (Granularity.NONE, Granularity.FULL)
        if not plain or own.use_reentrant or own == ALL_TO_HOST:
            fix = "use full or full+offload, or --format flags"
            raise UserError("--recompute", own.spec, "cannot be written in Accelerate's file", fix)
        return accelerate_file(own, job)


def _notes(setting: TorchSetting, job: Job) -> Iterator[str]:
    if setting.policy is not None:
        yield (
            "no argument of a Trainer saves attention: axolotl's selective_checkpointing does, and "
            "in Python gradient_checkpointing_kwargs={'context_fn': ...} (torch's "
            "create_selective_checkpoint_contexts)"
        )
    if setting == ALL_TO_HOST:
        yield (
            "--activation_offloading is an option of TRL's SFTConfig and of axolotl, which puts "
            "what all layers keep into host memory; with checkpoints it is full+offload"
        )
    own = job.config.framework == names.Framework.HUGGINGFACE
    if own and job.config.attn_implementation is not AttnImplementation.SDPA:
        yield attention_note(job.config.attn_implementation)
    of_several = {
        "ignore Trainer's warning of a redundant all-gather: FSDP2 has none": (
            setting.granularity is not Granularity.NONE
        ),
        "Accelerate keeps the weights in fp32 under FSDP2 (fsdp2_prepare_model)": (
            job.config.weights_dtype is DType.BF16
        ),
    }
    yield from (note for note, holds in of_several.items() if holds and not job.layout.is_whole)


def parts() -> framework_parts.FrameworkParts:
    """What the registry asks for."""
    return stack.torch_parts(
        FACTS, TrainerSpelling, settings=TrainerSettings, jobs=TrainerJobs, memory=TrainerMemory
    )
