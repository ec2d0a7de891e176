"""prime-rl: what of it is no row of configs/options/prime_rl.json.

Source: prime-rl 559b447 packages/prime-rl-configs/src/prime_rl/configs, src/prime_rl/trainer.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.frameworks import part_types
from advisor.frameworks.cycle_dialect import CycleReader, CycleSpelling, Made, words_of
from advisor.frameworks.dialect import dialect_parts
from advisor.frameworks.dialect_rows import as_it_runs
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.names import Framework
from advisor.frameworks.torch import memory_model, plan, stack, supported_jobs
from advisor.frameworks.torch.setting import Granularity, Modifier, as_torch
from advisor.frameworks.torchtitan import framework as titan
from advisor.frameworks.torchtitan import sharding
from advisor.job.job import Job, JobConfig
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.shape import RankShape
from advisor.models.options import AttentionBackend
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Checkpoint, Setting
from advisor.reading.read_configuration import Document, Keys

_OFF: Final = ("none", "null", "false")
_AC: Final = "model.ac"
_AWAY: Final = "model.ac_offloading"
_HEAD: Final = "model.fused_lm_head_token_chunk_size"
_START: Final = "prime_rl_"
_WHOLE: Final = f"{_START}logits"
_GPUS: Final = ("deployment.num_train_gpus", "deployment.num_gpus")
_SUPERVISED: Final = ("data.batch_size", "data.micro_batch_size", "data.seq_len", "data.name")


class _Reader(CycleReader):
    """TOML and command lines of its two trainers."""

    framework = Framework.PRIME_RL
    label = "prime-rl"

    def find(self, document: Document) -> Iterator[Keys]:
        """A section without keys is on."""
        for keys in super().find(document):
            for key in [key for key, one in keys.values.items() if one.value == {}]:
                keys.values[key] = keys.means(key, True)
            yield keys

    def is_supervised(self, keys: Keys) -> bool:
        return any(map(keys.has, _SUPERVISED))

    def made(self, keys: Keys, said: Mapping[str, Any]) -> Iterator[tuple[str, Made]]:
        """A microbatch is one packed row; a batch counts rollouts, of which each may fill one."""
        lora = _is_on(keys, "model.lora", usual=False)
        named = ("model.lora", *(key for key in keys.values if key.startswith("model.lora.")))
        yield "tuning.adapter", ("lora" if lora else None, named)
        if self.is_supervised(keys):
            if said["head.implementation"] == _WHOLE:
                yield "head.implementation", (f"{_START}cross_entropy", (_HEAD,))
            yield "job.seq_length", (keys.number("data.seq_len") or 128, ("data.seq_len",))
        else:
            ranks = (self.num_gpus(keys) or 1) // (said["layout.context_parallel_size"] or 1)
            rows = -(-(said["job.global_batch_size"] or 128) // max(1, ranks)) * max(1, ranks)
            yield "job.global_batch_size", (rows, ("orchestrator.batch_size",))
        yield from super().made(keys, said)

    def recompute(self, keys: Keys) -> str | None:
        """On unless it is said to be off; offloading that is asked for switches it on."""
        away = _is_on(keys, _AWAY, usual=True)
        asked = away and (keys.has(_AWAY) or any(keys.under(_AWAY)))
        if not (_is_on(keys, _AC, usual=True) or asked):
            return "none"
        if keys.get(f"{_AC}.mode") == "selective":
            return None
        every = keys.number(f"{_AC}.freq") or 1
        return (f"selective:{every}" if every > 1 else "full") + "+offload" * away

    def num_gpus(self, keys: Keys) -> int | None:
        return next(filter(None, map(keys.number, _GPUS)), None) or keys.num_gpus or 1


def _is_on(keys: Keys, section: str, *, usual: bool) -> bool:
    """Whether a section is there, by its keys or a word for it."""
    given = str(keys.get(section)).lower() not in _OFF if keys.has(section) else usual
    return given or any(keys.under(section))


class _Jobs(supported_jobs.TorchJobs):
    """torchtitan's degrees without tensor parallelism; shards are fp32."""

    untuned = ()

    def __init__(self, facts: supported_jobs.StackFacts) -> None:
        super().__init__(facts)
        self.degrees = replace(self.degrees, experts=True)

    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        config = as_it_runs(self.framework, config, given)
        model, config = super().configure(model, config, given)
        if model.attention_backend is AttentionBackend.AUTO:  # FlashAttention 3
            model = replace(model, attention_backend=AttentionBackend.FUSED)
        return model, replace(config, weights_dtype=config.weights_dtype or DType.FP32)

    layout = titan.TitanJobs.layout


