"""One option of a framework as one row: its names, what it means, how it is emitted, its status.

Megatron's options are rows of sections (megatron/options/table.py); other frameworks list rows by
key, the path in their configuration.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from operator import attrgetter
from typing import Any, Final, Protocol

from msgspec import Struct, json

from advisor.base.configuration import packaged_configs
from advisor.base.grouping import grouped
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec


class Status(StrEnum):
    """What this project makes of an option."""

    MODELLED = "modelled"
    """It has a field of ours, or follows from some."""
    CHECKED = "checked"
    """No field of ours; rules say whether it is legal, and what it does to recompute."""
    HARMLESS = "harmless"
    """It changes neither the memory nor the time of a step noticeably."""
    UNPRICED = "unpriced"
    """It changes memory or time and is not modelled: to be warned of."""
    UNTIMED = "untimed"
    """It changes the time alone, or the first steps, and is not modelled: to be named."""
    REFUSED = "refused"
    """With it the job is another one than can be described: to be refused."""


class Described(Protocol):
    """What the values of options are read from: a Job, or anything with its three parts."""

    @property
    def model(self) -> ModelSpec:
        """The model."""

    @property
    def layout(self) -> ParallelLayout:
        """Degrees of parallelism."""

    @property
    def config(self) -> JobConfig:
        """Batch, precision and run-time options."""


class Release(Protocol):
    """A release of a framework."""

    @property
    def number(self) -> tuple[int, ...]:
        """``(0, 16)``."""


ValueOf = Callable[[Described, Any], object]
"""Value of an option in a job under a release; msgspec.UNSET where the option does not apply."""


class When(Struct, frozen=True):
    """In which jobs an option is emitted: where its value differs from the default, or always, or
    always where the whole layout is; only_if: in these jobs alone."""

    always: bool = False
    with_layout: bool = False
    only_if: Callable[[Described], object] | None = None

    def holds(self, value: object, default: object, job: Described, *, layout: bool = True) -> bool:
        """Whether `value` is emitted for `job`; layout: with the whole layout."""
        if self.only_if is not None and not self.only_if(job):
            return False
        return self.always or (self.with_layout and layout) or value != default


class Format(StrEnum):
    """How a value is written: a number without needless digits, a list of one name as that name, a
    text in the quotes without which Hydra does not read it."""

    USUAL = "usual"
    SHORT = "short"
    SINGLE = "single"
    QUOTED = "quoted"


class Emitted(Struct, frozen=True, kw_only=True):
    """How an option is emitted. A name of None follows from the option's; "" means: has none.

    flag, off: on the command line; off switches off what is on by default.
    bridge, nemo, nemo_1: paths in Megatron Bridge's ConfigContainer, in recipes of NeMo 2 and in
    the YAML of NeMo 1, or the sections that hold the name there.
    line, recipe: when the command line is given the value, and when a recipe is; None: never.
    in_nemo: whether a recipe of NeMo is, too. recipe_value: what recipes take in place of the
    value. order: among what a recipe is given.
    """

    flag: str | None = None
    off: str | None = None
    bridge: str | None = None
    nemo: str | None = None
    nemo_1: str | None = None
    line: When | None = None
    recipe: When | None = None
    in_nemo: bool = True
    format: Format = Format.USUAL
    recipe_value: ValueOf | None = None
    order: int = 0


class Option(Struct, frozen=True, kw_only=True):
    """One option of a framework.

    name: of a field of a configuration class or of a command line's argument, or its path.
    kind: type of its value; object: any. default: of the newest release, where `older` has no
    other one (by the last release that has it). What is not known of a configuration that omits it
    (the model's shape) is None, and `config` the configuration class's; `launcher` is the command
    line's where it has its own.
    ours: the field it means, as `KEY=VALUE` writes it (model., layout., job.), or recompute;
    value: how its value follows from a job, where it is not just that field's; means: values of
    ours by its own, where they are not the same.
    emitted: how it is written for the user. home: section of Megatron Bridge that has it.
    since, until: first and last release that has it; None: older or newer than all that are known.
    strict: of those that are modelled, whether a release that lacks it refuses a job that sets it;
    others follow from a model, and the command line had them at other times than the class.
    was: another name before the release `renamed`. also: other spellings, of fields and arguments.
    status, note: what becomes of it here; of one that is not modelled why.
    """

    name: str
    kind: type = str
    default: Any = None
    config: Any = None
    launcher: Any = None
    older: Mapping[str, object] = {}
    ours: str = ""
    value: ValueOf | None = None
    means: Mapping[Any, Any] | Callable[[Any], Any] | None = None
    emitted: Emitted = Emitted()
    home: str = ""
    since: tuple[int, ...] | None = None
    until: tuple[int, ...] | None = None
    strict: bool = False
    was: str = ""
    renamed: tuple[int, ...] = ()
    also: tuple[str, ...] = ()
    status: Status = Status.MODELLED
    note: str = ""

    def in_release(self, release: Release) -> bool:
        """Whether the release has it."""
        begun = self.since is None or release.number >= self.since
        return begun and not self.ended_before(release)

    def ended_before(self, release: Release) -> bool:
        """Whether the release has it no more."""
        return self.until is not None and release.number > self.until

    def meaning(self, value: Any) -> Any:
        """The value of ours that its own means."""
        if isinstance(self.means, Mapping):
            return self.means.get(value) if isinstance(value, int | str) else None
        return value if self.means is None or value is None else self.means(value)

    @property
    def omitted(self) -> Any:
        """Its value where a command line omits it."""
        return self.default if self.launcher is None else self.launcher

    def name_in(self, release: Release) -> str:
        """What the release calls it."""
        return self.was if self.was and release.number < self.renamed else self.name

    def flag_in(self, release: Release) -> str:
        """Its spelling on the release's command line."""
        return dashed(self.was) if self.name_in(release) != self.name else self.flag

    @property
    def flag(self) -> str:
        """On the command line; empty where it has none, or only one that switches it off."""
        usual = "" if self.default is True else dashed(self.name)
        return usual if self.emitted.flag is None else self.emitted.flag

    @property
    def off(self) -> str:
        """The flag that switches it off; empty where there is none."""
        if self.emitted.off is not None:
            return self.emitted.off
        on_by_default = self.default is True and self.emitted.flag is None
        return dashed(f"no_{self.name}") if on_by_default else ""

    @property
    def bridge(self) -> str:
        """Path in Megatron Bridge's ConfigContainer."""
        return _path(self.emitted.bridge, self.home, self.name)

    @property
    def nemo(self) -> str:
        """Path in a recipe of NeMo 2."""
        return _path(self.emitted.nemo, "model.config" if self.home == "model" else "", self.name)

    @property
    def nemo_1(self) -> str:
        """Path in the YAML of NeMo 1."""
        usual = f"model.{self.name}" if self.nemo else ""
        return usual if self.emitted.nemo_1 is None else self.emitted.nemo_1


def _path(given: str | None, usual: str, name: str) -> str:
    """A path is given whole, or as the section that holds the name; the usual one by default."""
    section = usual if given is None else given
    return section if not section or name == section.rpartition(".")[2] else f"{section}.{name}"


def dashed(name: str) -> str:
    """``--tensor-model-parallel-size`` of a field's name."""
    return f"--{name.replace('_', '-')}"


def number(release: str) -> tuple[int, ...]:
    """``(0, 16)`` of ``0.16``."""
    return tuple(map(int, release.split(".")))


def options_file(schema: str) -> dict[str, Any]:
    """What a file of configs/options holds."""
    return dict(json.decode((packaged_configs() / "options" / f"{schema}.json").read_bytes()))


def key(name: str, default: Any, ours: str, kind: type | None = None, **fields: Any) -> Option:
    """An option by its path in a configuration; its kind is that of the default where it has one.

    >>> key("parallelism.tensor_parallel_degree", 1, "layout.tensor_model_parallel_size").kind
    <class 'int'>
    """
    return Option(name=name, kind=kind or type(default), default=default, ours=ours, **fields)


def keys(
    status: Status, section: str, names: Mapping[str, str], kind: type = object
) -> Iterator[Option]:
    """Options of a section that no field of ours means: what is to be said of them, and their
    names."""
    start = f"{section}." if section else ""
    for note, group in names.items():
        for name in group.split():
            yield Option(name=f"{start}{name}", kind=kind, status=status, note=note)


def listed(schema: str) -> Iterator[Option]:
    """Options of a file of configs/options, which no field of ours means, by their status and what
    is to be said of them. Values that predictions are for are their defaults; of switches and
    numbers others are of the same kind."""
    held = options_file(schema)
    for status in (Status.HARMLESS, Status.UNPRICED):
        for note, names in held.get(status, {}).items():
            for name in names:
                default = held.get("predicted", {}).get(name)
                first = default[0] if isinstance(default, list) else default
                kind = type(first) if isinstance(first, bool | int) else object
                yield Option(name=name, kind=kind, default=default, status=status, note=note)


_KINDS: Final = {kind.__name__: kind for kind in (bool, int, float, str, tuple, object)}


def modelled(schema: str) -> Iterator[Option]:
    """Options of a file of configs/options that fields of ours mean, in the form of `key`; `values`
    are ours by theirs."""
    for name, said in options_file(schema)["modelled"].items():
        default, values = said.get("default"), said.get("values")
        kind = _KINDS[said["kind"]] if "kind" in said else None
        means = None if values is None else partial(meant, values)
        yield key(name, default, said["path"], kind, means=means, note=said.get("note", ""))


def text_of(value: Any) -> str:
    """A value as the files write it: a list with commas, a switch in small letters."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def meant(values: Mapping[str, Any], value: Any) -> Any:
    """The value of ours that theirs means; `*` are all others."""
    return values.get(text_of(value), values.get(str(value).lower(), values.get("*")))


def names_in(options: Iterable[Option], section: str = "") -> tuple[str, ...]:
    """Names that a section has, or the top."""
    start = f"{section}." if section else ""
    below = (row.name[len(start) :] for row in options if row.name.startswith(start))
    return tuple(dict.fromkeys(name.partition(".")[0] for name in below))


def keys_of(options: Iterable[Option], section: str, kind: type) -> tuple[str, ...]:
    """Keys directly below a section whose values are of a kind."""
    direct = (row for row in options if row.name.rpartition(".")[0] == section)
    return tuple(row.name for row in direct if row.kind is kind)


def names_by_field(
    options: Iterable[Option], name: Callable[[Option], str] = attrgetter("name")
) -> dict[str, list[str]]:
    """Names of options by the field of ours that they mean; those without a name are left out."""
    return grouped((row.ours, named) for row in options if row.ours and (named := name(row)))
