"""NeMo-RL: what of it is no row of configs/options/nemo_rl.json.

Source: NeMo-RL 7ea279a examples/configs, nemo_rl/models/policy, algorithms, megatron/setup.py.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from advisor.answer.answer import Rejection
from advisor.frameworks.cycle_dialect import CycleSpelling, Made, numbers, words_of
from advisor.frameworks.dialect import dialect_parts
from advisor.frameworks.framework_parts import FrameworkParts, OptimumSpace
from advisor.frameworks.huggingface import framework as trainer
from advisor.frameworks.huggingface.trainer_dialect import EngineJobs
from advisor.frameworks.megatron import engine_dialect
from advisor.frameworks.megatron.candidates import MegatronSettings
from advisor.frameworks.megatron.lint.settings import ReadSettings
from advisor.frameworks.megatron.setting import NONE, Granularity, Method, as_megatron, full
from advisor.frameworks.names import Framework
from advisor.frameworks.torch.setting import Granularity as Checkpoints
from advisor.job.job import Job
from advisor.plan.recompute_plan import Setting
from advisor.reading.inherited import DEFAULTS
from advisor.reading.read_configuration import Document, Keys
from advisor.reading.shell import Note

_MEGATRON: Final = "megatron_cfg"
_SWITCH: Final = "activation_checkpointing"
_KIND: Final = "recompute_granularity"
_RESOURCES: Final = "generation.colocated.resources"
_PACKING: Final = "sequence_packing.enabled"
_TOKENS: Final = "sequence_packing.train_mb_tokens"
_LENGTH: Final = ("max_total_sequence_length", "train_micro_batch_size")
_REFERENCE: Final = re.compile(r"\$\{([\w.]+)\}")
_FORWARD: Final = "sequence_packing.logprob_mb_tokens"
_PROGRAM: Final = re.compile(r"\brun_(sft|dpo|rm)")


class _Reader(engine_dialect.MegatronCycleReader):
    """YAML that inherits another, and words of Hydra over it."""

    framework = Framework.NEMO_RL
    label = "NeMo-RL"

    def find(self, document: Document) -> Iterator[Keys]:
        """With values that refer to others, and the algorithm of the program or of a section."""
        for keys in super().find(document):
            program = _PROGRAM.search(" ".join(getattr(document, "texts", ())))
            sections = [name for name in ("grpo", "sft", "dpo", "rm") if any(keys.under(name))]
            kind = program[1] if program else next(iter(sections), "grpo")
            keys.put("algorithm", "sft" if kind == "rm" else kind, keys.place, f"run_{kind}.py")
            base = keys.get(DEFAULTS)
            if base is not None and Path(str(base)).stem != "grpo_math_1B":  # has the defaults
                keys.unread = (Note(f"{base}, which it inherits", keys.where(DEFAULTS)),)
            for key, one in list(keys.values.items()):
                text = str(one.value)
                if "${mul:" in text:  # of a budget, which is that product anyway
                    del keys.values[key]
                elif reference := _REFERENCE.fullmatch(text):
                    keys.values[key] = one.meaning(keys.get(self.short(reference[1])))
            yield keys

    def num_gpus(self, keys: Keys) -> int | None:
        """Without those of engines that have their own."""
        nodes, each = numbers(keys, self.cycle.gpus)
        if keys.truth("generation.colocated.enabled") is False:
            alone = keys.number(f"{_RESOURCES}.gpus_per_node") if nodes == 1 else None
            each -= alone or 0
            nodes -= keys.number(f"{_RESOURCES}.num_nodes") or 0 if nodes > 1 else 0
        return max(0, nodes * each) or None

    def is_supervised(self, keys: Keys) -> bool:
        """run_sft.py, run_rm.py."""
        return str(keys.get("algorithm")) == "sft"

    def trains_with_megatron(self, keys: Keys) -> bool:
        return keys.truth(f"{_MEGATRON}.enabled") is True

    def made(self, keys: Keys, said: Mapping[str, Any]) -> Iterator[tuple[str, Made]]:
        """Tokens of a microbatch are counted before context parallelism cuts them."""
        section = _MEGATRON if self.trains_with_megatron(keys) else "dtensor_cfg"
        ranks = keys.number(f"{section}.context_parallel_size") or 1
        longest, micro = said["job.seq_length"], said["job.micro_batch_size"]
        packs = keys.truth(_PACKING) is not False or keys.truth("dynamic_batching.enabled")
        if packs:
            tokens = (keys.number(_TOKENS) or longest * micro) // ranks
            yield "samples.token_budget", (tokens, (_TOKENS, *_LENGTH))
            yield "job.micro_batch_size", (1, _LENGTH[1:])
            batch = said["rl.log_prob_micro_batch_size"]
            tokens = (keys.number(_FORWARD) or longest * (batch or micro)) // ranks
            yield "rl.log_prob_token_budget", (tokens, (_FORWARD, "logprob_batch_size", *_LENGTH))
        else:
            budgets = "samples.token_budget", "rl.log_prob_token_budget"
            yield from ((path, (None, ())) for path in budgets)
        if keys.get("algorithm") == "dpo":
            yield from ((f"rl.{name}", (None, ())) for name in ("engine", "sleep_level"))
        yield from super().made(keys, said)

    def megatrons(self, keys: Keys) -> ReadSettings:
        """Recompute as setup.py makes it: full means uniform, one layer."""
        start = f"{_MEGATRON}."
        left = (f"{start}recompute_", f"{start}empty_unused_memory_level")  # frees what is unused
        values = {k: v for k, v in keys.values.items() if not k.startswith(left)}
        if keys.truth(start + _SWITCH):
            made: dict[str, Any] = {_KIND: keys.get(start + _KIND) or "full"}
            if made[_KIND] == "full":
                made |= {"recompute_method": "uniform", "recompute_num_layers": 1}
            else:
                made["recompute_modules"] = keys.get(f"{start}recompute_modules") or ["core_attn"]
            values |= {start + name: keys.means(start + _SWITCH, one) for name, one in made.items()}
        return super().megatrons(replace(keys, values=values))


def _packing(said: dict[str, Any], job: Job) -> dict[str, Any]:
    if not job.config.rl.colocated:  # whose cluster has more GPUs than the training
        said = {key: value for key, value in said.items() if key not in READER.cycle.gpus}
    budget = job.config.samples.token_budget
    said[_PACKING] = budget is not None
    if budget is not None:
        said[_TOKENS] = budget * job.layout.context_parallel_size
    return said


class _Spelling(CycleSpelling):
    """Words of Hydra over a file."""

    def said(self, job: Job) -> dict[str, Any]:
        return _packing(super().said(job), job)


class _MegatronSpelling(engine_dialect.BridgeSpelling):
    """Bridge's overrides below megatron_cfg."""

    def said(self, job: Job) -> dict[str, Any]:
        return _packing(super().said(job), job)

    def setting_flags(self, setting: Setting, job: Job) -> str:
        own = as_megatron(setting)
        said: dict[str, Any] = {_SWITCH: own.granularity is not Granularity.NONE}
        if said[_SWITCH]:
            said[_KIND] = str(own.granularity)
        if own.granularity is Granularity.SELECTIVE:
            said["recompute_modules"] = list(own.modules or ())
        if own.offload_modules:
            said["fine_grained_activation_offloading"] = True
            said["offload_modules"] = [*own.offload_modules]
        said = {f"{_MEGATRON}.{name}": one for name, one in said.items()}
        return words_of(self.dialect, said, job)


