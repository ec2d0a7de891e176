"""NeMo-RL: what of it is no row of configs/options/nemo_rl.json.

Source: NeMo-RL 7ea279a examples/configs, nemo_rl/models/policy, nemo_rl/models/megatron/setup.py,
nemo_rl/algorithms/grpo.py.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from advisor.frameworks.cycle_dialect import Made, hydra, no_cycle, product
from advisor.frameworks.dialect_rows import as_it_runs, written
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.huggingface import framework as trainer
from advisor.frameworks.megatron import cycle
from advisor.frameworks.megatron.framework import MegatronSpelling
from advisor.frameworks.megatron.setting import Granularity as MegatronGranularity
from advisor.frameworks.megatron.setting import as_megatron
from advisor.frameworks.names import Framework
from advisor.frameworks.torch import stack
from advisor.frameworks.torch.setting import Granularity, as_torch
from advisor.job.job import Job, JobConfig
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Setting
from advisor.reading.document_keys import Keys
from advisor.reading.read_configuration import Document, ReadConfiguration

_POLICY: Final = "policy."
_MEGATRON: Final = "megatron_cfg"
_ON: Final = "megatron_cfg.enabled"
_PACKING: Final = "sequence_packing.enabled"
_KL: Final = "loss_fn.reference_policy_kl_penalty"
_OWN: Final = ("grpo", "loss_fn", "cluster", "sft", "dpo", "data", "logger", "checkpointing", "env")
_SECTIONS: Final = (
    _MEGATRON,
    f"{_MEGATRON}.optimizer",
    f"{_MEGATRON}.distributed_data_parallel_config",
    f"{_MEGATRON}.model_overrides",
)
_ASSUMED: Final = {
    "use_distributed_optimizer": True,
    "use_precision_aware_optimizer": True,
    "grad_reduce_in_fp32": False,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "moe_token_dispatcher_type": "alltoall",
    "moe_permute_fusion": True,
    "moe_router_dtype": "fp64",
    "bf16": True,
}
_REFERENCE: Final = re.compile(r"\$\{([\w.]+)\}")
_PRODUCT: Final = re.compile(r"\$\{mul:\s*(\d+)\s*,\s*(\d+)\s*\}")
_DEEPEST: Final = 4
_RECOMPUTED: Final = (
    "recompute_granularity",
    "recompute_modules",
    "recompute_method",
    "recompute_num_layers",
)


class _Reader(cycle.MegatronCycleReader):
    """YAML that inherits another, and words of Hydra over it."""

    framework = Framework.NEMO_RL
    label = "NeMo-RL"
    model_key = "model_name"
    sections: ClassVar[Mapping[str, str]] = {_POLICY: ""}

    def find(self, document: Document) -> Iterator[Keys]:
        """With the program's algorithm."""
        for keys in super().find(document):
            texts = " ".join(getattr(document, "texts", ()))
            for key, one in keys.values.items():
                if isinstance(one.value, str) and "${" in one.value:
                    keys.values[key] = one.meaning(self._resolved(one.value, keys))
            kinds = [
                kind for kind in ("sft", "dpo") if f"run_{kind}" in texts or any(keys.under(kind))
            ]
            keys.about["algorithm"] = kinds[0] if kinds and not any(keys.under("grpo")) else "grpo"
            yield keys

    def _resolved(self, text: str, keys: Keys) -> str:
        """With the values that it refers to, and products of numbers."""
        for _ in range(_DEEPEST):
            text = _REFERENCE.sub(lambda found: str(keys.get(self._name(found[1])) or ""), text)
            text = _PRODUCT.sub(lambda found: str(int(found[1]) * int(found[2])), text)
        return text

    def made(self, keys: Keys, said: Mapping[str, Any]) -> Iterator[tuple[str, Made]]:
        """Tokens of a microbatch are counted before context parallelism cuts them."""
        dtensor = not keys.truth(_ON)
        section = "dtensor_cfg" if dtensor else _MEGATRON
        ranks = keys.number(f"{section}.context_parallel_size") or 1
        longest, micro = said["job.seq_length"], said["job.micro_batch_size"]
        packs = keys.truth(_PACKING) is not False or keys.truth("dynamic_batching.enabled")
        tokens = keys.number("sequence_packing.train_mb_tokens")
        if packs and longest and micro:
            budget = (tokens or longest * micro) // ranks
            names = (
                "sequence_packing.train_mb_tokens",
                "max_total_sequence_length",
                "train_micro_batch_size",
            )
            yield "samples.token_budget", (budget, names)
            yield "job.micro_batch_size", (1, ("train_micro_batch_size",))
        else:
            yield "samples.token_budget", (None, ())
        fused = keys.truth(f"{_MEGATRON}.use_fused_linear_logprobs") and not dtensor
        yield (
            "head.implementation",
            ("nemo_rl_fused" if fused else "nemo_rl", (f"{_MEGATRON}.use_fused_linear_logprobs",)),
        )
        lora = f"{_MEGATRON}.peft"
        if not dtensor and keys.truth(f"{lora}.enabled"):
            yield "tuning.adapter", ("lora", (f"{lora}.enabled",))
            yield (
                "tuning.rank",
                (keys.number(f"{lora}.dim") or 8, (f"{lora}.dim", f"{lora}.enabled")),
            )
        if keys.about["algorithm"] == "sft":
            yield from no_cycle(said).items()
            return
        yield "rl.algorithm", (keys.about["algorithm"], ())
        adapter = said.get("tuning.adapter") == "lora"
        penalty = keys.get(_KL)
        if penalty is None or float(penalty) > 0:
            yield "rl.reference", ("adapter_off" if adapter else "host", (_KL,))
        if keys.about["algorithm"] == "dpo":
            yield from ((path, (None, ())) for path in ("rl.engine", "rl.sleep_level"))
            return
        shares = said["rl.colocated"] is not False
        yield "rl.engine", (said["rl.engine"] or "vllm", ("generation.backend",))
        yield "rl.sleep_level", (1 if shares else 0, ("generation.colocated.enabled",))
        for name in ("params", "gradients", "optimizer"):
            yield f"rl.offload_{name}", (shares, ("generation.colocated.enabled",))

    def recompute(self, keys: Keys) -> str | None:
        """Of the DTensor worker; Megatron's reader says its own."""
        return "full" if keys.truth("dtensor_cfg.activation_checkpointing") else "none"

    def num_gpus(self, keys: Keys) -> int | None:
        """Those of all nodes."""
        return product(keys, "cluster.num_nodes", "cluster.gpus_per_node", usual=(1, 1))

    def _configuration(self, keys: Keys) -> ReadConfiguration:
        found = super()._configuration(keys)
        if not keys.truth(_ON):
            return found
        read = cycle.settings_of(_as_it_sets(keys), _SECTIONS, _ASSUMED)
        return self.on_megatron(Framework.NEMO_RL_MEGATRON, found, read)