class _Memory(titan.TitanMemory):
    """Blocks in checkpoints, whose bytes are those of torchtitan's compiled ones."""

    parameter_seconds: ClassVar[float] = 493e-6
    """A stated fit: python -m research.steps.post_training."""
    runs_compiled: ClassVar[bool] = False
    """In a checkpoint that encloses a call which breaks the graph, FlashAttention's, torch.compile
    compiles nothing (tests/oracles/test_compiled_checkpoint.py); 22 published steps agree."""

    def semantics(self, job: Job) -> plan.Semantics:
        """torch's checkpoint_wrapper; layers 0, n, 2n, … are in one."""
        return plan.Semantics(hooked=Checkpoint.EARLY_STOP, starts_with_first=True)

    def fixed_memory(
        self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]
    ) -> part_types.FixedMemory:
        """One GPU is a group of one as well. States on the host are brought to the GPU whole for
        the step (optim/state_offload.py). A reduce-scatter's input is the computing stream's.
        States do not lie in what the first passes left: so say its published peaks with whole
        logits; the cause is not read."""
        found = memory_model.eager_memory(
            job, shape, chunks, root_holds_ends=False, wraps_one_gpu=True, pools_reductions=False
        )
        found, its = replace(found, thirds_with_model=3), found.working_set
        if not job.config.optimizer_cpu_offload or its is None:
            return found
        static, states = replace(found.static, optimizer=0), found.static.optimizer
        return replace(found, static=static, working_set=replace(its, step=its.step + states))


class _Settings(stack.TorchSettings):
    """torchtitan's degrees."""

    layout_rules = sharding.LAYOUT_RULES


class _Spelling(CycleSpelling):
    """Options of `rl`, or of `sft`, whose model is at the top."""

    def setting_flags(self, setting: Setting, job: Job) -> str:
        own = as_torch(setting)
        is_on = own.granularity is not Granularity.NONE
        said = {f"{_AC}.freq": own.num_layers or 1} if is_on else {_AC: "None"}
        return words_of(self.facts.framework, said | ({} if own.offloads else {_AWAY: "None"}), job)

    def said(self, job: Job) -> dict[str, Any]:
        said = super().said(job)
        if job.config.head.implementation in (_WHOLE, f"{_START}cross_entropy"):
            said[_HEAD] = "disabled"
        if job.config.tuning.has_adapter:
            said.setdefault("model.lora.rank", job.config.tuning.rank)
        return said


READER: Final = _Reader()


def parts() -> FrameworkParts:
    """FSDP2 with compiled blocks, as torchtitan has it."""
    return dialect_parts(
        READER,
        "0.5",
        titan.FACTS,
        spelling=_Spelling,
        settings=_Settings,
        jobs=_Jobs,
        memory=_Memory,
        own_options=(
            *titan.FACTS.own_options,
            *("weights_dtype", "optimizer_cpu_offload", "attn_implementation"),
            "tuning.num_adapters",
        ),
        granularities=(Granularity.NONE, Granularity.FULL, Granularity.SELECTIVE),
        policies=(),
        options=(Modifier.OFFLOAD,),
    )
