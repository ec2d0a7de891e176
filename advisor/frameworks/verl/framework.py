"""verl 0.9: what of it is no row of configs/options/verl.json.

Source: verl 0.9.1 workers/engine/fsdp and megatron transformer_impl.py, utils/fsdp_utils.py,
trainer/config, trainer/ppo/ray_trainer.py.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from advisor.frameworks.cycle_dialect import CycleSpelling, Made
from advisor.frameworks.dialect import dialect_parts
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.huggingface import framework as trainer
from advisor.frameworks.huggingface.trainer_dialect import EngineJobs
from advisor.frameworks.megatron import engine_dialect
from advisor.frameworks.names import Framework
from advisor.frameworks.torch import rules, stack
from advisor.frameworks.torch.setting import Granularity, Modifier
from advisor.models.options import CpCommType
from advisor.reading.read_configuration import Document, Keys

_MEGATRON: Final = "actor.megatron"
_FSDP: Final = "actor.fsdp_config"
_ULYSSES: Final = "ulysses_sequence_parallel_size"
_SIZE: Final = "actor.fsdp_config.fsdp_size"
_MINI: Final = "actor.ppo_mini_batch_size"
_MICRO: Final = "actor.ppo_micro_batch_size_per_gpu"
_SFT_MICRO: Final = "data.micro_batch_size_per_gpu"
_CRITIC: Final = ("rl.critic_micro_batch_size", "rl.critic_token_budget")
_ALL: Final = {
    "job.micro_batch_size": "actor.ppo_micro_batch_size",
    "rl.log_prob_micro_batch_size": "rollout.log_prob_micro_batch_size",
}
"""Batches of all GPUs, which older releases took in place of one GPU's."""


class _Reader(engine_dialect.MegatronCycleReader):
    """Hydra's words of its trainers, and files that hold the same."""

    framework = Framework.VERL
    label = "verl"

    def find(self, document: Document) -> Iterator[Keys]:
        """Those of supervised training under the other names."""
        for keys in super().find(document):
            if "sft_trainer" in " ".join(getattr(document, "texts", ())):
                keys.about["supervised"] = "yes"
                with_megatron, micro = self.trains_with_megatron(keys), keys.has(_SFT_MICRO)
                self.put_supervised(keys)
                if keys.truth(self.cycle.dynamic) and not micro:
                    del keys.values[_MICRO]
                for key in [one for one in keys.values if with_megatron and one.startswith(_FSDP)]:
                    keys.values[_MEGATRON + key.removeprefix(_FSDP)] = keys.values.pop(key)
            yield keys

    def is_supervised(self, keys: Keys) -> bool:
        """Of sft_trainer."""
        return "supervised" in keys.about

    def num_gpus(self, keys: Keys) -> int | None:
        """Without rollouts the launcher's, or those of its options."""
        said = keys.has("trainer.n_gpus_per_node") or not self.is_supervised(keys)
        return super().num_gpus(keys) if said else keys.num_gpus

    def trains_with_megatron(self, keys: Keys) -> bool:
        """By the group of the engine, the strategy, the file or the options."""
        named = (keys.get("model_engine"), keys.get("actor.strategy"), keys.get("engine"))
        by_file = "megatron" in str(keys.get("config_name"))
        return "megatron" in named or by_file or any(keys.under(_MEGATRON))

    def made(self, keys: Keys, said: Mapping[str, Any]) -> Iterator[tuple[str, Made]]:
        """Ulysses exchanges heads; an engine of adapters keeps the model's weights on the host.
        FSDP 1 wraps what is trained apart (get_fsdp_wrap_policy): adapters are as under FSDP 2."""
        yield from super().made(keys, said)
        if self.is_supervised(keys):
            longest = keys.number("data.max_length") or 1024
            yield "job.seq_length", (longest, ("data.max_length",))
            yield "job.global_batch_size", (keys.number(_MINI) or 256, (_MINI,))
        elif said["tuning.adapter"] == "lora" and said["rl.sleep_level"]:
            yield "rl.sleep_level", (1, ("model.lora_rank",))
        if said["tuning.adapter"] == "lora":
            yield "job.flat_parameters", (False, ("actor.strategy",))
        ulysses, all_gpus = said["layout.context_parallel_size"] or 1, self.num_gpus(keys) or 1
        for path, name in _ALL.items():
            whole = 0 if keys.truth(self.cycle.dynamic) else keys.number(name)
            if whole and not keys.has(f"{name}_per_gpu"):
                yield path, (max(1, whole * ulysses // all_gpus), (name,))
        if ulysses > 1:
            names = (f"actor.{_ULYSSES}", f"actor.fsdp_config.{_ULYSSES}")
            yield "layout.cp_comm_type", (CpCommType.A2A, names)
        size = keys.number(_SIZE) or 0
        if size > 0 and (ranks := self.num_gpus(keys)):
            yield "layout.data_parallel_replicate_size", (max(1, ranks // size), (_SIZE,))
        of_critic = [path for path in said if path.startswith("rl.critic_")]
        if said["rl.algorithm"] == "ppo":
            of_critic = [_CRITIC[not keys.truth(self.cycle.dynamic)]]
        yield from ((path, (None, ())) for path in of_critic)


class _Memory(trainer.TrainerMemory):
    """Embedding and output layer are groups of their own, unless they are tied (apply_fsdp2)."""

    upcasts = False


class _Settings(stack.TorchSettings):
    """Ulysses works with FSDP1 as well."""

    layout_rules: ClassVar = {
        name: rule for name, rule in rules.LAYOUT_RULES.items() if "flat" not in rule.example
    }


READER: Final = _Reader()


def parts(framework: Framework) -> FrameworkParts:
    """Those of one engine."""
    if framework == Framework.VERL_MEGATRON:
        return engine_dialect.megatron_parts(READER, framework)
    return dialect_parts(
        READER,
        "0.9",
        trainer.FACTS,
        spelling=CycleSpelling,
        settings=_Settings,
        jobs=EngineJobs,
        memory=_Memory,
        context_kinds=(CpCommType.A2A,),
        granularities=(Granularity.NONE, Granularity.FULL),
        policies=(),
        options=(Modifier.OFFLOAD,),
    )
