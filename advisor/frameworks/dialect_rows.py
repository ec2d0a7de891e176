"""Frameworks whose parts are mostly another's: their options are rows of configs/options/NAME.json.

A row is an option by its key: `path`, the field of ours that it means, or `as`, the option of the
framework below that it is another name of; `default`, its value where it is left out; `values`,
ours by theirs (`*`: all others); `kind`: of its value, where neither tells it (`names`: a list of
words, `commas`: the same in one); `times`: ours is as many times its number; `if`: a path that has
to be set for the option to count, or PATH=VALUE; `printed`: false where it is read alone; `always`:
true where it is printed even if the value is the usual one; `with`: options that are printed next
to it. An option that means several fields has a list of rows. `assumed`: fields of a job as it runs
there (as_it_runs). `harmless`, `unpriced` and `predicted` are those of `option.listed`; `names`:
all options that its parsers know; `marks` tell whose a document is: `keys`, one of which it has,
`programs`, a pattern of the words of a command, and `calls`, one of those in Python. `asked`: see
Asked.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import translate
from functools import cache, partial, reduce
from typing import Any, Final

from msgspec import Struct, convert, json
from msgspec.structs import replace

from advisor.base.configuration import packaged_configs
from advisor.base.errors import UserError
from advisor.base.fields import field_types
from advisor.base.record import defaults
from advisor.base.units import whole_number
from advisor.frameworks.option import Option, Status, listed, meant, options_file, text_of
from advisor.job.job import Job, JobConfig
from advisor.job.tuning import ALL_LINEAR
from advisor.reading.command_options import options
from advisor.reading.python_source import PythonSource
from advisor.reading.read_configuration import Document, as_whole_number, truth
from advisor.reading.shell import ShellCommand

LAUNCHERS: Final = frozenset(("compute_environment", "zero_optimization", "distributed_type"))
"""Keys of the files of Accelerate and DeepSpeed, one of which each has."""
_LINEAR: Final = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
_LAYERS: Final = ("model.layers", "model.language_model.layers", "language_model.model.layers")
_KINDS: Final = {one.__name__: one for one in (bool, int, float, str)}
_PLAIN: Final = defaults(JobConfig)


class Row(Option, frozen=True, kw_only=True):
    """An option of a dialect. named: of the framework below, that it is another name of."""

    named: str = ""
    values: Mapping[str, Any] = {}
    only_if: str = ""
    printed: bool = True
    always: bool = False
    joined: bool = False
    along: Mapping[str, Any] = {}

    @property
    def omitted_meaning(self) -> Any:
        """What it means where it is left out, in our words; None: nothing."""
        return None if self.default is None else self.meaning(self.default)

    def spelled(self, ours: Any) -> Any:
        """The value of its own that means `ours`; None where there is none."""
        names = (name for name, meant in self.values.items() if text_of(meant) == text_of(ours))
        found = next((name for name in names if name != "*"), None)
        if found is None:
            if isinstance(ours, tuple) and getattr(self.means, "func", None) is _names:
                return ",".join(ours) if self.joined else [*ours]
            return None if self.values else ours
        number = whole_number(found)
        return truth(found) if found in ("true", "false") else found if number is None else number


def _names(values: Mapping[str, Any], value: Any) -> tuple[str, ...] | None:
    """A list, or a text with commas or blanks; one of `values` alone means others."""
    found = value if isinstance(value, list | tuple) else re.split(r"[,\s]+", str(value))
    texts = (text for one in found if (text := str(one).strip("[]'\"")))
    named = tuple(dict.fromkeys(name for text in texts for name in last_names(text)))
    return (values[named[0]],) if len(named) == 1 and named[0] in values else named or None


def last_names(text: str) -> tuple[str, ...]:
    """Last names of the layers that a path, or a pattern of paths, means in every decoder layer;
    the text itself where it is a name, or means none or those of some layers."""
    if re.fullmatch(r"[\w-]+", text):
        return (text,)
    try:
        own = re.compile(rf"(.*\.)?(?:{translate(text) if text[0] == '*' else text})")
    except re.error:
        return (text,)
    each = {one: [[f"{at}.{n}.{one}" for n in (0, 1, 11)] for at in _LAYERS] for one in _LINEAR}
    found = [one for one, ways in each.items() if any(all(map(own.fullmatch, w)) for w in ways)]
    if text[0] == "*" and len(found) == len(_LINEAR):
        return (ALL_LINEAR,)
    return tuple(one.rpartition(".")[2] for one in found) or (text,)


file_of: Final = cache(options_file)


def _product(times: int, value: Any) -> int | None:
    number = as_whole_number(value)
    return None if number is None else number * times


def _row(name: str, said: Mapping[str, Any]) -> Row:
    default, kind = said.get("default"), said.get("kind", "")
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in said.get("values", {}).items()}
    is_switch = bool(values) and not {*values} - {"true", "false"}
    usual = bool if is_switch else object if values or default is None else type(default)
    means = partial(meant, values) if values else None
    if kind in ("names", "commas"):
        means, usual = partial(_names, values), object
    elif "times" in said:
        means, usual = partial(_product, said["times"]), object
    named = said.get("as", "")
    return Row(
        name=name,
        kind=_KINDS.get(kind, usual),
        default=default,
        ours=said.get("path", ""),
        means=means,
        status=Status.HARMLESS if named else Status.MODELLED,
        note="read under another name" if named else "",
        named=named,
        values=values,
        only_if=said.get("if", ""),
        printed=said.get("printed", True),
        always=said.get("always", False),
        joined=kind == "commas",
        along=said.get("with", {}),
    )


@cache
def rows_of(name: str) -> tuple[Row, ...]:
    """The rows of a dialect that mean something."""
    rows = file_of(name).get("rows", {}).items()
    each = ((key, said if isinstance(said, list) else [said]) for key, said in rows)
    return tuple(_row(key, one) for key, several in each for one in several)


def names_of(name: str) -> tuple[str, ...]:
    """All options that its parsers know; empty where they are not listed."""
    return tuple(file_of(name).get("names", "").split())


def options_of(name: str, below: Iterable[Option] = ()) -> tuple[Option, ...]:
    """All options of a dialect, and those of the framework `below` that it says nothing of."""
    own = (*rows_of(name), *(listed(name) if "harmless" in file_of(name) else ()))
    names = {row.name for row in own if not (isinstance(row, Row) and row.named == row.name)}
    return (*(row for row in below if row.name not in names), *own)


class _Marks(Struct, frozen=True):
    """By what a document is known as a dialect's."""

    keys: tuple[str, ...] = ()
    programs: str = "(?!)"
    calls: str = "(?!)"

    def run(self, document: Document) -> bool:
        """Whether a command runs its program, or a module makes its objects."""
        if isinstance(document, ShellCommand):
            return bool(re.search(self.programs, " ".join(document.texts)))
        if not isinstance(document, PythonSource):
            return False
        calls = (call.name for way in document.ways for call in way.calls)
        return any(re.search(self.calls, name) for name in calls)

    def have(self, document: Document) -> int:
        """How many of its keys a file or a command has."""
        if isinstance(document, ShellCommand):
            names = (one.name.lstrip("-").replace("-", "_") for one in options(document.words))
            return len(set(self.keys).intersection(names))
        if isinstance(document, PythonSource):
            return 0
        return sum(document.get(*key.split(".")) is not None for key in self.keys)


