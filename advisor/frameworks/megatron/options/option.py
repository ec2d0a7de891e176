"""One option of Megatron as one row: its names, what it means, and what becomes of it.

A section is a class whose annotated attributes are its rows: the name and the type of the attribute
are those of the option, and its default is Megatron's. Whatever follows from the name is left out:
a row says only where it differs.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from inspect import get_annotations
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeVar, get_args

from msgspec import Struct

from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.option_status import Status
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec

T = TypeVar("T")


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


class Unsaid(Enum):
    """The value of an option that a job says nothing of."""

    UNSAID = "unsaid"


UNSAID: Final = Unsaid.UNSAID
ValueOf = Callable[[Described, Revision], object]
"""Value of an option in a job; UNSAID where the option does not apply."""
Condition = Callable[[Described], bool]
"""Whether a job is one in which an option is spoken of."""
CALLABLE: Final = "a function that the training loop sets"


class Kind(Enum):
    """Type of an option, as a command line or YAML gives it."""

    SWITCH = bool
    NUMBER = int
    FRACTION = float
    TEXT = str
    LIST = tuple


class Said(Enum):
    """Where a command line or a recipe is told the value."""

    DIFFERENT = "if it differs from the default"
    LAYOUT = "with the layout, always"
    ALWAYS = "always"
    NEVER = "never"


class Default(NamedTuple):
    """A default of older releases: `value` up to and including `release`."""

    release: tuple[int, int]
    value: object


class Option(Struct, frozen=True, kw_only=True):
    """One option of Megatron.

    name, kind: of the field of TransformerConfig, DistributedDataParallelConfig or OptimizerConfig,
    or of Megatron-LM's argument. default: of the newest release, where `defaults` has no other one;
    what is not known of a configuration that does not say it (the model's shape) is None, and
    `config` the configuration class's; `launcher` is the command line's where it has its own.
    since, until: first and last release that has it; None: older or newer than all that are known.
    strict: of those that are modelled, whether a release that lacks it refuses a job that sets it;
    others follow from a model, and the command line had them at other times than the class.
    was: another name before the release `renamed`. also: other spellings, of fields and arguments.

    flag: on Megatron-LM's command line, empty where it has none; off: the one that switches it off.
    bridge: path in Megatron Bridge's ConfigContainer; nemo, nemo_1: paths of NeMo 2 and NeMo 1.
    ours: the field it means, as `KEY=VALUE` writes it (model., layout., job.), or recompute;
    value: how its value follows from a job, where it is not just that field's.
    printed, told, told_nemo: when Megatron-LM, and when a recipe of Bridge or NeMo is given the
    value; when, told_when: in which jobs alone (Megatron-LM, Bridge). text: a float's format; bare:
    a recipe takes a single name, no list; listed: release before which one does; quoted: a text
    that Hydra reads in quotes alone.
    recipe_value: what Bridge is told in place of the value. place: order among a recipe's words.
    """

    name: str = ""
    kind: Kind = Kind.TEXT
    default: Any = None
    config: Any = None
    launcher: Any = None
    defaults: tuple[Default, ...] = ()
    since: tuple[int, int] | None = None
    until: tuple[int, int] | None = None
    strict: bool = False
    was: str = ""
    renamed: tuple[int, int] = (0, 0)
    also: tuple[str, ...] = ()
    subject: str = ""
    flag: str = ""
    off: str = ""
    bridge: str = ""
    nemo: str = ""
    nemo_1: str = ""
    ours: str = ""
    value: ValueOf | None = None
    printed: Said = Said.NEVER
    told: Said = Said.NEVER
    told_nemo: Said = Said.NEVER
    when: Condition | None = None
    told_when: Condition | None = None
    text: str = ""
    bare: bool = False
    listed: tuple[int, int] = (0, 0)
    quoted: bool = False
    recipe_value: Callable[[Described], object] | None = None
    place: int = 0
    status: Status = Status.MODELLED
    note: str = ""

    def in_release(self, revision: Revision) -> bool:
        """Whether the release has it."""
        return not (self.comes_after(revision) or self.ended_before(revision))

    def comes_after(self, revision: Revision) -> bool:
        """Whether the release does not have it yet."""
        return self.since is not None and revision.number < self.since

    def ended_before(self, revision: Revision) -> bool:
        """Whether the release has it no more."""
        return self.until is not None and revision.number > self.until

    @property
    def unsaid(self) -> Any:
        """The command line's default."""
        return self.default if self.launcher is None else self.launcher

    def name_in(self, revision: Revision) -> str:
        """What the release calls it."""
        return self.was if self.was and revision.number < self.renamed else self.name

    def flag_in(self, revision: Revision) -> str:
        """Its spelling on the release's command line."""
        return dashed(self.was) if self.name_in(revision) != self.name else self.flag

    def told_in(self, revision: Revision, value: object) -> object:
        """`value` as a recipe of the release takes it."""
        if isinstance(value, tuple) and revision.number < self.listed:
            return value[0] if value else self.config
        return value

    def default_in(self, revision: Revision) -> object:
        """The configuration class's default in a release."""
        for older in self.defaults:
            if revision.number <= older.release:
                return older.value
        return self.default if self.config is None else self.config


def dashed(name: str) -> str:
    """``--tensor-model-parallel-size`` of a field's name."""
    return f"--{name.replace('_', '-')}"


@lru_cache(maxsize=64)
def kind_of(annotation: object) -> Kind:
    """Kind of an annotated type; of a union the first that is known."""
    types = {getattr(t, "__origin__", t) for t in get_args(annotation) or (annotation,)}
    if str(annotation).startswith("tuple"):
        return Kind.LIST
    return next((kind for kind in Kind if kind.value in types), Kind.TEXT)


class Row(NamedTuple):
    """What a section says of one option, until the table is made."""

    default: Any
    said: dict[str, Any]


class Options:
    """A section: its attributes are options, with Megatron's defaults as their values."""

    option_rows: ClassVar[Mapping[str, Row]] = {}
    option_names: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        """Keep the rows, and leave each one's default in its place."""
        super().__init_subclass__()
        cls.option_rows = {name: row for name, row in vars(cls).items() if isinstance(row, Row)}
        for name, row in cls.option_rows.items():
            setattr(cls, name, row.default)
        inherited = (vars(base).get("option_names", ()) for base in cls.__mro__)
        cls.option_names = frozenset(get_annotations(cls)).union(*inherited)


def option(default: T, ours: str = "", **said: Any) -> T:
    """A row of an option that is modelled: `ours` is the field it means, or the part of a job where
    the field has its name. `said` are fields of Option; releases are texts, ``since="0.16"``,
    ``defaults={"0.15": None}`` (up to and including that one)."""
    # to a type checker a value of the annotated type, which it becomes
    row: Any = Row(default, {"ours": ours, **said})
    return row  # type: ignore[no-any-return]


def _unmodelled(status: Status, default: T, note: str, said: dict[str, Any]) -> T:
    return option(default, status=status, note=note, **said)


def checked(default: T, note: str = "", **said: Any) -> T:
    """A row of an option that rules read, and no field of ours means."""
    return _unmodelled(Status.CHECKED, default, note, said)


def harmless(default: T, note: str = "", **said: Any) -> T:
    """A row of an option without effect on memory and time."""
    return _unmodelled(Status.HARMLESS, default, note, said)


def unpriced(default: T, note: str, **said: Any) -> T:
    """A row of an option whose effect on memory or time (`note`) is not modelled."""
    return _unmodelled(Status.UNPRICED, default, note, said)


def refused(default: T, note: str, **said: Any) -> T:
    """A row of an option that makes the job another one (`note`)."""
    return _unmodelled(Status.REFUSED, default, note, said)
