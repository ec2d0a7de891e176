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
from advisor.frameworks.torch import recompute_settings, rules
from advisor.frameworks.torch.setting import Granularity, Modifier
from advisor.models.options import CpCommType
from advisor.reading.document_keys import Keys
from advisor.reading.read_configuration import Document

_MEGATRON: Final = "actor.megatron"
_ULYSSES: Final = "ulysses_sequence_parallel_size"
_SIZE: Final = "actor.fsdp_config.fsdp_size"
_MINI: Final = "actor.ppo_mini_batch_size"
_MICRO: Final = "actor.ppo_micro_batch_size_per_gpu"
_BUDGET: Final = "actor.ppo_max_token_len_per_gpu"
_DYNAMIC: Final = "actor.use_dynamic_bsz"
_SUPERVISED: Final = {
    "data.micro_batch_size_per_gpu": _MICRO,
    "data.max_token_len_per_gpu": _BUDGET,
    "data.use_dynamic_bsz": _DYNAMIC,
    "data.train_batch_size": _MINI,
    "engine.strategy": "actor.strategy",
}
"""Keys of its trainer without rollouts, under the names that reinforcement learning has."""
_USUAL: Final = {_MICRO: 4, _BUDGET: 8192, _DYNAMIC: True, "trainer.n_gpus_per_node": 1}
"""What they are there if nobody says it."""


class _Reader(engine_dialect.MegatronCycleReader):
    """Hydra's words of its trainers, and files that hold the same."""

    framework = Framework.VERL
    label = "verl"

    def find(self, document: Document) -> Iterator[Keys]:
        """Those of supervised training under the other names."""
        for keys in super().find(document):
            if "sft_trainer" in " ".join(getattr(document, "texts", ())):
                keys.about["supervised"] = "yes"
                engine = _MEGATRON if self.trains_with_megatron(keys) else "actor.fsdp_config"
                names = _SUPERVISED | {"engine.": f"{engine}.", "optim.": "actor.optim."}
                for old, new in names.items():
                    for key in [one for one in keys.values if one.startswith(old)]:
                        keys.values[new + key.removeprefix(old)] = keys.values.pop(key)
                dynamic = keys.truth(_DYNAMIC) is not False
                for key, value in _USUAL.items():
                    if not keys.has(key) and not (dynamic and key == _MICRO):
                        keys.put(key, value, keys.place, f"{key} by default")
            yield keys

    def is_supervised(self, keys: Keys) -> bool:
        """Of sft_trainer."""
        return "supervised" in keys.about

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
        if (said["layout.context_parallel_size"] or 1) > 1:
            names = (f"actor.{_ULYSSES}", f"actor.fsdp_config.{_ULYSSES}")
            yield "layout.cp_comm_type", (CpCommType.A2A, names)
        size = keys.number(_SIZE) or 0
        if size > 0 and (ranks := self.num_gpus(keys)):
            yield "layout.data_parallel_replicate_size", (max(1, ranks // size), (_SIZE,))
        if said["rl.algorithm"] != "ppo":
            yield "rl.critic_on_gpu", (None, ())


class _Memory(trainer.TrainerMemory):
    """Embedding and output layer are groups of their own, unless they are tied (apply_fsdp2)."""

    upcasts = False


class _Settings(recompute_settings.TorchSettings):
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
