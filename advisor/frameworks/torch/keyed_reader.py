"""What readers of configurations that are keys with values have in common."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from advisor.base.rule import Level
from advisor.frameworks.names import Framework
from advisor.frameworks.newer_releases import with_newest
from advisor.frameworks.option import Option, Status, names_by_field
from advisor.frameworks.registry import parts_of
from advisor.reading.command_options import is_number, program_at, unread_words
from advisor.reading.key_rules import KeyRule, key_findings
from advisor.reading.python_source import text_of
from advisor.reading.read_configuration import (
    Checked,
    Document,
    Keys,
    ReadConfiguration,
    ReadValue,
    UnknownValue,
    Untaken,
    known,
    truth,
)
from advisor.reading.shell import Note, ShellCommand

_AUTO: Final = "auto"
"""What a Trainer fills in (DeepSpeed)."""
TUNING: Final = "predicted at its default"
"""Of options that only tune what is modelled."""
_NOTHING: Final[tuple[Any, ...]] = (None, "", [], {}, _AUTO)
_DEGREES: Final = {f"layout.{kind}_model_parallel_size": kind for kind in ("pipeline", "tensor")}


@cache
def _rows(reader: type["KeyedReader"]) -> Mapping[str, Option]:
    """Options by name, modelled ones before others of the same name."""
    rows = sorted(reader.options, key=lambda row: row.status is Status.MODELLED)
    return {row.name: row for row in rows}


def meaning(row: Option, keys: Keys) -> Any:
    """An option's value in our words; None where it is not given, not known or means nothing."""
    value = keys.truth(row.name) if row.kind is bool else keys.get(row.name)
    if row.means is not None:
        return row.meaning(value)
    if row.kind is int:
        number = keys.number(row.name)
        return number if number is not None and number > 0 else None
    if row.kind is float and isinstance(value, str) and is_number(value):
        return float(value)
    return value if isinstance(value, row.kind) else None


def values_of(options: Collection[Option], keys: Keys) -> dict[str, ReadValue]:
    """What keys say, by the fields of ours that they mean."""
    found = {}
    for row in options:
        value = meaning(row, keys) if row.ours.partition(".")[1] else None
        if value is not None:
            found[row.ours] = keys.means(row.name, value)
    return found


def _leaves_out(row: Option, key: str, keys: Keys, values: Mapping[str, ReadValue]) -> bool:
    """Whether predictions leave out what is said of an option."""
    value = keys.get(key)
    if not known(keys.values[key].value):
        return row.status is Status.UNPRICED
    if value in _NOTHING or row.status not in (Status.UNPRICED, Status.MODELLED):
        return False
    if row.status is Status.MODELLED:
        off = value == row.default or truth(value) is False
        return not off and row.ours not in values and meaning(row, keys) is None
    if any(keys.truth(f"{row.name}.{switch}") is False for switch in ("enabled", "enable")):
        return False
    predicted = row.default if isinstance(row.default, list) else [row.default]
    texts = [str(one).lower() for one in predicted]
    said = value if isinstance(value, list) else (value,)
    off = row.kind is object and all(truth(one) is False for one in said)
    return not off and any(one not in predicted and str(one).lower() not in texts for one in said)


