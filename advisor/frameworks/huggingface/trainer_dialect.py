"""Dialects of Hugging Face's Trainer: its memory, layers and settings in other words."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.base.rule import Match
from advisor.frameworks import dialect
from advisor.frameworks.deepspeed.options import SHARDINGS
from advisor.frameworks.dialect_rows import names_of, nested, renamed, rows_of, written
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.huggingface import framework as trainer
from advisor.frameworks.huggingface.options import CHECKPOINTING, FILE, FSDP, OPTIONS, PARALLELISM
from advisor.frameworks.huggingface.reader import HuggingFaceReader
from advisor.frameworks.huggingface.training_arguments import (
    job_arguments,
    training_arguments,
    words,
)
from advisor.frameworks.names import Framework
from advisor.frameworks.torch.setting import Granularity, TorchSetting, as_torch
from advisor.job.job import Job
from advisor.job.layout import DataParallelSharding
from advisor.job.reinforcement import Algorithm, Reference
from advisor.models.options import CpCommType
from advisor.plan.recompute_plan import Setting
from advisor.reading import key_rules
from advisor.reading.read_configuration import Keys, ReadConfiguration, ReadValue, UnknownValue


class DialectJobs(dialect.DialectJobs, trainer.TrainerJobs):
    """A Trainer's."""


class EngineJobs(DialectJobs):
    """Of engines of their own, which reduce gradients in fp32 unless told otherwise."""

    reduce_dtype: ClassVar[DType | None] = None


