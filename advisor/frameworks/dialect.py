"""What dialects have in common: their readers, jobs and parts (dialect_rows.py)."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from advisor.base.rule import Match
from advisor.frameworks.dialect_rows import Row, as_it_runs, counts, file_of, options_of
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.key_rows import written
from advisor.frameworks.option import Option, meant
from advisor.frameworks.torch.keyed_reader import KeyedReader
from advisor.frameworks.torch.memory_model import TorchMemory
from advisor.frameworks.torch.stack import TorchSettings, TorchSpelling, torch_parts
from advisor.frameworks.torch.supported_jobs import StackFacts, TorchJobs
from advisor.job.job import JobConfig
from advisor.models.spec import ModelSpec
from advisor.reading.command_options import options, program_at
from advisor.reading.document_tree import Tree
from advisor.reading.model_names import named_model
from advisor.reading.read_configuration import (
    Document,
    Keys,
    ReadConfiguration,
    ReadValue,
    put_mapping,
    put_tree,
)
from advisor.reading.shell import ShellCommand

_PROCESSES: Final = ("NPROC_PER_NODE", "NNODES")
_DEVICES: Final = "CUDA_VISIBLE_DEVICES"


def keys_in(document: Document) -> Iterator[Keys]:
    """All keys of a tree; of a command its options, `a.b=c` and the processes that it starts."""
    if isinstance(document, Tree):
        keys = Keys(place=document.place, about={"kind": "arguments"})
        put_tree(keys, document)
        yield keys
    elif isinstance(document, ShellCommand):
        keys = Keys(place=document.place, about={"kind": "command"})
        put_words(keys, document)
        for option in options(document.words[program_at(document.words) :]):
            said = [word.text for word in option.values if not _PAIR.match(word.text)]
            value, name = (
                " ".join(said) if said else True,
                option.name.lstrip("-").replace("-", "_"),
            )
            keys.put(name, value, option.place, option.name)
            if len(said) == 1 and said[0].startswith("{"):
                with suppress(ValueError):
                    put_mapping(keys, json.loads(said[0]), option.place, name)
        yield keys


_PAIR: Final = re.compile(r"([+~]{0,2})([A-Za-z_][\w.@/]*)=(.*)", re.DOTALL)


def put_words(keys: Keys, command: ShellCommand) -> None:
    """`key=value` after the program, and the processes of its environment. `+key` adds one."""
    for word in command.words[1:]:
        if pair := _PAIR.fullmatch(word.text):
            keys.put(pair[2], pair[3], word.place, pair[2])
            keys.about["added"] = keys.about.get("added", "") + f" {pair[2]} " * bool(pair[1])
    said = {name: word.text for name, word in command.environment.items()}
    counts = [int(said[name]) for name in _PROCESSES if said.get(name, "").isdigit()]
    if _PROCESSES[0] in said and counts:
        keys.num_gpus = counts[0] * (counts[1] if len(counts) > 1 else 1)
    elif re.fullmatch(r"\d+(,\d+)*", said.get(_DEVICES, "")):
        keys.num_gpus = said[_DEVICES].count(",") + 1


class DialectReader(KeyedReader):
    """A reader whose options are rows, be they its own or another name of an option of `below`."""

    below: ClassVar[tuple[Option, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Options and rules follow from the name, unless it has its own."""
        if "framework" in vars(cls) and "options" not in vars(cls):
            name = str(cls.framework)
            cls.options = options_of(name, cls.below)
            cls.rules = tuple(written(name, {"unknown_key": cls.unknown_keys}, cls.options))

    @classmethod
    def unknown_keys(cls, keys: Keys) -> Iterator[Match]:
        """Keys that its parsers do not know."""
        raise NotImplementedError

    def find(self, document: Document) -> Iterator[Keys]:
        """The keys of a document, which is known to be the dialect's."""
        yield from keys_in(document)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Its rows, and those of the framework below."""
        return tuple(row for row in self.options if isinstance(row, Row))

    def values(self, keys: Keys) -> dict[str, ReadValue]:
        """What the keys say, without options of what is switched off."""
        return self.counted(super().values(keys))

    def counted(self, found: dict[str, ReadValue], more: Mapping[str, Any] = {}) -> dict[str, Any]:
        """`found` without options of what neither they, defaults nor `more` switch on."""
        each = ((row.ours, row.omitted_meaning) for row in self.rows)
        usual = {path: value for path, value in each if value is not None}
        return self._counted(found, {**usual, **found, **more})

    def _counted(self, found: Mapping[str, Any], every: Mapping[str, Any]) -> dict[str, Any]:
        def value(path: str) -> Any:
            return getattr(every.get(path), "value", every.get(path))

        idle = {row.ours for row in self.rows if row.only_if and not counts(row, value)}
        return {path: one for path, one in found.items() if path not in idle}

    def omitted(self, keys: Keys) -> dict[str, Any]:
        """Defaults of what is left out, and what follows from what is said."""
        said, found = self.values(keys), super().omitted(keys)
        for row in reversed(self.rows):  # its own go before those of the framework below
            value = row.omitted_meaning
            if row.ours.partition(".")[1] and row.ours not in said and value is not None:
                found.setdefault(row.ours, value)
        for path, value in file_of(str(self.framework)).get("assumed", {}).items():
            if path not in said:
                found.setdefault(path, value)
        found = self._counted(found, {**found, **said})
        every = found | {path: one.value for path, one in said.items()}
        more = self.derived(keys, every).items()
        return found | {path: value for path, value in more if path not in said}

    def model(self, configuration: ReadConfiguration) -> str:
        """The preset that the name of the checkpoint holds, else its path or id as it is."""
        its = configuration.model
        return named_model([its]) or (its if "/" in its and "$" not in its else "")

    def understood(self, keys: Keys) -> str:
        """The setting."""
        return f"activation checkpointing {self.recompute(keys)}"

    def derived(self, keys: Keys, said: Mapping[str, Any]) -> dict[str, Any]:
        """Values of ours that follow from keys and what is `said` together, where none is given."""
        return {}

    def _configuration(self, keys: Keys) -> ReadConfiguration:
        """With the names of the framework below, and the defaults that are not that one's."""
        named: dict[str, ReadValue] = {}
        for row in self.rows:
            given, taken = keys.values.get(row.name), row.named in keys.values
            if row.named and given is not None and (not taken or row.named == row.name):
                said = keys.truth(row.name) if row.kind is bool else keys.get(row.name)
                value = meant(row.values, said) if row.values else given.value
                if value is not None:
                    named[row.named] = replace(given, value=value)
        for row in self.rows:
            if row.named and row.default is not None and row.named not in {*named, *keys.values}:
                value = meant(row.values, row.default) if row.values else row.default
                usual = ReadValue(value=value, written=f"{row.name} by default", place=keys.place)
                named[row.named] = replace(usual, omitted=True)
        return super()._configuration(replace(keys, values={**keys.values, **named}))


class DialectJobs(TorchJobs):
    """Jobs, with what the dialect does otherwise."""

    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        """See dialect_rows.as_it_runs."""
        model, config = super().configure(model, config, given)
        return model, as_it_runs(self.framework, config, given)


def dialect_parts(
    reader: DialectReader,
    release: str,
    base: StackFacts,
    *,
    spelling: type[TorchSpelling],
    jobs: type[TorchJobs],
    memory: type[TorchMemory],
    settings: type[TorchSettings] = TorchSettings,
    **its: Any,
) -> FrameworkParts:
    """The parts of a dialect in its one known release. its: facts of its own, over those of the
    framework below."""
    facts = replace(
        base,
        framework=str(reader.framework),
        label=reader.label,
        versions=(release,),
        newest_with_experts=None,
        key_options=tuple(reader.options),
        **its,
    )
    found = torch_parts(
        facts, spelling, settings=settings, jobs=jobs, memory=memory, dialect="other"
    )
    return replace(found, cycles="cycle" in file_of(facts.framework))
