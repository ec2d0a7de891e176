"""Dialects of Hugging Face's Trainer: its memory, layers and settings in other words."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml
from msgspec.structs import replace

from advisor.base.rule import Match, Verdict
from advisor.frameworks.deepspeed.options import SHARDINGS
from advisor.frameworks.dialect_rows import (
    as_it_runs,
    names_of,
    nested,
    options_of,
    renamed,
    written,
)
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.huggingface import framework as trainer
from advisor.frameworks.huggingface.options import CHECKPOINTING, FILE, FSDP, OPTIONS
from advisor.frameworks.huggingface.reader import HuggingFaceReader
from advisor.frameworks.huggingface.training_arguments import (
    job_arguments,
    training_arguments,
    words,
)
from advisor.frameworks.key_rows import written as written_rules
from advisor.frameworks.names import Framework
from advisor.frameworks.torch import stack
from advisor.frameworks.torch.setting import Granularity, TorchSetting, as_torch
from advisor.job.job import Job, JobConfig
from advisor.job.layout import DataParallelSharding
from advisor.job.reinforcement import Algorithm, Reference
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Setting
from advisor.reading import key_rules
from advisor.reading.document_keys import Keys
from advisor.reading.read_configuration import ReadConfiguration, UnknownValue

_OLDEST_NAMES: Final = "4"
"""transformers 5 takes the names of 4 as well, and dialects know no others."""


class DialectJobs(trainer.TrainerJobs):
    """A Trainer's jobs, with what the dialect does otherwise."""

    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        """See dialect_rows.as_it_runs."""
        model, config = super().configure(model, config, given)
        return model, as_it_runs(self.framework, config, given)


class DialectSpelling(trainer.TrainerSpelling):
    """The dialect's options, on its command line or in its file."""

    def of_setting(self, setting: TorchSetting, job: Job) -> dict[str, Any]:
        """What says the setting, in the Trainer's words."""
        off = {CHECKPOINTING[1]: False} if setting.granularity is Granularity.NONE else {}
        return off | dict(training_arguments(setting, _OLDEST_NAMES))

    def of_job(self, job: Job) -> dict[str, Any]:
        """What says the job, in the Trainer's words."""
        return dict(job_arguments(job))

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

    def omitted(self, job: Job) -> str:
        """The model."""
        return ""

    def _job(self, job: Job) -> dict[str, Any]:
        name = self.facts.framework
        return self.finished(renamed(name, self.of_job(job)) | written(name, job), job)

    def config_file(self, setting: Setting, job: Job) -> str:
        """All as the YAML that the program reads."""
        own = renamed(self.facts.framework, self.of_setting(as_torch(setting), job))
        return yaml.safe_dump(nested(self._job(job) | own), sort_keys=False)


EVERY: Final = (Granularity.NONE, Granularity.FULL, Granularity.SELECTIVE)
_STAGE: Final = re.compile(r"(?:zero|ds_z|stage)[_-]?(\d)", re.IGNORECASE)
"""The stage of ZeRO in the name of a file of DeepSpeed, as the frameworks' own are called."""
_FILES: Final = ("deepspeed", "config_file", "accelerate_config")
"""Options that name one, or Accelerate's file of the same."""


class TrainerDialectReader(HuggingFaceReader):
    """Reads what one of them is given; its rules are those of configs/rules/NAME.json, and a
    Trainer's. unknown_key: what becomes of a key that its parsers do not know, and whether it is
    refused; empty: nothing is said."""

    takes_over: ClassVar[tuple[Framework, ...]] = (Framework.HUGGINGFACE, Framework.DEEPSPEED)
    unknown_key: ClassVar[tuple[str, Verdict] | None] = None
    own = True

    def __init_subclass__(cls) -> None:
        """Options and rules follow from the name."""
        name = str(cls.framework)
        cls.options = options_of(name, OPTIONS)
        cls.rules = tuple(written_rules(name))
        if cls.unknown_key is not None:
            reason, verdict = cls.unknown_key
            unknown = partial(unknown_names, frozenset(names_of(name)))
            said = {"verdict": verdict, "source": cls.label, "fault": "unknown_key"}
            cls.rules = (
                *cls.rules,
                key_rules.key_rule("", unknown, f"{{found}}: {reason}", **said),
            )

    def rules_of(self, keys: Keys) -> tuple[key_rules.KeyRule, ...]:
        """Its own first."""
        return (*self.rules, *super().rules_of(keys))

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
        if not shards and DataParallelSharding.NONE in trainer.FACTS.shardings:
            found["layout.data_parallel_sharding"] = DataParallelSharding.NONE
        if self.has_reference(keys, said):
            has_adapter = said.get("tuning.adapter") not in (None, "none")
            found["rl.reference"] = Reference.ADAPTER_OFF if has_adapter else Reference.GPU
        return found

    def unknown(self, keys: Keys) -> Iterator[UnknownValue]:
        """Not a file whose name tells the stage."""
        found = super().unknown(keys)
        yield from (one for one in found if not _STAGE.search(Path(one.text).name))

    def _configuration(self, keys: Keys) -> ReadConfiguration:
        """DeepSpeed's where a file of Accelerate's is called so."""
        read = super()._configuration(keys)
        named = any(_STAGE.search(Path(str(keys.get(key) or "")).name) for key in _FILES)
        return replace(read, hands_to=Framework.DEEPSPEED) if named else read

    def has_reference(self, keys: Keys, said: Mapping[str, Any]) -> bool:
        """Whether losses are weighed by a reference model."""
        return said.get("rl.algorithm") == Algorithm.DPO


def unknown_names(names: frozenset[str], keys: Keys) -> Iterator[Match]:
    """Keys that stand in a document and are none of `names`, nor of a launcher's file."""
    of_launcher = {row.name.partition(".")[0] for row in FILE}
    for key, given in keys.values.items():
        name = key.partition(".")[0]
        stands = given.written.lstrip("-").replace("-", "_").partition(".")[0] == name
        if stands and not given.omitted and name not in names | of_launcher:
            fix = key_rules.did_you_mean(name, names, 0.75, f"drop {name}")
            yield Match(fix=fix, found=name, place=given.place)


def trainer_parts(
    reader: TrainerDialectReader,
    release: str,
    *,
    spelling: type[DialectSpelling] = DialectSpelling,
    jobs: type[DialectJobs] = DialectJobs,
    memory: type[trainer.TrainerMemory] = trainer.TrainerMemory,
    settings: type[trainer.TrainerSettings] = trainer.TrainerSettings,
    **its: Any,
) -> FrameworkParts:
    """The parts of a dialect in its one known release; `its` are facts of its own."""
    facts = replace(
        trainer.FACTS,
        framework=str(reader.framework),
        label=reader.label,
        versions=(release,),
        newest_with_experts=None,
        key_options=reader.options,
        **{"granularities": EVERY, "policies": (), "offloads_all": False, **its},
    )
    return stack.torch_parts(
        facts, spelling, settings=settings, jobs=jobs, memory=memory, dialect="other"
    )
