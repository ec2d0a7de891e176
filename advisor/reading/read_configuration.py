"""What a framework makes of a document: the values that it understands, and what it finds; and
settings as keys with values, for frameworks whose configuration is a flat or nested mapping."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from itertools import chain
from typing import Any, Final, Protocol

from msgspec import Struct, field

from advisor.base.place import Place
from advisor.base.rule import Finding, Level
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec
from advisor.reading.document_tree import Tree
from advisor.reading.python_source import PythonSource, Unknown
from advisor.reading.shell.script import Note, ShellCommand

Document = ShellCommand | Tree | PythonSource
_SWITCH: Final = re.compile(
    r"checkpointing|offload|recompute|quantiz|fp8|fp4|compile|kernel|attention|attn|flash|fused?_|liger"
    r"|unsloth|lora|adapter|galore|shard|parallel|zero_|memory|backend|opt_level|sparse|precision"
    r"|activation_(?!func|dropout)|compress"
)
_PLACES: Final = re.compile(r"(path|dir|file|folder|name|steps|interval|freq|ratio|size|type)$")
"""Names that tell of memory or time, where their last word is none of these."""


class ReadValue(Struct, frozen=True, kw_only=True):
    """A value by one of our fields, and the option as written; omitted: it is a default."""

    value: Any
    written: str
    place: Place
    omitted: bool = False

    def meaning(self, value: Any) -> "ReadValue":
        """`value`, which stands where this one does and is written."""
        return ReadValue(value=value, written=self.written, place=self.place)


class Untaken(ReadValue, frozen=True, kw_only=True):
    """An option that no prediction takes: `note` says of what, empty where nobody knows the option;
    level: how lint shows it, a note where it only tunes what is modelled."""

    note: str = ""
    level: Level = Level.WARNING

    @classmethod
    def of(cls, one: ReadValue, note: str = "", level: Level = Level.WARNING) -> "Untaken":
        """The option that is read."""
        return cls(value=one.value, written=one.written, place=one.place, note=note, level=level)

    @classmethod
    def foreign(cls, one: ReadValue) -> "Untaken":
        """An option that nobody knows: a warning where it is on and tells of memory or time."""
        name = one.written.rpartition(".")[2].strip("-").lower().replace("-", "_")
        off = str(one.value).lower() in ("false", "no", "off", "0", "f", "n", "none", "null")
        tells = _SWITCH.search(name) and not _PLACES.search(name)
        return cls.of(one, level=Level.WARNING if tells and not off else Level.NOTE)


class UnknownValue(Struct, frozen=True, kw_only=True):
    """An option whose value only a run knows: a shell variable, a name of Python, `auto`. path: the
    field of ours that it means, `recompute`, or empty where it is none."""

    written: str
    text: str
    place: Place
    path: str = ""


class LentJob(Struct, frozen=True):
    """What a published recipe sets. shipped: its recompute as a SPEC; certain: it is named."""

    model: ModelSpec
    layout: ParallelLayout
    config: JobConfig
    shipped: str = ""
    certain: bool = False


class ReadConfiguration(Struct, frozen=True, kw_only=True):
    """One job as a document tells it.

    values: by path of our fields, as `job.seq_length`. recompute: as `--recompute` spells it, None
    where nothing is said or it cannot be spelt; recompute_at: what says it. model: by its name.
    world_size: GPUs that its launcher starts, whoever runs it.
    notes: what is not known. branch: conditions under which it holds. takes_over: frameworks whose
    jobs become its own where they go together; hands_to: the framework of a file that it names,
    which decides the job. names_files: those of a command, which goes before them.
    partial_training: options of adapters or few bits, of which no prediction is. untaken: those
    that no prediction takes; refused: what the framework refuses, as lint says it; unknown:
    without a known value; unread: what was not read.
    shape: fields of the model; num_microbatches: of one rank in a step, where no global batch is
    said; layers_per_chunk: where the chunks follow from a model that is not spelled out.
    recipe: words that may name the recipe below what it says; lent: that recipe, or one like it.
    settings: what its framework's own checks read. whole: no recipe is below it.
    """

    framework: str
    place: Place
    version: str = ""
    values: Mapping[str, ReadValue] = field(default_factory=dict)
    recompute: str | None = None
    recompute_at: tuple[ReadValue, ...] = ()
    model: str = ""
    num_gpus: int | None = None
    world_size: int | None = None
    notes: tuple[Note, ...] = ()
    branch: tuple[str, ...] = ()
    names_files: frozenset[str] | None = None
    takes_over: tuple[str, ...] = ()
    hands_to: str = ""
    partial_training: tuple[ReadValue, ...] = ()
    untaken: tuple[ReadValue, ...] = ()
    refused: tuple[Finding, ...] = ()
    unread: tuple[Note, ...] = ()
    unknown: tuple[UnknownValue, ...] = ()
    shape: Mapping[str, ReadValue] = field(default_factory=dict)
    num_microbatches: int | None = None
    layers_per_chunk: int | None = None
    recipe: tuple[str, ...] = ()
    lent: LentJob | None = None
    settings: Any = None
    whole: bool = False


class Checked(Struct, frozen=True, kw_only=True):
    """A configuration with its findings. label: framework and release. understood: its recompute in
    a few words. release, settings: as the framework's own rules see them."""

    configuration: ReadConfiguration
    label: str
    understood: str
    findings: tuple[Finding, ...]
    release: Any = None
    settings: Any = None


