"""Dialects whose trainer is Megatron: their jobs are Megatron's, in other words."""

import shlex
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from advisor.frameworks.cycle_dialect import CycleReader
from advisor.frameworks.framework_parts import FrameworkParts, HarnessRuns
from advisor.frameworks.megatron.framework import MegatronSpelling, parts
from advisor.frameworks.megatron.lint.reader import MegatronReader, configuration_of
from advisor.frameworks.megatron.lint.settings import KINDS, ReadSettings
from advisor.frameworks.names import Framework
from advisor.reading.document_keys import Keys, known
from advisor.reading.read_configuration import Checked, ReadConfiguration

_READER: Final = MegatronReader()
_TAKEN: Final = ("rl.", "head.", "samples.", "tuning.")
_BATCH: Final = ("job.seq_length", "job.micro_batch_size", "job.global_batch_size")
_NOTHING: Final = (None, "null", "None", "")
DEGREES: Final = (
    *("tensor_model_parallel_size", "sequence_parallel", "context_parallel_size"),
    *("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size"),
)


class MegatronKeys(Keys, kw_only=True):
    """Keys of a dialect, and what of them is Megatron's."""

    megatron: ReadSettings


class MegatronCycleReader(CycleReader):
    """A reader of a dialect that may train with Megatron."""

    def on_megatron(
        self, framework: Framework, keyed: ReadConfiguration, read: ReadSettings
    ) -> ReadConfiguration:
        """Megatron's configuration, with the batch and the phases of the keys."""
        read.texts = read.texts or (keyed.model,)
        own = configuration_of(read)
        its = {
            path: one
            for path, one in keyed.values.items()
            if path.startswith(_TAKEN) or path in _BATCH
        }
        unknown = (one for one in own.unknown if one.path not in its)
        keys = {name: getattr(keyed.settings, name) for name in Keys.__struct_fields__}
        return replace(
            own,
            framework=framework,
            version="",
            values=own.values | its,
            model=keyed.model or own.model,
            num_gpus=keyed.num_gpus,
            untaken=(*own.untaken, *keyed.untaken),
            unread=keyed.unread or own.unread,
            unknown=(*unknown, *keyed.unknown),
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
        own = _READER.check(configuration_of(keys.megatron), "")
        found = (*own.findings, *checked.findings)
        return replace(checked, understood=own.understood, findings=found)


def settings_of(keys: Keys, sections: Iterable[str], assumed: Mapping[str, object]) -> ReadSettings:
    """Megatron's fields among the keys: those below `sections`, by their last names, over what the
    dialect has `assumed`. They are Bridge's, which makes the model of a checkpoint."""
    read = ReadSettings(place=keys.place, is_whole=True)
    read.given.framework = Framework.MEGATRON_BRIDGE
    for name, value in assumed.items():
        _put(read, name, value, f"{name} by default", keys)
    for section in sections:
        for name in keys.under(section):
            given = keys.values.get(f"{section}.{name}")
            if given is not None and given.value not in _NOTHING:
                _put(read, name, given.value, given.written, replace(keys, place=given.place))
    return read


def _put(read: ReadSettings, name: str, value: object, written: str, keys: Keys) -> None:
    read.put_loose(name, value, written, keys.place)
    if name in KINDS and known(value):
        read.put(name, value, written, keys.place)


def megatron_parts(
    framework: Framework, base: Framework, spelling: type[MegatronSpelling]
) -> FrameworkParts:
    """Megatron's parts as `base` has them in its newest release."""
    return replace(
        parts(base),
        family=(framework,),
        shown=(framework,),
        spelling=spelling(base),
        harness=HarnessRuns(framework, "other"),
    )


def renamed(overrides: str, places: Mapping[str, str]) -> str:
    """Bridge's overrides below the sections of a dialect; `places` are the beginnings of its paths
    by Bridge's, longer ones first. What has no place is left out."""
    words = []
    for word in shlex.split(overrides):
        start = next((one for one in places if word.startswith(one)), None)
        if start is not None:
            words.append(places[start] + word.removeprefix(start))
    return shlex.join(words)