class DialectSpelling(trainer.TrainerSpelling):
    """The dialect's options, on its command line or in its file."""

    def of_setting(self, setting: TorchSetting, job: Job) -> dict[str, Any]:
        """What says the setting, in the Trainer's words."""
        off = {CHECKPOINTING[1]: False} if setting.granularity is Granularity.NONE else {}
        return off | dict(training_arguments(setting))

    def of_job(self, job: Job) -> dict[str, Any]:
        """What says the job, in the Trainer's words; what DeepSpeed's file says is not FSDP's."""
        said, file = dict(job_arguments(job)), job.config.framework == Framework.DEEPSPEED
        return {key: one for key, one in said.items() if not (file and key.startswith("fsdp"))}

    def finished(self, said: dict[str, Any], job: Job) -> dict[str, Any]:
        """All that is said, once it is in the dialect's words."""
        return said

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """Its options of the checkpointing."""
        own = self.of_setting(as_torch(setting), job)
        return words(renamed(self.facts.framework, own).items())

    def layout_flags(self, job: Job) -> str:
        """All others."""
        return words(self._job(job).items())

    def environment(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """Without context parallelism where it is an option (ms-swift's)."""
        own, said = self.facts.context_kinds == (CpCommType.A2A,), super().environment(setting, job)
        return tuple(one for one in said if not (own and PARALLELISM.upper() in one))

    def omitted(self, job: Job) -> str:
        """The model."""
        return ""

    def _job(self, job: Job) -> dict[str, Any]:
        name = self.facts.framework
        return self.finished(renamed(name, self.of_job(job)) | written(name, job), job)

    def config_file(self, setting: Setting, job: Job) -> str:
        """All as the YAML that the program reads."""
        own = renamed(self.facts.framework, self.of_setting(as_torch(setting), job))
        import yaml

        return yaml.safe_dump(nested(self._job(job) | own), sort_keys=False)


EVERY: Final = (Granularity.NONE, Granularity.FULL, Granularity.SELECTIVE)
_STAGE: Final = re.compile(r"(?:zero|ds_z|stage)[_-]?(\d)", re.IGNORECASE)
"""The stage of ZeRO in the name of a file of DeepSpeed, as the frameworks' own are called."""
_FILES: Final = ("deepspeed", "config_file", "accelerate_config")
"""Options that name one, or Accelerate's file of the same."""


class TrainerDialectReader(HuggingFaceReader):
    """Reads what one of them is given; its rules are those of configs/rules/NAME.json, and a
    Trainer's. weighs: whether GRPO has a reference where `beta` is left out; None: never."""

    takes_over: ClassVar[tuple[Framework, ...]] = (Framework.HUGGINGFACE, Framework.DEEPSPEED)
    below = OPTIONS
    own = True
    weighs: ClassVar[bool | None] = None

    @classmethod
    def unknown_keys(cls, keys: Keys) -> Iterator[Match]:
        """Keys that stand in a document."""
        return unknown_names(str(cls.framework), keys)

    def rules_of(self, keys: Keys) -> tuple[key_rules.KeyRule, ...]:
        """Its own first, in place of the Trainer's on unknown ones."""
        above = (one for one in super().rules_of(keys) if one.fault != "unknown_argument")
        return (*self.rules, *above)

    def derived(self, keys: Keys, said: Mapping[str, Any]) -> dict[str, Any]:
        """The stage of ZeRO by the name of a file; the reference of pairs, which is the model
        itself where an adapter can be switched off, else a second one."""
        found = super().derived(keys, said)
        file = next((text for key in _FILES if (text := str(keys.get(key) or ""))), "")
        if stage := _STAGE.search(Path(file).name):
            found["layout.data_parallel_sharding"] = SHARDINGS.get(int(stage[1]))
            offloads = "offload" in file
            found["job.optimizer_cpu_offload"] = offloads and "offload_param" not in file
            found["job.param_cpu_offload"] = offloads and stage[1] == "3"
        shards = file or keys.has("fsdp") or any(keys.under(FSDP)) or "launcher" in keys.about
        if not shards and keys.about["kind"] != "python":  # DistributedDataParallel
            found["layout.data_parallel_sharding"] = DataParallelSharding.NONE
        if its := reference(keys, said, self.weighs):
            found["rl.reference"] = its
        return found

    def unknown(self, keys: Keys) -> Iterator[UnknownValue]:
        """Not a file whose name tells the stage."""
        found = super().unknown(keys)
        yield from (one for one in found if not _STAGE.search(Path(one.text).name))

    def _configuration(self, keys: Keys) -> ReadConfiguration:
        """DeepSpeed's where a file of Accelerate's is called so."""
        read = super()._configuration(keys)
        named = any(_STAGE.search(Path(str(keys.get(key) or "")).name) for key in _FILES)
        if named or read.hands_to:
            its = ReadValue(value=str(self.framework), written="", place=keys.place, omitted=True)
            values = {**read.values, "job.trainer": its}
            values.pop("job.weights_dtype", None)  # its engine casts all weights
            read = replace(read, hands_to=Framework.DEEPSPEED, values=values)
        return read


def reference(keys: Keys, said: Mapping[str, Any], weighs: bool | None) -> Reference | None:
    """The model that pairs or, by `beta`, texts are compared with, unless its log-probabilities are
    there before: the trained one where an adapter can be switched off, else a second one. weighs:
    see TrainerDialectReader."""
    algorithm, beta = said.get("rl.algorithm"), keys.get("beta")
    by_beta = weighs if beta is None else weighs is not None and str(beta) not in ("0", "0.0")
    is_weighed = algorithm == Algorithm.DPO or (algorithm == Algorithm.GRPO and by_beta)
    if not is_weighed:
        return None
    if keys.truth("precompute_ref_log_probs"):
        return Reference.NONE
    has_adapter = said.get("tuning.adapter") not in (None, "none")
    return Reference.ADAPTER_OFF if has_adapter else Reference.GPU


def unknown_names(framework: str, keys: Keys) -> Iterator[Match]:
    """Keys that stand in a document and are none of a framework's, nor of a launcher's file."""
    names = frozenset(names_of(framework))
    paths = {row.name: row.ours for row in rows_of(framework) if row.ours}
    of_launcher = {row.name.partition(".")[0] for row in FILE}
    for key, given in keys.values.items():
        name = key.partition(".")[0]
        stands = given.written.lstrip("-").replace("-", "_").partition(".")[0] == name
        if stands and not given.omitted and name not in names | of_launcher:
            its = paths.get(key)
            newer = next((n for n, path in paths.items() if path == its and n in names), name)
            fix = key_rules.did_you_mean(newer, names, 0.75, f"drop {name}")
            yield Match(fix=fix, found=name, place=given.place)


def trainer_parts(
    reader: TrainerDialectReader,
    release: str,
    *,
    spelling: type[DialectSpelling] = DialectSpelling,
    memory: type[trainer.TrainerMemory] = trainer.TrainerMemory,
    settings: type[trainer.TrainerSettings] = trainer.TrainerSettings,
    **its: Any,
) -> FrameworkParts:
    """The parts of a dialect in its one known release; `its` are facts of its own."""
    return dialect.dialect_parts(
        reader,
        release,
        trainer.FACTS,
        spelling=spelling,
        jobs=DialectJobs,
        memory=memory,
        settings=settings,
        **{"granularities": EVERY, "policies": (), "offloads_all": False, **its},
    )
