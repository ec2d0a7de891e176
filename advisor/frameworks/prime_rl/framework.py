"""prime-rl: what of it is no row of configs/options/prime_rl.json.

Source: prime-rl 559b447 packages/prime-rl-configs/src/prime_rl/configs, src/prime_rl/trainer.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.frameworks import part_types
from advisor.frameworks.cycle_dialect import CycleReader, Made, no_cycle
from advisor.frameworks.dialect_rows import as_it_runs, written
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.huggingface.training_arguments import words
from advisor.frameworks.names import Framework
from advisor.frameworks.torch import plan, recompute_settings, stack, supported_jobs
from advisor.frameworks.torch.setting import Granularity, Modifier, as_torch
from advisor.frameworks.torchtitan import framework as titan
from advisor.job.job import Job, JobConfig
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.shape import RankShape
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Setting
from advisor.reading.document_keys import Keys

_OFF: Final = ("none", "null", "false")
_HEAD: Final = "model.fused_lm_head_token_chunk_size"
_GPUS: Final = ("deployment.num_train_gpus", "deployment.num_gpus")
_SFT: Final = ("data.batch_size", "data.micro_batch_size", "data.seq_len", "data.name")
_MOST_EXPERT_RANKS: Final = 8


class _Reader(CycleReader):
    """TOML and command line of its two trainers."""

    framework = Framework.PRIME_RL
    label = "prime-rl"
    model_key = "model.name"
    sections: ClassVar[Mapping[str, str]] = {"trainer.": ""}

    def made(self, keys: Keys, said: Mapping[str, Any]) -> Iterator[tuple[str, Made]]:
        """A microbatch is one packed row; a batch counts rollouts."""
        given = keys.get(_HEAD)
        off = str(given).lower() == "disabled"
        yield "head.implementation", ("prime_rl_logits" if off else "prime_rl", (_HEAD,))
        yield "head.chunk_size", (None if off else keys.number(_HEAD) or 8192, (_HEAD,))
        lora = (
            any(keys.under("model.lora"))
            or str(keys.get("model.lora") or "none").lower() not in _OFF
        )
        yield "tuning.adapter", ("lora" if lora else None, ("model.lora", "model.lora.rank"))
        if any(map(keys.has, _SFT)):
            yield "job.seq_length", (keys.number("data.seq_len") or 128, ("data.seq_len",))
            yield from no_cycle(said).items()
            return
        ranks = (self.num_gpus(keys) or 1) // (said["layout.context_parallel_size"] or 1)
        batch = said["job.global_batch_size"] or 128
        yield "job.global_batch_size", (-(-batch // ranks) * ranks, ("orchestrator.batch_size",))
        yield "rl.algorithm", ("grpo", ())
        yield "rl.engine", ("vllm", ())
        yield "rl.colocated", (False, ())

    def recompute(self, keys: Keys) -> str | None:
        """On unless it is said to be off; offloading switches it on."""
        away = not _is_off(keys, "model.ac_offloading", usual=False)
        if _is_off(keys, "model.ac", usual=False) and not (
            away and any(keys.under("model.ac_offloading"))
        ):
            return "none"
        if keys.get("model.ac.mode") == "selective":
            return None
        every = keys.number("model.ac.freq") or 1
        return (f"selective:{every}" if every > 1 else "full") + "+offload" * away

    def num_gpus(self, keys: Keys) -> int | None:
        """The trainer's."""
        said = (keys.number(name) for name in _GPUS)
        return next(filter(None, said), None) or super().num_gpus(keys) or 1


def _is_off(keys: Keys, name: str, *, usual: bool) -> bool:
    return str(keys.get(name)).lower() in _OFF if keys.has(name) else usual


class _Jobs(supported_jobs.TorchJobs):
    """torchtitan's degrees without tensor parallelism; shards are fp32."""

    def __init__(self, facts: supported_jobs.StackFacts) -> None:
        super().__init__(facts)
        self.degrees = replace(self.degrees, experts=True)

    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        """See dialect_rows.as_it_runs."""
        model, config = super().configure(model, config, given)
        config = replace(config, weights_dtype=config.weights_dtype or DType.FP32)
        return model, as_it_runs(self.framework, config, given)

    layout = titan.TitanJobs.layout


class _Memory(titan.TitanMemory):
    """Blocks in checkpoints, each compiled, as torchtitan has them."""

    def semantics(self, job: Job) -> plan.Semantics:
        """torch's checkpoint stops early; layers 0, n, 2n, … are in one."""
        return replace(super().semantics(job), starts_with_first=True)

    def fixed_memory(
        self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]
    ) -> part_types.FixedMemory:
        """States on the host are brought to the GPU whole for the step (optim/state_offload.py)."""
        found = super().fixed_memory(job, shape, chunks)
        if not job.config.optimizer_cpu_offload:
            return found
        states = found.static.optimizer
        return replace(
            found,
            static=replace(found.static, optimizer=0),
            working_set=found.working_set
            and replace(found.working_set, step=found.working_set.step + states),
        )


class _Spelling(stack.TorchSpelling):
    """Options of `rl` or `sft`."""

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """Both switches."""
        own, said = as_torch(setting), {"ac": "None", "ac-offloading": "None"}
        if own.granularity is not Granularity.NONE:
            said = {
                "ac.freq": str(own.number or 1),
                **({} if own.offloads else {"ac-offloading": "None"}),
            }
        return words((f"{self._model(job)}{name}", value) for name, value in said.items())

    def _model(self, job: Job) -> str:
        return "trainer.model." if job.config.rl.has_phases else "model."

    def layout_flags(self, job: Job) -> str:
        """All else."""
        config, head = job.config, job.config.head
        rl = config.rl.has_phases
        own = {"deployment.num_train_gpus" if rl else "deployment.num_gpus": job.num_gpus}
        own |= written(Framework.PRIME_RL, job)
        if not rl:
            names = {"seq_len": "data.seq_len", "orchestrator.batch_size": "data.batch_size"}
            own = {names.get(name, name): value for name, value in own.items()}
        elif own.get("data.micro_batch_size"):
            own.pop("data.micro_batch_size")
        off = head.implementation == "prime_rl_logits"
        own[_HEAD] = "disabled" if off else head.chunk_size or 8192
        model = self._model(job)
        said = {
            model + k.removeprefix("model.") if k.startswith("model.") else k: v
            for k, v in own.items()
        }
        return words((name.replace("_", "-"), value) for name, value in said.items())


READER: Final = _Reader()


def parts() -> FrameworkParts:
    """torchtitan's way of FSDP2 with per-block compilation."""
    facts = replace(
        titan.FACTS,
        framework=Framework.PRIME_RL,
        label="prime-rl",
        versions=("0.5",),
        newest_with_experts=None,
        key_options=READER.options,
        own_options=(
            *titan.FACTS.own_options,
            *("weights_dtype", "optimizer_cpu_offload", "attn_implementation"),
        ),
        granularities=(Granularity.NONE, Granularity.FULL, Granularity.SELECTIVE),
        policies=(),
        options=(Modifier.OFFLOAD,),
    )
    return stack.torch_parts(
        facts,
        _Spelling,
        settings=recompute_settings.TorchSettings,
        jobs=_Jobs,
        memory=_Memory,
        dialect="other",
    )