class Asked(Struct, frozen=True):
    """Patterns of lines, without one of which a reader finds nothing: among a command's words and
    variables; a tree's format and the keys at its top; what Python imports and calls, and the keys
    of its dictionaries."""

    command: tuple[str, ...] = ()
    tree: tuple[str, ...] = ()
    python: tuple[str, ...] = ()

    def may_read(self, document: Document) -> bool:
        """Whether a document has such a line."""
        if isinstance(document, ShellCommand):
            patterns, lines = self.command, (*document.texts, *document.environment)
        elif isinstance(document, PythonSource):
            held = (one.value for way in document.ways for one in way.assigned.values())
            keys = (str(key) for one in held if isinstance(one, dict) for key in one)
            calls = (call.name for way in document.ways for call in way.calls)
            patterns, lines = self.python, (*document.imports, *calls, *keys)
        else:
            patterns, lines = self.tree, (document.format, *map(str, document.values))
        text = "\n".join(lines)
        return any(re.search(pattern, text, re.MULTILINE) for pattern in patterns)


class _File(Struct, frozen=True):
    """What of a file tells whose a document is."""

    marks: _Marks | None = None
    asked: Asked = Asked()


@cache
def _files() -> dict[str, _File]:
    paths = sorted((packaged_configs() / "options").glob("*.json"))
    return {path.stem: json.decode(path.read_bytes(), type=_File) for path in paths}


@cache
def _marks() -> dict[str, _Marks]:
    return {name: its.marks for name, its in _files().items() if its.marks}


def may_read(family: str, document: Document) -> bool:
    """Whether the reader of a framework that is no dialect may find something in a document."""
    return _files()[family].asked.may_read(document)


def dialect_names() -> tuple[str, ...]:
    """All dialects."""
    return tuple(_marks())


def dialect_of(document: Document) -> str:
    """The dialect that a document is written in; empty where it is none's."""
    marks = _marks()
    run = next((name for name, its in marks.items() if its.run(document)), "")
    most = max(marks, key=lambda name: marks[name].have(document))
    return run or (most if marks[most].have(document) else "")


