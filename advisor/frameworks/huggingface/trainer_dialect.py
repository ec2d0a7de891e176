"""Dialects of Hugging Face's Trainer: its memory, layers and settings in other words."""

from typing import Any, ClassVar, Final

import yaml
from msgspec.structs import replace

from advisor.frameworks.dialect_rows import as_it_runs, nested, options_of, renamed, written
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.huggingface import framework as trainer
from advisor.frameworks.huggingface.options import CHECKPOINTING, OPTIONS
from advisor.frameworks.huggingface.reader import HuggingFaceReader
from advisor.frameworks.huggingface.training_arguments import (
    job_arguments,
    training_arguments,
    words,
)
from advisor.frameworks.names import Framework
from advisor.frameworks.torch import stack
from advisor.frameworks.torch.setting import NONE, TorchSetting, as_torch
from advisor.job.job import Job, JobConfig
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Setting
from advisor.reading import key_rules
from advisor.reading.document_keys import Keys

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
        off = {CHECKPOINTING[1]: False} if setting == NONE else {}
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


class TrainerDialectReader(HuggingFaceReader):
    """Reads what one of them is given; its rules are those of configs/rules/NAME.json, and a
    Trainer's."""

    takes_over: ClassVar[tuple[Framework, ...]] = (Framework.HUGGINGFACE,)
    own = True

    def __init_subclass__(cls) -> None:
        """Options and rules follow from the name."""
        cls.options = options_of(str(cls.framework), OPTIONS)
        cls.rules = tuple(key_rules.written(str(cls.framework)))

    def rules_of(self, keys: Keys) -> tuple[key_rules.KeyRule, ...]:
        """Its own first."""
        return (*self.rules, *super().rules_of(keys))


def trainer_parts(
    reader: TrainerDialectReader,
    release: str,
    *,
    spelling: type[DialectSpelling] = DialectSpelling,
    jobs: type[DialectJobs] = DialectJobs,
    memory: type[trainer.TrainerMemory] = trainer.TrainerMemory,
) -> FrameworkParts:
    """The parts of a dialect in its one known release."""
    facts = replace(
        trainer.FACTS,
        framework=str(reader.framework),
        label=reader.label,
        versions=(release,),
        newest_with_experts=None,
        key_options=reader.options,
    )
    parts = stack.torch_parts(
        facts, spelling, settings=trainer.TrainerSettings, jobs=jobs, memory=memory, dialect="other"
    )
    return parts
