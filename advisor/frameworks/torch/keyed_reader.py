"""What readers of configurations that are keys with values have in common."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from typing import ClassVar

from msgspec.structs import replace

from advisor.frameworks.names import Framework
from advisor.frameworks.registry import adapter_of
from advisor.frameworks.torch.key_options import KeyOption, values_of
from advisor.reading.document_keys import Keys
from advisor.reading.read_configuration import (
    Checked,
    Document,
    Finding,
    Level,
    ReadConfiguration,
    ReadValue,
)


class KeyedReader(ABC):
    """A framework's reader: how its keys are found, what they mean, and what is checked of them."""

    framework: ClassVar[Framework]
    label: ClassVar[str]
    takes_over: ClassVar[tuple[Framework, ...]] = ()
    options: ClassVar[Collection[KeyOption]]

    @abstractmethod
    def find(self, document: Document) -> Iterator[Keys]:
        """The keys of each configuration in a document that is the framework's."""

    @abstractmethod
    def findings(self, keys: Keys) -> Iterator[Finding]:
        """What the release that keys.release says refuses or passes over."""

    @abstractmethod
    def recompute(self, keys: Keys) -> str | None:
        """The setting in the spelling of --recompute; None where nothing is said."""

    @abstractmethod
    def understood(self, keys: Keys) -> str:
        """The setting in a few words."""

    def values(self, keys: Keys) -> dict[str, ReadValue]:
        """What the keys say, by fields of ours."""
        return values_of(self.options, keys)

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
        for keys in self.find(document):
            yield ReadConfiguration(
                framework=self.framework,
                takes_over=self.takes_over,
                version=keys.release,
                place=keys.place,
                values=self.values(keys),
                recompute=self.recompute(keys),
                model=self.model_named(keys),
                num_gpus=self.num_gpus(keys),
                settings=keys,
            )

    def check(self, configuration: ReadConfiguration, version: str | None) -> Checked:
        """What the release refuses or passes over."""
        release = adapter_of(self.framework).version(version or configuration.version)
        keys = replace(configuration.settings, release=release, num_gpus=configuration.num_gpus)
        order = list(Level)
        return Checked(
            configuration=configuration,
            label=self.called(keys),
            understood=self.understood(keys),
            findings=tuple(sorted(self.findings(keys), key=lambda f: order.index(f.level))),
        )

    def model(self, configuration: ReadConfiguration) -> str:
        """A name that `--model` takes."""
        return configuration.model
