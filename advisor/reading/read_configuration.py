"""What a framework makes of a document: the values that it understands, and what it finds."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from msgspec import Struct, field

from advisor.base.place import Place
from advisor.base.rule import Finding, Level
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec
from advisor.reading.document_tree import Tree
from advisor.reading.python_source import PythonSource
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
