"""verl 0.9: what of it is no row of configs/options/verl.json.

Source: verl 0.9.1 workers/engine/fsdp and megatron transformer_impl.py, utils/fsdp_utils.py,
trainer/config, trainer/ppo/ray_trainer.py.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.frameworks import part_types
from advisor.frameworks.cycle_dialect import NODE, Made, hydra, no_cycle, product
from advisor.frameworks.dialect_rows import as_it_runs, written
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.huggingface import framework as trainer
from advisor.frameworks.megatron import cycle
from advisor.frameworks.megatron.framework import MegatronSpelling
from advisor.frameworks.names import Framework
from advisor.frameworks.torch import memory_model, stack
from advisor.frameworks.torch.setting import Granularity, as_torch
from advisor.job.job import Job, JobConfig
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.shape import RankShape
from advisor.models.options import CpCommType
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Setting
from advisor.reading.document_keys import Keys
from advisor.reading.read_configuration import Document, ReadConfiguration
from advisor.reading.shell import ShellCommand

_ACTOR: Final = "actor_rollout_ref."
_MEGATRON: Final = "actor.megatron"
_SECTIONS: Final = (
    _MEGATRON,
    f"{_MEGATRON}.override_transformer_config",
    f"{_MEGATRON}.override_ddp_config",
    "actor.optim",
    "actor.optim.override_optimizer_config",
)
"""Where Megatron's own fields stand."""
_ASSUMED: Final = {
    "sequence_parallel": True,
    "use_distributed_optimizer": True,
    "attention_backend": "flash",
    "moe_token_dispatcher_type": "alltoall",
    "bf16": True,
    "grad_reduce_in_fp32": True,
}
_KL: Final = ("actor.use_kl_loss", "algorithm.use_kl_in_reward")
_ULYSSES: Final = (
    "actor.ulysses_sequence_parallel_size",
    "actor.fsdp_config.ulysses_sequence_parallel_size",
)
_MINI: Final = "actor.ppo_mini_batch_size"
_ENTROPY: Final = ("actor.entropy_coeff", "actor.calculate_entropy")
_KERNELS: Final = "model.fused_kernel_options.impl_backend"
_HEADS: Final = {"triton": "verl_triton", "liger": "verl_fused", "torch": "verl_fused"}
_BUCKET: Final = "rollout.checkpoint_engine.update_weights_bucket_megabytes"