class Reader(Protocol):
    """One framework's way of reading what is written for it."""

    def read(self, document: Document) -> Iterator[ReadConfiguration]:
        """The configurations in a document; none where it is not the framework's."""
        ...

    def check(self, configuration: ReadConfiguration, version: str | None) -> Checked:
        """What the framework refuses or ignores; version: None the document's, or the newest."""
        ...

    def merged(
        self, command: ReadConfiguration, file: ReadConfiguration
    ) -> ReadConfiguration | None:
        """A command over a file that it names as one; None where they are read apart."""
        ...

    def model(self, configuration: ReadConfiguration) -> str:
        """A name that `--model` takes for its model; empty where there is none."""
        ...


EXPANDABLE_SEGMENTS: Final = "job.expandable_segments"
_NAMES: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""The name of new releases goes before the old one, HIP's after CUDA's, which ROCm reads as well
(torch 2.13 c10/cuda/CUDAAllocatorConfig.h)."""
_ON: Final = "expandable_segments:True"


def expandable_segments(environment: Mapping[str, tuple[str, Place]]) -> ReadValue | None:
    """Whether segments expand, by texts and places of variables; None where that is not known."""
    for name in _NAMES:
        if name in environment:
            text, place = environment[name]
            return None if "$" in text else ReadValue(value=_ON in text, written=name, place=place)
    return None


_TRUE: Final = ("true", "yes", "1", "on", "t", "y")
_FALSE: Final = ("false", "no", "0", "off", "f", "n")


class Keys(Struct, kw_only=True):
    """Values by key, `section.key` where they nest; `place` is that of the whole. faults: what its
    format refuses. about: what kind of document it is. unread: what lies elsewhere.
    release, num_gpus: of the check."""

    place: Place
    values: dict[str, ReadValue] = field(default_factory=dict)
    faults: tuple[tuple[str, Place], ...] = ()
    about: dict[str, str] = field(default_factory=dict)
    unread: tuple[Note, ...] = ()
    release: str = ""
    num_gpus: int | None = None

    def put(self, key: str, value: Any, place: Place, written: str = "") -> None:
        """Store a value."""
        self.values[key] = ReadValue(value=value, written=written or key, place=place)

    def has(self, key: str) -> bool:
        """Whether the key is given, whatever its value."""
        return key in self.values

    def get(self, key: str) -> Any:
        """The value; None where it is not given or not known."""
        found = self.values.get(key)
        return None if found is None or not known(found.value) else found.value

    def truth(self, key: str) -> bool | None:
        """The value as true or false; None where it is neither."""
        return truth(self.get(key))

    def number(self, key: str) -> int | None:
        """The value as a whole number; None where it is none."""
        return as_whole_number(self.get(key))

    def under(self, section: str) -> Iterator[str]:
        """Names directly below a section; of no section those at the top."""
        start = f"{section}." if section else ""
        names = (key[len(start) :] for key in self.values if key.startswith(start))
        yield from dict.fromkeys(name.partition(".")[0] for name in names)

    def where(self, *keys: str) -> Place:
        """The place of the first of `keys` that is given, or of what lies below one."""
        given = (key for key in keys if key in self.values)
        below = (name for key in keys for name in self.values if name.startswith(f"{key}."))
        return next((self.values[name].place for name in chain(given, below)), self.place)

    def means(self, key: str, value: Any) -> ReadValue:
        """`value` of a field of ours, as what is written at `key` means it."""
        return self.values[key].meaning(value)


def known(value: Any) -> bool:
    """Whether nothing in a value stands for what only a run knows; `auto` is known later."""
    if isinstance(value, Unknown):
        return False
    return not (isinstance(value, str) and ("$" in value or "{{" in value))


def truth(value: Any) -> bool | None:
    """A boolean, or the words that frameworks take for one."""
    if isinstance(value, bool):
        return value
    text = str(value).lower() if isinstance(value, str | int) else ""
    return True if text in _TRUE else False if text in _FALSE else None


def as_whole_number(value: Any) -> int | None:
    """A whole number, written as such or as text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    with suppress(ValueError):
        return int(str(value)) if isinstance(value, int | str) else None  # "True" is none
    return None


def put_tree(keys: Keys, tree: Tree, *path: str) -> None:
    """Every leaf of a document, mappings by their keys and all else as it is."""
    for name, value in tree.items(*path):
        here = (*path, name)
        if isinstance(value, Mapping) and value:
            put_tree(keys, tree, *here)
        else:
            keys.put(".".join(here), value, tree.where(*here))


def put_mapping(keys: Keys, values: Mapping[str, Any], place: Place, *path: str) -> None:
    """Every leaf of a mapping that Python code holds, all at one place."""
    for name, value in values.items():
        here = (*path, str(name))
        if isinstance(value, Mapping) and value:
            put_mapping(keys, value, place, *here)
        else:
            keys.put(".".join(here), value, place)


def near(name: str, names: Iterable[str], cutoff: float = 0.75) -> str:
    """The known name that is meant, or empty."""
    return next(iter(_matches(name, tuple(names), 1, cutoff)), "")


_matches = cache(get_close_matches)  # 0.3 ms, once for all ways through a script