def _as_it_sets(keys: Keys) -> Keys:
    """Megatron's recompute as setup.py makes it: full means uniform, one layer."""
    values = {key: one for key, one in keys.values.items() if not key.endswith(_RECOMPUTED)}
    switch = keys.values.get(f"{_MEGATRON}.activation_checkpointing")
    if switch is not None and keys.truth(f"{_MEGATRON}.activation_checkpointing"):
        kind = keys.get(f"{_MEGATRON}.recompute_granularity") or "full"
        made = {"recompute_granularity": kind}
        if kind == "full":
            made |= {"recompute_method": "uniform", "recompute_num_layers": 1}
        else:
            made["recompute_modules"] = keys.get(f"{_MEGATRON}.recompute_modules") or ["core_attn"]
        values |= {f"{_MEGATRON}.{name}": switch.meaning(value) for name, value in made.items()}
    return replace(keys, values=values)


class _Jobs(trainer.TrainerJobs):
    """AutoModel's FSDP2: shards and reduction in fp32."""

    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        """See dialect_rows.as_it_runs."""
        asked = config
        model, config = super().configure(model, config, given)
        config = replace(
            config, main_grads_dtype=asked.main_grads_dtype, weights_dtype=asked.weights_dtype
        )
        return model, as_it_runs(self.framework, config, given)


