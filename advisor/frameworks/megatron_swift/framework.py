"""Megatron-SWIFT (ms-swift 4.6): what of it is no row of configs/options/megatron_swift.json.

Source: ms-swift 4.6.0 swift/megatron/arguments/megatron_args.py.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from advisor.base.rule import Match
from advisor.frameworks.cycle_dialect import CycleReader, Made
from advisor.frameworks.dialect_rows import names_of, rows_of, written
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.huggingface.trainer_dialect import reference, unknown_names
from advisor.frameworks.huggingface.training_arguments import words
from advisor.frameworks.megatron import engine_dialect
from advisor.frameworks.megatron.framework import MegatronSpelling
from advisor.frameworks.megatron.supported_jobs import MegatronJobs
from advisor.frameworks.names import Framework
from advisor.job.job import Job, JobConfig
from advisor.job.reinforcement import Algorithm
from advisor.models.presets import model_names
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Setting
from advisor.reading.read_configuration import Keys, ReadConfiguration, Untaken

_NAME: Final = str(Framework.MEGATRON_SWIFT)
_LENGTH, _TYPE = "max_length", "rlhf_type"
_SECTION: Final = "megatron"
_GRANULARITY: Final = "recompute_granularity"
_RELEASE: Final = "4.6"
_ETP: Final = "expert_tensor_parallel_size"
_BRIDGES: Final = {"accumulate_allreduce_grads_in_fp32": "grad_reduce_in_fp32", "fp8_format": "fp8"}
"""Names that Megatron Bridge has for its own."""
_OFF: Final = {"null": "none", "[]": "none"}
_TYPES: Final = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.uint8": "fp8"}


class _Reader(engine_dialect.MegatronCycleReader):
    """Options of `megatron sft`, `pt` and `rlhf`, and YAML of the same."""

    framework = Framework.MEGATRON_SWIFT
    label = "Megatron-SWIFT"

    def called(self, keys: Keys) -> str:
        return f"{self.label} {_RELEASE}"

    @classmethod
    def unknown_keys(cls, keys: Keys) -> Iterator[Match]:
        return unknown_names(_NAME, keys)

    def _configuration(self, keys: Keys) -> ReadConfiguration:
        """Megatron's fields under Bridge's names; `none` switches recompute off, and another kind
        than the usual one takes none of its options."""
        found = CycleReader._configuration(self, keys)
        own = {f"{_SECTION}.{_BRIDGES.get(k, k)}": one for k, one in keys.values.items()}
        read = self.megatrons(replace(keys, values=own))
        read.is_whole = found.model in model_names()  # else its shape is not known
        if (width := keys.number("tensor_model_parallel_size") or 1) == 1:
            read.put("sequence_parallel", False, "sequence_parallel", keys.place)
        if (width > 1 or keys.has("expert_model_parallel_size")) and not keys.has(_ETP):
            read.put(_ETP, 1, f"{_ETP} by default", keys.place)
        if "muon" in str(keys.get("optimizer")):  # _check_muon
            read.put("use_distributed_optimizer", False, "optimizer", keys.where("optimizer"))
        kind = keys.get(_GRANULARITY)
        if kind not in (None, "selective"):
            for name in (_GRANULARITY, "recompute_modules"):
                if kind == "none" or not keys.has(name):
                    read.put(name, None, f"{_GRANULARITY} {kind}", keys.where(_GRANULARITY))
        return self.on_megatron(_NAME, found, read)

    def untaken(self, keys: Keys) -> Iterator[Untaken]:
        """Megatron's options are its own reader's."""
        yield from (one for one in super().untaken(keys) if one.note)

    def made(self, keys: Keys, said: Mapping[str, Any]) -> Iterator[tuple[str, Made]]:
        """A reference where pairs or GRPO weigh one."""
        yield from super().made(keys, said)
        if said["rl.algorithm"] == Algorithm.GRPO and said["job.seq_length"]:
            length = said["job.seq_length"] + said["rl.response_length"]
            yield "job.seq_length", (length, (_LENGTH,))
        if its := reference(keys, said, weighs=True):
            yield "rl.reference", (its, (_TYPE,))

    def num_gpus(self, keys: Keys) -> int | None:
        return keys.num_gpus

    def recompute(self, keys: Keys) -> str | None:
        """Megatron's reader says it."""
        return None


class _Spelling(MegatronSpelling):
    """Bridge's fields as options of their own, those that it has."""

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """Megatron's recompute options; `none` where there is none."""
        return _options(super().setting_flags(setting, job))

    def layout_flags(self, job: Job) -> str:
        own = {_LENGTH: job.config.seq_length} | written(_NAME, job)
        if job.config.rl.algorithm is Algorithm.GRPO:
            own[_LENGTH] -= job.config.rl.response_length or 512
        return f"{words(own.items())} {_options(super().layout_flags(job))}"

    def omitted(self, job: Job) -> str:
        """Nothing: the options say all but the model."""
        return ""

    def assumed_flags(self, job: Job) -> str:
        """Those of them that the prediction rests on."""
        return _options(super().assumed_flags(job))


def _options(overrides: str) -> str:
    """`--name value` of `section.name=value`, where it has the name."""
    ours = {its: name for name, its in _BRIDGES.items()}
    names = {*names_of(_NAME)} - {row.name for row in rows_of(_NAME) if row.printed}
    found = {}
    for word in shlex.split(overrides):
        path, _, value = word.partition("=")
        name = path.rpartition(".")[2]
        name = ours.get(name, name)
        own_rows = path.startswith("peft.")  # which say adapters
        if name in names and not own_rows and (value not in _OFF or name == _GRANULARITY):
            listed = value.strip("[]").replace('"', "").split(",") if value[:1] == "[" else value
            found[name] = (_OFF | _TYPES).get(value, listed) if isinstance(listed, str) else listed
    return words(found.items())


READER: Final = _Reader()


class _Jobs(MegatronJobs):
    """Bridge's, whose adapters are mcore-bridge's."""

    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        """With adapters that are cut by tokens."""
        own = replace(config.tuning, cut_by_tokens=config.tuning.has_adapter)
        return super().configure(model, replace(config, tuning=own), given)


def parts() -> FrameworkParts:
    """Megatron Bridge's."""
    found = engine_dialect.megatron_parts(READER, Framework.MEGATRON_SWIFT, _Spelling)
    return replace(found, jobs=_Jobs(Framework.MEGATRON_BRIDGE))
