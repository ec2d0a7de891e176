"""What the dialects of reinforcement learning have in common: keys under other sections, values that
several options make, and an engine that may be Megatron's."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

from advisor.frameworks.dialect import DialectReader, keys_in
from advisor.frameworks.dialect_rows import options_of
from advisor.reading.document_keys import Keys
from advisor.reading.key_rules import written
from advisor.reading.model_names import named_model
from advisor.reading.read_configuration import Document, ReadValue

Made = tuple[Any, Iterable[str]]
"""A value, None where there is none, and the options that make it."""
_CYCLE: Final = ("rl.", "samples.")
NODE: Final = 8
"""GPUs of a node, where nobody says it."""


class CycleReader(DialectReader):
    """A reader whose rows have the names of `sections`, under which a document may have others.

    sections: beginnings of a document's keys, and those of the rows. model_key: names the model.
    """

    sections: ClassVar[Mapping[str, str]] = {}
    model_key: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Options and rules follow from the name."""
        if "framework" not in vars(cls):
            return
        cls.options = options_of(str(cls.framework))
        cls.rules = tuple(written(str(cls.framework)))

    def find(self, document: Document) -> Iterator[Keys]:
        """With the names of the rows."""
        for keys in keys_in(document):
            keys.values = {self._name(key): one for key, one in keys.values.items()}
            yield keys

    def _name(self, key: str) -> str:
        start = next((one for one in self.sections if key.startswith(one)), "")
        return self.sections.get(start, "") + key.removeprefix(start)

    @abstractmethod
    def made(self, keys: Keys, said: Mapping[str, Any]) -> Iterator[tuple[str, Made]]:
        """Fields that several options make, or options whose values are no plain ones. said: what
        the rows mean, with their defaults."""

    def _made(self, keys: Keys) -> dict[str, Made]:
        rows = (row for row in reversed(self.rows) if row.ours.partition(".")[1])
        said = {row.ours: row.omitted_meaning for row in rows}
        said |= {path: one.value for path, one in super().values(keys).items()}
        return dict(self.made(keys, said))

    def values(self, keys: Keys) -> dict[str, ReadValue]:
        """With what several options make."""
        found = super().values(keys)
        for path, (value, names) in self._made(keys).items():
            name = next(filter(keys.has, names), None)
            if value is None:
                found.pop(path, None)
            elif name is not None:
                found[path] = keys.means(name, value)
        return found

    def omitted(self, keys: Keys) -> dict[str, Any]:
        """The same of what nobody says."""
        found = super().omitted(keys)
        made = self._made(keys).items()
        found |= {path: value for path, (value, names) in made if not any(map(keys.has, names))}
        return {path: value for path, value in found.items() if value is not None}

    def model_named(self, keys: Keys) -> str:
        """The preset that the checkpoint's name holds, else its path or id as it is."""
        its = str(keys.get(self.model_key) or "")
        return named_model([its]) or (its if "/" in its else "")

    def understood(self, keys: Keys) -> str:
        """The setting."""
        return f"activation checkpointing {self.recompute(keys) or 'none'}"


def no_cycle(said: Mapping[str, Any]) -> dict[str, Made]:
    """Of supervised training: no phases."""
    return {path: (None, ()) for path in said if path.startswith(_CYCLE[0])}


def product(keys: Keys, *names: str, usual: tuple[int, ...]) -> int | None:
    """Of numbers that keys say, each with its default; None where one is not known."""
    found = 1
    for name, default in zip(names, usual, strict=True):
        number = keys.number(name) if keys.has(name) else default
        if number is None:
            return None
        found *= number
    return found


def hydra(values: Mapping[str, Any]) -> Iterator[str]:
    """`a.b=c` of each."""
    for name, value in values.items():
        yield f"{name}={_plain(value)}"


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(str, value))}]"
    return (
        {True: "true", False: "false"}.get(value, str(value))
        if isinstance(value, bool)
        else str(value)
    )
