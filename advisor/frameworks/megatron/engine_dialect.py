"""Dialects whose trainer is Megatron: their jobs are Megatron's, in other words.

`megatron` of configs/options/NAME.json: the sections of its keys that hold Megatron's fields, what
is `assumed` of them, `switch`, which chooses the trainer, `heads`, which its implementation of the
loss is in place of another's (or of none), `renamed`, keys by those of the other trainer, and for
printing where the degrees of the layout stand, and the places of Bridge's other overrides.
"""

import shlex
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct, convert
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.frameworks.cycle_dialect import CycleReader, cycle_of, said_of, words_of
from advisor.frameworks.dialect_rows import file_of
from advisor.frameworks.framework_parts import FrameworkParts, HarnessRuns
from advisor.frameworks.megatron.framework import MegatronSpelling, parts
from advisor.frameworks.megatron.lint.option_values import is_shape
from advisor.frameworks.megatron.lint.reader import MegatronReader, configuration_of
from advisor.frameworks.megatron.lint.settings import KINDS, ReadSettings
from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.megatron.supported_jobs import MegatronJobs
from advisor.frameworks.names import Framework
from advisor.frameworks.part_types import JobChange
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.presets import load_model, model_names
from advisor.plan.recompute_plan import Setting
from advisor.reading.read_configuration import (
    Checked,
    Keys,
    LentJob,
    ReadConfiguration,
    ReadValue,
    known,
)

_READER: Final = MegatronReader()
_TAKEN: Final = ("rl.", "head.", "samples.", "tuning.")
_BATCH: Final = ("job.seq_length", "job.micro_batch_size", "job.global_batch_size")
_LONG: Final = 1 << 16
"""A size that every degree divides."""
_NOTHING: Final = (None, "null", "None", "")
_DEGREES: Final = (
    *("tensor_model_parallel_size", "sequence_parallel", "context_parallel_size"),
    *("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size"),
)
_HEAD: Final = "head.implementation"
_FSDPS: Final = ("layout.", "job.", "recompute")


class Trainer(Struct, frozen=True, kw_only=True):
    """See above."""

    switch: dict[str, Any] = {}
    heads: dict[str, str] = {}
    renamed: dict[str, str] = {}
    sections: tuple[str, ...] = ()
    assumed: dict[str, Any] = {}
    degrees: str = ""
    places: dict[str, str] = {}


def trainer_of(name: str) -> Trainer:
    """That of a dialect."""
    return convert(file_of(name)["megatron"], Trainer)


class MegatronKeys(Keys, kw_only=True):
    """Keys of a dialect, and what of them is Megatron's."""

    megatron: ReadSettings


class MegatronCycleReader(CycleReader):
    """A reader of a dialect that may train with Megatron; the framework is then NAME_megatron."""

    def trains_with_megatron(self, keys: Keys) -> bool:
        """Whether it does."""
        return True

    def megatrons(self, keys: Keys) -> ReadSettings:
        """Megatron's fields among the keys, by their last names. They are Bridge's, which makes the
        model of a checkpoint."""
        own = trainer_of(str(self.framework))
        read = ReadSettings(place=keys.place, is_whole=True)
        read.given.framework = Framework.MEGATRON_BRIDGE
        for name, value in own.assumed.items():
            text = f"{name} by default"
            _put(read, name, ReadValue(value=value, written=text, place=keys.place))
        for section in own.sections:
            for name in keys.under(section):
                given = keys.values.get(f"{section}.{name}")
                if given is not None and given.value not in _NOTHING:
                    _put(read, name, given)
        return read

    def _configuration(self, keys: Keys) -> ReadConfiguration:
        found, other = super()._configuration(keys), f"{self.framework}_megatron"
        if not self.trains_with_megatron(keys):
            return replace(found, takes_over=(other,))
        return self.on_megatron(other, found, self.megatrons(keys))

    def on_megatron(
        self, framework: str, keyed: ReadConfiguration, read: ReadSettings
    ) -> ReadConfiguration:
        """Megatron's configuration, with the batch and the phases of the keys."""
        own, each = configuration_of(read), keyed.values.items()
        its = {path: one for path, one in each if path.startswith(_TAKEN) or path in _BATCH}
        heads, head = trainer_of(str(self.framework)).heads, its.get(_HEAD)
        if (name := heads.get(head.value if head else "")) is not None:
            usual = ReadValue(value=name, written="", place=own.place, omitted=True)
            its[_HEAD] = head.meaning(name) if head else usual
        settled = set(its)
        if keyed.model in model_names():  # whose shape the checkpoint has
            settled |= {row.ours for row in SETTINGS.values() if is_shape(row)}
        keys = {name: getattr(keyed.settings, name) for name in Keys.__struct_fields__}
        return replace(
            own,
            framework=framework,
            version="",
            takes_over=(str(self.framework),),
            values={**own.values, **its},
            model=keyed.model or own.model,
            num_gpus=keyed.num_gpus,
            untaken=(*own.untaken, *keyed.untaken),
            unread=keyed.unread or own.unread,
            unknown=(*(one for one in own.unknown if one.path not in settled), *keyed.unknown),
            settings=MegatronKeys(**keys, megatron=read),
            recipe=(),
            whole=True,
        )

    def check(self, configuration: ReadConfiguration, version: str | None) -> Checked:
        """With what Megatron's own rules find."""
        checked = super().check(configuration, version)
        keys = configuration.settings
        if not isinstance(keys, MegatronKeys):
            return checked
        model, lent = configuration.model, None
        if keys.megatron.is_whole and model in model_names():  # whose shape Bridge reads
            said = {path.partition(".")[2]: configuration.values.get(path) for path in _BATCH}
            sizes: dict[str, Any] = {n: one.value if one else _LONG for n, one in said.items()}
            lent = LentJob(load_model(model), ParallelLayout(), JobConfig(**sizes), "", True)
        own = _READER.check(replace(configuration_of(keys.megatron), lent=lent), "")
        found = (*own.findings, *checked.findings)
        return replace(checked, understood=own.understood, findings=found)