class _Reader(cycle.MegatronCycleReader):
    """Hydra's words of its trainers, and files that hold the same."""

    framework = Framework.VERL
    label = "verl"
    model_key = "model.path"
    sections: ClassVar[Mapping[str, str]] = {_ACTOR: ""}

    def find(self, document: Document) -> Iterator[Keys]:
        """Of supervised training under the names that reinforcement learning has."""
        for keys in super().find(document):
            words = document.texts if isinstance(document, ShellCommand) else ()
            if any("sft_trainer" in word for word in words):
                keys.about["sft"] = "yes"
                engine = _MEGATRON if _is_megatrons(keys) else "actor.fsdp_config"
                names = _SFT | {"engine.": f"{engine}.", "optim.": "actor.optim."}
                for old, new in names.items():
                    for key in [one for one in keys.values if one.startswith(old)]:
                        keys.values[new + key.removeprefix(old)] = keys.values.pop(key)
            yield keys

    def made(self, keys: Keys, said: Mapping[str, Any]) -> Iterator[tuple[str, Made]]:
        """A mini batch counts prompts; a budget of tokens packs a microbatch, else it is padded or
        put together from whole samples."""
        sft = "sft" in keys.about
        dynamic = keys.truth("actor.use_dynamic_bsz")
        dynamic = sft if dynamic is None else dynamic
        lengths = (
            ("data.max_length",) if sft else ("data.max_response_length", "data.max_prompt_length")
        )
        longest = keys.number("data.max_length") or 1024
        if not sft:
            longest = (said["rl.response_length"] or 0) + (said["rl.prompt_length"] or 0)
        yield "job.seq_length", (longest, lengths)
        responses = 1 if sft else said["rl.num_generations"] or 1
        mini = keys.number(_MINI) or (None if keys.has(_MINI) else 256)
        yield "job.global_batch_size", (mini and mini * responses, (_MINI, "rollout.n"))
        budget = "actor.ppo_max_token_len_per_gpu"
        usual = 8192 if sft else 16384
        yield (
            "samples.token_budget",
            ((keys.number(budget) or usual) if dynamic else None, (budget,)),
        )
        micro = "actor.ppo_micro_batch_size_per_gpu"
        number = keys.number(micro) or (4 if sft else None)
        yield "job.micro_batch_size", (1 if dynamic else number, (micro,))
        if (said["layout.context_parallel_size"] or 1) > 1:
            yield "layout.cp_comm_type", (CpCommType.A2A, _ULYSSES)
        yield "head.implementation", (self._head(keys), ("model.use_fused_kernels", _KERNELS))
        entropy = any(
            (keys.get(name) or 0) not in (0, "0", "0.0", "False", False) for name in _ENTROPY
        )
        yield "head.entropy", (entropy, _ENTROPY)
        if sft:
            yield from no_cycle(said).items()
            return
        lora = said.get("tuning.adapter") == "lora"
        if any(map(keys.truth, _KL)):
            yield "rl.reference", ("adapter_off" if lora else "host", _KL)
        if lora and said["rl.sleep_level"]:
            yield "rl.sleep_level", (1, ("model.lora_rank",))
        offload = "actor.fsdp_config.param_offload"
        yield "rl.offload_gradients", (keys.truth(offload) is True, (offload,))
        on_gpu = keys.truth("critic.model.fsdp_config.param_offload") is not True
        if said["rl.algorithm"] == "ppo":
            yield "rl.critic_on_gpu", (on_gpu, ("critic.model.fsdp_config.param_offload",))
        yield "rl.weight_sync_bucket_bytes", ((keys.number(_BUCKET) or 2048) << 20, (_BUCKET,))

    def _head(self, keys: Keys) -> str:
        if keys.truth("model.use_fused_kernels"):
            return _HEADS.get(str(keys.get(_KERNELS) or "torch"), "verl_fused")
        return "verl"

    def recompute(self, keys: Keys) -> str | None:
        """Every layer, as it is or with its input on the host."""
        if keys.truth("model.enable_gradient_checkpointing") is False:
            return "none"
        return "full+offload" if keys.truth("model.enable_activation_offload") else "full"

    def num_gpus(self, keys: Keys) -> int | None:
        """Those of all nodes."""
        usual = (1, 1 if "sft" in keys.about else NODE)
        return product(keys, "trainer.nnodes", "trainer.n_gpus_per_node", usual=usual)

    def _configuration(self, keys: Keys) -> ReadConfiguration:
        found = super()._configuration(keys)
        if not _is_megatrons(keys):
            return found
        read = cycle.settings_of(keys, _SECTIONS, _ASSUMED)
        return self.on_megatron(Framework.VERL_MEGATRON, found, read)


_SFT: Final = {
    "data.micro_batch_size_per_gpu": "actor.ppo_micro_batch_size_per_gpu",
    "data.max_token_len_per_gpu": "actor.ppo_max_token_len_per_gpu",
    "data.use_dynamic_bsz": "actor.use_dynamic_bsz",
    "data.train_batch_size": _MINI,
    "engine.strategy": "actor.strategy",
}


def _is_megatrons(keys: Keys) -> bool:
    named = (keys.get("model_engine"), keys.get("actor.strategy"), keys.get("engine"))
    by_file = "megatron" in str(keys.get("config_name"))
    return "megatron" in named or by_file or any(keys.under(_MEGATRON))


class _Jobs(trainer.TrainerJobs):
    """Gradients are reduced in fp32, and shards are fp32 unless model_dtype says otherwise."""

    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        """See dialect_rows.as_it_runs."""
        asked = config
        model, config = super().configure(model, config, given)
        config = replace(
            config,
            main_grads_dtype=asked.main_grads_dtype,
            weights_dtype=asked.weights_dtype or DType.FP32,
        )
        return model, as_it_runs(self.framework, config, given)


class _Memory(trainer.TrainerMemory):
    """Embedding and output layer are groups of their own, unless they are tied (apply_fsdp2)."""

    def fixed_memory(
        self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]
    ) -> part_types.FixedMemory:
        """Without a switch gradients are reduced with every microbatch."""
        return memory_model.eager_memory(
            job,
            shape,
            chunks,
            root_holds_ends=False,
            syncs_every_microbatch=job.config.sync_each_batch,
        )


