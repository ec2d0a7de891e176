"""OpenRLHF 0.11: what of it is no row of configs/options/openrlhf.json.

Source: openrlhf 0.11.2 cli/train_ppo_ray.py, cli/train_sft.py, cli/train_dpo.py,
utils/deepspeed/deepspeed_utils.py, models/actor.py.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from advisor.frameworks.cycle_dialect import NODE, CycleReader, Made, no_cycle, product
from advisor.frameworks.deepspeed import framework as deepspeed
from advisor.frameworks.dialect_rows import as_it_runs, written
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.huggingface.training_arguments import words
from advisor.frameworks.names import Framework
from advisor.frameworks.torch import stack
from advisor.frameworks.torch.setting import Granularity, as_torch
from advisor.job.job import Job, JobConfig
from advisor.models.options import CpCommType, TransformerImpl
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Setting
from advisor.reading.document_keys import Keys
from advisor.reading.read_configuration import Document

_PROGRAM: Final = re.compile(r"train_(\w+)")
_CHECKPOINT: Final = "gradient_checkpointing_enable"
_REENTRANT: Final = "gradient_checkpointing_reentrant"
_KL: Final = "algo.kl.init_coef"


class _Reader(CycleReader):
    """Dotted arguments of its programs."""

    framework = Framework.OPENRLHF
    label = "OpenRLHF"
    model_key = "actor.model_name_or_path"

    def find(self, document: Document) -> Iterator[Keys]:
        """With the program; a model under the actor's name."""
        for keys in super().find(document):
            program = _PROGRAM.search(" ".join(getattr(document, "texts", ())))
            keys.about["program"] = program[1] if program else "ppo_ray"
            for key in [one for one in keys.values if one.startswith("model.")]:
                keys.values[f"actor.{key[6:]}"] = keys.values.pop(key)
            yield keys

    def made(self, keys: Keys, said: Mapping[str, Any]) -> Iterator[tuple[str, Made]]:
        """Packing fills a microbatch up to a budget, or joins its samples."""
        dynamic = keys.truth("train.dynamic_batch_enable")
        budget, micro = "train.max_tokens_per_gpu", "train.micro_batch_size"
        yield "samples.token_budget", (keys.number(budget) or 16192 if dynamic else None, (budget,))
        rl = keys.about["program"] == "ppo_ray"
        usual = keys.number(micro) or (1 if rl else 8)
        yield "job.micro_batch_size", (1 if dynamic else usual, (micro,))
        if said["layout.context_parallel_size"] not in (None, 1):
            yield "layout.cp_comm_type", (CpCommType.P2P, ("ds.ring_attn_size",))
        if not rl:
            yield from no_cycle(said).items()
            if keys.about["program"] == "dpo":
                yield "rl.algorithm", ("dpo", ())
                yield "rl.reference", (self._reference(keys, said), ("ref.offload",))
            return
        asked = str(keys.get(_KL) if keys.has(_KL) else 0.01)
        yield (
            "rl.reference",
            (self._reference(keys, said) if float(asked) else None, (_KL, "ref.offload")),
        )
        together = keys.truth("train.colocate_all") is True
        engines = "vllm.num_engines"
        yield "rl.engine", ("vllm" if keys.number(engines) else None, (engines,))
        yield "rl.colocated", (together, ("train.colocate_all",))
        asleep = together and keys.truth("vllm.enable_sleep")
        yield "rl.sleep_level", (1 if asleep else 0, ("vllm.enable_sleep",))
        if not dynamic:
            yield "rl.log_prob_token_budget", (None, ())
        for name in ("num_nodes", "num_gpus_per_node"):
            apart = keys.number(f"critic.{name}") and said["rl.algorithm"] == "ppo"
            if apart and not (together or keys.truth("train.colocate_critic_reward")):
                yield "rl.critic_on_gpu", (False, (f"critic.{name}",))

    def _reference(self, keys: Keys, said: Mapping[str, Any]) -> str:
        if said.get("tuning.adapter") == "lora":
            return "adapter_off"
        return "host" if keys.truth("ref.offload") or keys.has("ref.num_gpus_per_node") else "gpu"

    def recompute(self, keys: Keys) -> str | None:
        """Every layer, by torch's checkpoint of either kind."""
        if not keys.truth(f"actor.{_CHECKPOINT}"):
            return "none"
        return "full+use_reentrant" if keys.truth(f"actor.{_REENTRANT}") else "full"

    def num_gpus(self, keys: Keys) -> int | None:
        """The actor's; supervised training's are the launcher's."""
        if keys.about["program"] != "ppo_ray":
            return super().num_gpus(keys)
        return product(keys, "actor.num_nodes", "actor.num_gpus_per_node", usual=(1, NODE))


class _Jobs(deepspeed.ZeroJobs):
    """What it does otherwise."""

    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        """See dialect_rows.as_it_runs."""
        model, config = super().configure(model, config, given)
        return model, as_it_runs(self.framework, config, given)


class _Spelling(stack.TorchSpelling):
    """Its arguments."""

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """A switch, and one for the kind."""
        own = as_torch(setting)
        if own.granularity is Granularity.NONE:
            return ""
        return f"--actor.{_CHECKPOINT}" + f" --actor.{_REENTRANT}" * bool(own.use_reentrant)

    def layout_flags(self, job: Job) -> str:
        """All others."""
        config, rl = job.config, job.config.rl
        nodes, rest = max(1, job.num_gpus // NODE), min(NODE, job.num_gpus)
        said = {"actor.num_nodes": nodes, "actor.num_gpus_per_node": rest}
        said |= written(Framework.OPENRLHF, job)
        if config.samples.token_budget is not None:
            said |= {"train.max_tokens_per_gpu": config.samples.token_budget}
            said |= {"train.dynamic_batch_enable": True, "ds.packing_samples": True}
            said.pop("train.micro_batch_size", None)
        if rl.reference == "none" and rl.has_phases:
            said[_KL] = 0
        if rl.sleep_level:
            said |= {"train.colocate_all": True, "vllm.enable_sleep": True}
        on = [f"--{name}" for name, value in said.items() if value is True]
        pairs = ((name, value) for name, value in said.items() if not isinstance(value, bool))
        return " ".join((words(pairs), *on))


READER: Final = _Reader()


def parts() -> FrameworkParts:
    """DeepSpeed's, with transformers' layers."""
    facts = replace(
        deepspeed.FACTS,
        framework=Framework.OPENRLHF,
        label="OpenRLHF",
        versions=("0.11",),
        impl=TransformerImpl.TRANSFORMERS,
        context_kinds=(CpCommType.P2P,),
        key_options=READER.options,
    )
    return stack.torch_parts(
        facts,
        _Spelling,
        settings=deepspeed.ZeroSettings,
        jobs=_Jobs,
        memory=deepspeed.ZeroMemory,
        dialect="other",
    )
