"""What readers of configurations that are keys with values have in common."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from advisor.base.rule import Level
from advisor.frameworks.names import Framework
from advisor.frameworks.newer_releases import with_newest
from advisor.frameworks.option import Option, Status, names_by_field
from advisor.frameworks.registry import parts_of
from advisor.reading.document_keys import Keys, known, truth
from advisor.reading.key_rules import KeyRule, key_findings
from advisor.reading.read_configuration import (
    Checked,
    Document,
    ReadConfiguration,
    ReadValue,
    UnknownValue,
)

_WHOLE: Final = "full"
"""Of what may be cut: no adapter."""
_AUTO: Final = "auto"
"""What a Trainer fills in (DeepSpeed)."""


def meaning(row: Option, keys: Keys) -> Any:
    """An option's value in our words; None where it is not given, not known or means nothing."""
    value = keys.truth(row.name) if row.kind is bool else keys.get(row.name)
    if row.means is not None:
        return row.meaning(value)
    if row.kind is int:
        number = keys.number(row.name)
        return number if number is not None and number > 0 else None
    return value if isinstance(value, row.kind) else None


def values_of(options: Collection[Option], keys: Keys) -> dict[str, ReadValue]:
    """What keys say, by the fields of ours that they mean."""
    found = {}
    for row in options:
        value = meaning(row, keys) if row.ours.partition(".")[1] else None
        if value is not None:
            found[row.ours] = keys.means(row.name, value)
    return found


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

    def untaken(self, keys: Keys) -> Iterator[ReadValue]:
        """What is known, said and not modelled."""
        modelled = {row.name for row in self.options if row.status is Status.MODELLED}
        for row in self.options:
            given = keys.values.get(row.name)
            if row.status is not Status.UNPRICED or given is None or row.name in modelled:
                continue
            off = row.kind is object and truth(given.value) is False
            if given.value not in (None, row.default, _AUTO, _WHOLE) and not off:
                yield given

    def unknown(self, keys: Keys) -> Iterator[UnknownValue]:
        """What means a field of ours and has a value that only a run knows."""
        for row in self.options:
            given = keys.values.get(row.name)
            if given is None or not row.ours or (known(given.value) and given.value != _AUTO):
                continue
            yield UnknownValue(
                written=given.written, text=str(given.value), place=given.place, path=row.ours
            )

    def model_named(self, keys: Keys) -> str:
        """The model, as the configuration names it."""
        return ""

    def num_gpus(self, keys: Keys) -> int | None:
        """GPUs of the job, where the configuration says it."""
        return None

    def called(self, keys: Keys) -> str:
        """Whose configuration it is, with the release."""
        return f"{self.label} {keys.release}"

    def read(self, document: Document) -> Iterator[ReadConfiguration]:
        """The configurations in a document that are the framework's."""
        return map(self._configuration, self.find(document))

    def merged(self, command: ReadConfiguration, file: ReadConfiguration) -> ReadConfiguration:
        """The options of a command over the keys of a file that it names."""
        above, below = command.settings, file.settings
        both = replace(
            above,
            values=below.values | above.values,
            faults=(*below.faults, *above.faults),
            about=below.about | above.about,
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