class KeyedReader(ABC):
    """A framework's reader: how its keys are found, what they mean, and what is checked of them."""

    framework: ClassVar[Framework]
    label: ClassVar[str]
    takes_over: ClassVar[tuple[Framework, ...]] = ()
    options: ClassVar[Collection[Option]]
    rules: ClassVar[Sequence[KeyRule]] = ()

    @abstractmethod
    def find(self, document: Document) -> Iterator[Keys]:
        """The keys of each configuration in a document that is the framework's."""

    def rules_of(self, keys: Keys) -> Sequence[KeyRule]:
        """What is refused of them, and what is passed over."""
        return self.rules

    @abstractmethod
    def recompute(self, keys: Keys) -> str | None:
        """The setting in the spelling of --recompute; None where nothing is said."""

    @abstractmethod
    def understood(self, keys: Keys) -> str:
        """The setting in a few words."""

    def values(self, keys: Keys) -> dict[str, ReadValue]:
        """What the keys say, by fields of ours."""
        return values_of(self.options, keys)

    def omitted(self, keys: Keys) -> dict[str, Any]:
        """Values of ours by the framework's defaults of what the keys do not say, where they differ
        from what is assumed of any job."""
        return {}

    def num_microbatches(self, keys: Keys) -> int | None:
        """Those of one rank in a step, where they say no global batch."""
        return None

    def untaken(self, keys: Keys) -> Iterator[Untaken]:
        """What is said and no prediction takes, a section once; last what nobody knows."""
        values, seen = self.values(keys), set[str]()
        foreign: list[ReadValue] = []
        for key, given in keys.values.items():
            row = self.row_of(key)
            if row is None and given.value not in _NOTHING:
                foreign.append(given)
            elif row and row.name not in seen and _leaves_out(row, key, keys, values):
                seen.add(row.name)
                level = (
                    Level.NOTE if row.note == TUNING or not known(given.value) else Level.WARNING
                )
                if row.name != key and row.name[-1] != "*":  # of a section the first key
                    given = replace(given, value="", written=row.name)
                yield Untaken.of(given, row.note or "other values are modelled", level)
        jobs = parts_of(self.framework).jobs
        for path, one in values.items():
            degree = _DEGREES.get(path)
            many = degree and one.value > 1 and not getattr(jobs.degrees, degree)
            if many or (path == "job.precision" and one.value not in jobs.precisions):
                yield Untaken.of(one, f"refused in predictions of {self.framework}", Level.NOTE)
        yield from map(Untaken.foreign, foreign)

    def row_of(self, key: str) -> Option | None:
        """The option that a key is, or below which it lies; else those that begin as it does."""
        rows, parts = _rows(type(self)), key.split(".")
        names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
        names += [name for name in rows if name[-1] == "*" and key.startswith(name[:-1])]
        return next((rows[name] for name in names if name in rows), None)

    def unknown(self, keys: Keys) -> Iterator[UnknownValue]:
        """What means a field of ours and has a value that only a run knows."""
        for row in self.options:
            given = keys.values.get(row.name)
            if given is None or not row.ours or (known(given.value) and given.value != _AUTO):
                continue
            yield UnknownValue(
                written=given.written, text=text_of(given.value), place=given.place, path=row.ours
            )

    def model_named(self, keys: Keys) -> str:
        """The model, as the configuration names it."""
        return ""

    def num_gpus(self, keys: Keys) -> int | None:
        """GPUs of the job, where the configuration says it."""
        return keys.num_gpus

    def called(self, keys: Keys) -> str:
        """Whose configuration it is, with the release."""
        return f"{self.label} {keys.release}"

    def read(self, document: Document) -> Iterator[ReadConfiguration]:
        """The configurations in a document that are the framework's."""
        words = document.words if isinstance(document, ShellCommand) else ()
        unread = unread_words(words[program_at(words) :])
        for keys in self.find(document):
            if unread:
                keys.unread += tuple(Note(word.text, word.place) for word in unread)
                keys.about.setdefault("file", "in words that are not known")
            yield self._configuration(keys)

    def merged(self, command: ReadConfiguration, file: ReadConfiguration) -> ReadConfiguration:
        """The options of a command over the keys of a file that it names."""
        above, below = command.settings, file.settings
        both = replace(
            above,
            values=below.values | {k: v for k, v in above.values.items() if not v.omitted},
            faults=(*below.faults, *above.faults),
            about=below.about | above.about,
            unread=(*below.unread, *(one for one in above.unread if one.text[:1] in "$`@")),
        )
        read = self._configuration(both)
        return replace(
            read,
            branch=command.branch,
            names_files=command.names_files,
            num_gpus=read.num_gpus or command.num_gpus or file.num_gpus,
        )

    def _configuration(self, keys: Keys) -> ReadConfiguration:
        omitted = {
            path: ReadValue(value=value, written="", place=keys.place, omitted=True)
            for path, value in self.omitted(keys).items()
        }
        return ReadConfiguration(
            framework=self.framework,
            takes_over=self.takes_over,
            version=keys.release,
            place=keys.place,
            values=omitted | self.values(keys),
            recompute=self.recompute(keys),
            recompute_at=tuple(self._recompute_at(keys)),
            model=self.model_named(keys),
            num_gpus=self.num_gpus(keys),
            untaken=tuple(self.untaken(keys)),
            unknown=tuple(self.unknown(keys)),
            unread=keys.unread,
            num_microbatches=self.num_microbatches(keys),
            settings=keys,
            whole=True,
        )

    def _recompute_at(self, keys: Keys) -> Iterator[ReadValue]:
        """What is written of the recompute and switched on."""
        for key in names_by_field(self.options).get("recompute", ()):
            given = keys.values.get(key)
            if given is not None and given.value is not None and truth(given.value) is not False:
                yield given

    def check(self, configuration: ReadConfiguration, version: str | None) -> Checked:
        """What the release refuses or passes over."""
        asked = version or configuration.version
        release = parts_of(self.framework).jobs.version(asked)
        keys = replace(configuration.settings, release=release, num_gpus=configuration.num_gpus)
        order = list(Level)
        found = key_findings(self.rules_of(keys), keys)
        return Checked(
            configuration=configuration,
            label=with_newest(self.called(keys), self.framework, asked, release),
            understood=self.understood(keys),
            findings=tuple(sorted(found, key=lambda f: order.index(f.level))),
        )

    def model(self, configuration: ReadConfiguration) -> str:
        """A name that `--model` takes."""
        return configuration.model