def _put(read: ReadSettings, name: str, given: ReadValue) -> None:
    read.put_loose(name, given.value, given.written, given.place)
    if name in KINDS and known(given.value):
        read.put(name, given.value, given.written, given.place)


class BridgeSpelling(MegatronSpelling):
    """Bridge's overrides in the dialect's sections."""

    dialect = ""
    reader: CycleReader

    def said(self, job: Job) -> dict[str, Any]:
        """The job by the names of the rows, without what is FSDP's alone."""
        rows = {row.name: row.ours for row in self.reader.rows}
        said = said_of(self.dialect, job)
        names = trainer_of(self.dialect).renamed
        kept = {
            names.get(k, k): v
            for k, v in said.items()
            if rows.get(k) in _BATCH or not rows.get(k, "").startswith(_FSDPS)
        }
        engine = cycle_of(self.dialect).supervised.engine
        supervised = engine and not job.config.rl.algorithm.rolls_out
        return (engine if supervised else trainer_of(self.dialect).switch) | kept

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """Megatron's, as Bridge has them."""
        return self.moved(super().setting_flags(setting, job), job)

    def layout_flags(self, job: Job) -> str:
        """Both."""
        own = words_of(self.dialect, self.said(job), job)
        return f"{own} {self.moved(super().layout_flags(job), job)}"

    def assumed_flags(self, job: Job) -> str:
        """What a prediction rests on."""
        return self.moved(super().assumed_flags(job), job)

    def omitted(self, job: Job) -> str:
        """The model."""
        return ""

    def moved(self, overrides: str, job: Job) -> str:
        """Overrides below the dialect's sections; what has no place there is left out."""
        own, cycle, words = trainer_of(self.dialect), cycle_of(self.dialect), list[str]()
        places = {f"model.{name}=": f"{own.degrees}{name}=" for name in _DEGREES} | own.places
        for word in shlex.split(overrides):
            start = next(filter(word.startswith, places), None)
            if start is not None:
                words.append(cycle.written(places[start], job) + word.removeprefix(start))
        return shlex.join(words)


class _Jobs(MegatronJobs):
    """Those of `base`. Packed rows differ in length, which no CUDA graph takes."""

    def job_changes(self, job: Job) -> Iterator[JobChange]:
        """Those that the dialect has words for."""
        says = parts_of(job.config.framework).spelling.layout_flags
        for change in super().job_changes(job):
            with suppress(UserError):
                if "cuda_graph" not in change.words and says(change.make()) != says(job):
                    yield change


def megatron_parts(
    reader: CycleReader,
    framework: Framework,
    spelling: type[MegatronSpelling] = BridgeSpelling,
    base: Framework = Framework.MEGATRON_BRIDGE,
) -> FrameworkParts:
    """Megatron's parts as `base` has them in its newest release."""
    its = spelling(base)
    its.dialect, its.reader = str(reader.framework), reader  # type: ignore[attr-defined]
    return replace(
        parts(base),
        jobs=_Jobs(base),
        family=(framework,),
        shown=(framework,),
        spelling=its,
        harness=HarnessRuns(framework, "other"),
        cycles="cycle" in file_of(str(reader.framework)),
    )