class _Spelling(stack.TorchSpelling):
    """Words of Hydra."""

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """Both switches."""
        own = as_torch(setting)
        on = own.granularity is not Granularity.NONE
        switches = {"enable_gradient_checkpointing": on, "enable_activation_offload": own.offloads}
        return shlex.join(hydra({f"{_ACTOR}model.{name}": on for name, on in switches.items()}))

    def layout_flags(self, job: Job) -> str:
        """All else."""
        said = {
            f"{_ACTOR}{name}" if name.startswith(_OWN) else name: value
            for name, value in _said(job).items()
        }
        return shlex.join(hydra(said))

    def omitted(self, job: Job) -> str:
        """The model."""
        return ""


_OWN: Final = ("actor.", "model.", "rollout.", "ref.")


def _said(job: Job) -> dict[str, Any]:
    """What says a job, by the names of the rows."""
    config = job.config
    said = {
        "trainer.nnodes": max(1, job.num_gpus // NODE),
        "trainer.n_gpus_per_node": min(NODE, job.num_gpus),
    }
    said |= written(Framework.VERL, job)
    said[_MINI] = max(1, config.global_batch_size // config.rl.num_generations)
    dynamic = config.samples.token_budget is not None
    said["actor.use_dynamic_bsz"] = dynamic
    if dynamic:
        said.pop("actor.ppo_micro_batch_size_per_gpu", None)
        said["actor.ppo_max_token_len_per_gpu"] = config.samples.token_budget
    response = config.rl.response_length or config.seq_length // 2
    said["data.max_response_length"] = response
    said["data.max_prompt_length"] = config.rl.prompt_length or config.seq_length - response
    if config.head.entropy:
        said["actor.entropy_coeff"] = 0.001
    if config.head.implementation != "verl":
        said["model.use_fused_kernels"] = True
    if config.rl.reference != "none":
        said["actor.use_kl_loss"] = True
    return said


class _MegatronSpelling(MegatronSpelling):
    """Bridge's overrides below the actor's section."""

    def setting_flags(self, setting: Setting, job: Job) -> str:
        return _renamed(super().setting_flags(setting, job))

    def layout_flags(self, job: Job) -> str:
        own = {
            k: v
            for k, v in _said(job).items()
            if not k.startswith(("actor.fsdp", "actor.strategy"))
        }
        said = {
            f"{_ACTOR}{name}" if name.startswith(_OWN) else name: value
            for name, value in own.items()
        }
        return (
            f"model_engine=megatron {shlex.join(hydra(said))} {_renamed(super().layout_flags(job))}"
        )

    def assumed_flags(self, job: Job) -> str:
        return _renamed(super().assumed_flags(job))


_ENGINE: Final = f"{_ACTOR}{_MEGATRON}."
_PLACES: Final = {
    **{f"model.{name}=": f"{_ENGINE}{name}=" for name in cycle.DEGREES},
    "ddp.use_distributed_optimizer=": f"{_ENGINE}use_distributed_optimizer=",
    "model.": f"++{_ENGINE}override_transformer_config.",
    "ddp.": f"++{_ENGINE}override_ddp_config.",
    "mixed_precision.grad_reduce": f"++{_ENGINE}override_ddp_config.grad_reduce",
    "optimizer.": f"++{_ACTOR}actor.optim.override_optimizer_config.",
}


def _renamed(overrides: str) -> str:
    return cycle.renamed(overrides, _PLACES)


READER: Final = _Reader()


def parts(framework: Framework) -> FrameworkParts:
    """Those of one engine."""
    if framework == Framework.VERL_MEGATRON:
        return cycle.megatron_parts(framework, Framework.MEGATRON_BRIDGE, _MegatronSpelling)
    facts = replace(
        trainer.FACTS,
        framework=framework,
        label="verl",
        versions=("0.9",),
        newest_with_experts=None,
        key_options=READER.options,
        context_kinds=(CpCommType.A2A,),
        own_options=(*trainer.FACTS.own_options, "optimizer_cpu_offload", "param_cpu_offload"),
    )
    return stack.torch_parts(facts, _Spelling, jobs=_Jobs, memory=_Memory, dialect="other")