def value_of(job: Job, path: str) -> Any:
    """The value of a field of a job by its path."""
    group, _, name = path.partition(".")
    if not name:
        return getattr(job, group)
    own = {"job": job.config, "layout": job.layout, "model": job.model}
    return getattr(own.get(group) or getattr(job.config, group), name)


def plain(path: str) -> Any:
    """The value of a field of a job where nobody says it; None where a request has to."""
    group, _, name = path.partition(".")
    return _PLAIN.get(name) if group == "job" else getattr(_PLAIN.get(group), name, None)


def counts(row: Row, value: Callable[[str], Any]) -> bool:
    """Whether what an option depends on is set, or is what it names."""
    path, _, wanted = row.only_if.partition("=")
    ours = value(path) if path else True
    if wanted:
        return text_of(ours) == wanted
    return bool(ours) and (ours is True or text_of(ours) != text_of(plain(path)))


def renamed(name: str, below: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the framework below, under the names and values that a dialect has for them."""
    rows = {row.named: row for row in reversed(rows_of(name)) if row.named and row.printed}
    found = {}
    for key, value in _leaves(below):
        row = rows.get(key)
        found[row.name if row else key] = row.spelled(value) if row else value
    return nested({key: value for key, value in found.items() if value is not None})


def _leaves(values: Mapping[str, Any], *path: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, *path, name)
        else:
            yield ".".join((*path, name)), value


def written(name: str, job: Job) -> dict[str, Any]:
    """What of a job its rows say and is not their default, by key."""
    found: dict[str, Any] = {}
    said = set[str]()
    for row in rows_of(name):
        if "." not in row.ours or not row.printed or row.ours in said:
            continue
        ours = value_of(job, row.ours)
        usual = plain(row.ours) if row.default is None else row.omitted_meaning
        if not counts(row, partial(value_of, job)):
            continue
        if text_of(ours) == text_of(usual) and not row.always:
            said.add(row.ours)
        elif ours is not None and (theirs := row.spelled(ours)) is not None:
            said.add(row.ours)
            found |= {row.name: theirs, **row.along}
    return found


def usual(framework: str, said: Mapping[str, str]) -> dict[str, str]:
    """Defaults of a dialect's heads by their paths, of how it deals samples, and of adapters and
    phases where there are any, as KEY=VALUE; not of what is `said`, nor of lengths, the job's.
    UserError on an algorithm that it lacks."""
    name = framework.removesuffix("_megatron")
    if name not in dialect_names():
        return {}
    if (kind := said.get("rl.algorithm")) in file_of(name).get("lacks", ()):
        raise UserError("rl.algorithm", kind, f"is not in {name}", "use another --framework")
    asked = [path for path, none in _SWITCHES.items() if said.get(path, none) != none]
    groups = (_BALANCED, *(f"{path.partition('.')[0]}." for path in (_HEAD, *asked)))
    rows = [row for row in rows_of(name) if row.ours.startswith(groups)]
    options = {r.name: r.spelled(said[r.ours]) for r in rows if r.ours in said}
    found = dict[str, str]()
    for row in rows:
        its = options.get(row.name)
        value = row.omitted_meaning if its is None else row.meaning(its)
        if value is not None and row.ours not in (*said, *_LENGTHS):
            found.setdefault(row.ours, text_of(value))
    own = file_of(name).get("megatron", {})
    if "heads" in own and ("switch" not in own or framework != name) and _HEAD not in said:
        found[_HEAD] = own["heads"][""]
    every = {**found, **said}
    idle = {row.ours for row in rows if row.only_if and not counts(row, every.get)}
    return {path: text for path, text in found.items() if path not in idle}


_SWITCHES: Final = {"tuning.adapter": "none", "rl.algorithm": "sft"}
_LENGTHS: Final = ("rl.prompt_length", "rl.response_length", *_SWITCHES)
_HEAD, _BALANCED = "head.implementation", "samples.balanced"


def as_it_runs(name: str, config: JobConfig, given: Collection[str]) -> JobConfig:
    """A job with what a dialect's file says under `assumed`, and under `assumed_with_engine` where
    one shares the GPUs, a value by its path, where it is not `given` (``job.NAME``): within a group
    of keys where it is not set otherwise."""
    of_all, of_engines = (file_of(name).get(key, {}) for key in ("assumed", "assumed_with_engine"))
    for path, value in {**of_all, **(of_engines if config.rl.shares_gpus else {})}.items():
        group, _, field = path.partition(".")
        record: Struct = config if group == "job" else getattr(config, group)
        if getattr(record, field) != plain(path) or (group == "job" and path in given):
            continue
        kind: type[Struct] = type(record)
        changed = {field: convert(value, field_types(kind)[field])}
        own = changed if group == "job" else {group: replace(record, **changed)}
        config = replace(config, **own)
    return config


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by their keys, as sections of a file."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        *sections, last = key.split(".")
        reduce(lambda held, section: held.setdefault(section, {}), sections, found)[last] = value
    return found