class _MegatronSettings(MegatronSettings):
    """Bridge's, of which full recompute is one word."""

    def _without_words(self, setting: Setting) -> Iterator[Rejection]:
        own, said = as_megatron(setting), full(Method.UNIFORM, 1)
        if own.granularity is not Granularity.FULL:
            said = replace(NONE, granularity=own.granularity, modules=own.modules)
        said = replace(said, offload_modules=own.offload_modules)
        if said != own:
            why = f"NeMo-RL has no words for it and would run {said.spec}"
            file, rule = "NeMo-RL nemo_rl/models/megatron/setup.py", "words_of_nemo_rl"
            fix = f"use {said.spec}"
            yield Rejection(setting=own, rule=rule, reason=why, fix=fix, source=file)

    def check(self, setting: Setting, job: Job) -> tuple[Rejection, ...]:
        """With what would run as another."""
        return super().check(setting, job) or tuple(self._without_words(setting))

    def rejected(self, job: Job) -> tuple[Rejection, ...]:
        """And those that Bridge takes."""
        check = super().check
        legal = (one for one in self.tried(job) if not check(one, job))
        return (*super().rejected(job), *chain.from_iterable(map(self._without_words, legal)))


READER: Final = _Reader()


def parts(framework: Framework) -> FrameworkParts:
    """Those of one backend."""
    if framework == Framework.NEMO_RL_MEGATRON:
        found = engine_dialect.megatron_parts(READER, framework, _MegatronSpelling)
        own = _MegatronSettings(Framework.MEGATRON_BRIDGE)
        return replace(found, settings=own, optimum=OptimumSpace())
    return dialect_parts(
        READER,
        "0.5",
        trainer.FACTS,
        spelling=_Spelling,
        jobs=EngineJobs,
        memory=trainer.TrainerMemory,
        granularities=(Checkpoints.NONE, Checkpoints.FULL),
        policies=(),
        options=(),
    )