def _said(job: Job) -> dict[str, Any]:
    said = {
        "cluster.num_nodes": max(1, job.num_gpus // 8),
        "cluster.gpus_per_node": min(8, job.num_gpus),
    }
    config = job.config
    named = written(Framework.NEMO_RL, job)
    budget = config.samples.token_budget
    named[_PACKING] = budget is not None
    if budget is not None:
        named["sequence_packing.train_mb_tokens"] = budget * job.layout.context_parallel_size
    if config.rl.reference == "none" and config.rl.has_phases:
        said[_KL] = 0
    return said | {
        name if name.startswith(_OWN) else _POLICY + name: v for name, v in named.items()
    }


class _Spelling(stack.TorchSpelling):
    """Words of Hydra over a file."""

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """The switch."""
        on = as_torch(setting).granularity is not Granularity.NONE
        return shlex.join(hydra({f"{_POLICY}dtensor_cfg.activation_checkpointing": on}))

    def layout_flags(self, job: Job) -> str:
        """All else."""
        return shlex.join(hydra(_said(job)))


class _MegatronSpelling(MegatronSpelling):
    """Bridge's overrides below megatron_cfg."""

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """activation_checkpointing and what it reads."""
        own = as_megatron(setting)
        said: dict[str, Any] = {
            "activation_checkpointing": own.granularity is not MegatronGranularity.NONE
        }
        if own.granularity is not MegatronGranularity.NONE:
            said["recompute_granularity"] = str(own.granularity)
        if own.granularity is MegatronGranularity.SELECTIVE:
            said["recompute_modules"] = list(own.modules)
        return shlex.join(
            hydra({f"{_POLICY}{_MEGATRON}.{name}": value for name, value in said.items()})
        )

    def layout_flags(self, job: Job) -> str:
        """The engine, and all that is said of the job."""
        on = {f"{_POLICY}{_ON}": True, f"{_POLICY}dtensor_cfg.enabled": False}
        said = {k: v for k, v in _said(job).items() if "dtensor_cfg" not in k}
        return f"{shlex.join(hydra(on | said))} {_renamed(super().layout_flags(job))}"

    def assumed_flags(self, job: Job) -> str:
        """What a prediction rests on."""
        return _renamed(super().assumed_flags(job))


_ENGINE: Final = f"{_POLICY}{_MEGATRON}."
_PLACES: Final = {
    **{f"model.{name}=": f"{_ENGINE}{name}=" for name in cycle.DEGREES},
    "model.": f"++{_ENGINE}model_overrides.",
    "ddp.": f"++{_ENGINE}distributed_data_parallel_config.",
    "mixed_precision.grad_reduce": f"++{_ENGINE}distributed_data_parallel_config.grad_reduce",
    "optimizer.": f"++{_ENGINE}optimizer.",
}


def _renamed(overrides: str) -> str:
    return cycle.renamed(overrides, _PLACES)


READER: Final = _Reader()


def parts(framework: Framework) -> FrameworkParts:
    """Those of one backend."""
    if framework == Framework.NEMO_RL_MEGATRON:
        return cycle.megatron_parts(framework, Framework.MEGATRON_BRIDGE, _MegatronSpelling)
    facts = replace(
        trainer.FACTS,
        framework=framework,
        label="NeMo-RL",
        versions=("0.5",),
        newest_with_experts=None,
        key_options=READER.options,
    )
    return stack.torch_parts(
        facts, _Spelling, jobs=_Jobs, memory=trainer.TrainerMemory, dialect="other"
    )
