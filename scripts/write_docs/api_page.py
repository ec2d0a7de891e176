"""What docs/api.md says of calls, keywords and types, made of their signatures and docstrings.

A docstring says of a field what it is after ``field:``, in a list under ``Attributes:`` or in the
text; what comes before the first of these is of the whole type.
"""

import ast
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from textwrap import dedent, fill
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

import yaml
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

import advisor
import advisor.request.request
import harness
from advisor.api.keywords import SHORT, AdviseKeywords, JobKeywords
from advisor.base.fields import field_types, spelled
from advisor.cli.arguments import choices
from advisor.cli.help import RANKING
from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import GpuFields
from advisor.models.presets import ModelSource
from advisor.request.given import GROUPS
from harness.calibration.conclusion import CalibrationOutcome
from harness.execution.signals import Stop
from harness.logs.ingestion import Ingested
from harness.logs.parse import ParsedLog

# An annotation that is imported for type checking alone.
advisor.request.request.ModelSource = ModelSource  # type: ignore[attr-defined]
ANSWERS: Final = (
    *(advisor.Advice, advisor.Admission, advisor.Difference, advisor.Solution, advisor.Request),
    advisor.ModelSpec,
)
RESULTS: Final = (
    *(harness.RunOutcome, harness.SweepOutcome, harness.Comparison, harness.TrialResult),
    *(CalibrationOutcome, Ingested),
)
_INNER: Final = (Calibration, ParsedLog, Stop)
"""Types whose fields are not public."""
SAID: Final[dict[str, str]] = yaml.safe_load(
    Path(__file__).with_name("fields.yaml").read_text("utf-8")
)
"""Meanings of fields that no docstring says, by ``TYPE.FIELD`` or by ``FIELD``."""
CALLS: Final = {
    f"{package.__name__}.{name}": getattr(package, name)
    for package in (advisor, harness)
    for name in package.__all__
    if callable(getattr(package, name)) and not isinstance(getattr(package, name), type)
}
_UNITS: Final = (
    (r"bytes_per_second$", "bytes/s"),
    (r"tokens_per_second", "tokens/s"),
    (r"tflops", "TFLOP/s"),
    (r"_flops$", "FLOP/s"),
    (r"flops_per_step", "FLOP"),
    (r"gpu_hours", "hours of a GPU"),
    (r"joules", "J"),
    (r"watts$", "W"),
    (r"mhz$", "MHz"),
    (r"celsius$", "°C"),
    (r"bytes(_per_layer)?$", "bytes"),
    (r"seconds$", "s"),
)
"""Units by the ends of names."""
_OF_THE_WHOLE: Final = {"Bytes": "bytes", "Seconds": "s"}
"""Units of all numbers of a type whose docstring begins so."""
KEYS: Final = (*GROUPS.values(), advisor.ModelSpec.__mro__[1], GpuFields)


def types_of(*roots: type) -> list[type[Struct]]:
    """The records that instances of `roots` hold, and those that they extend under other names."""
    found: list[type[Struct]] = []
    left: list[Any] = list(roots)
    while left:
        kind = left.pop(0)
        if isinstance(kind, type) and issubclass(kind, Struct):
            if kind not in (*found, *_INNER, Struct):
                found.append(kind)
                left += [*field_types(kind).values(), *kind.__bases__]
        else:
            left += get_args(kind)
    extended = {base for kind in found for base in _same(kind)[1:]}
    own = (kind for kind in found if kind not in extended)
    return sorted(own, key=lambda kind: (kind not in roots, kind.__name__))


def heading(kind: type) -> str:
    """The name of a type; of one of a run, where an answer's has the same name, whose it is."""
    taken = kind.__name__ in {one.__name__ for one in types_of(*ANSWERS) if one is not kind}
    return f"{kind.__name__} of a run" if taken else kind.__name__


def _link(kind: type) -> str:
    return f"[{kind.__name__}](#{heading(kind).lower().replace(' ', '-')})"


def call(name: str) -> str:
    """How a function is called, what it does, its arguments."""
    function = CALLS[name]
    source = ast.parse(dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
    assert isinstance(source, ast.FunctionDef)
    returns = ast.unparse(source.returns).strip("'") if source.returns else ""
    for node, value in zip(source.args.kwonlyargs, source.args.kw_defaults, strict=True):
        if isinstance(value, ast.Name):  # a constant of ours
            default = inspect.signature(function).parameters[node.arg].default
            value.id = repr(str(default))
    words = re.sub(r"Unpack\[(\w+)\]", r"\1", ast.unparse(source.args))
    words = re.sub(r"(?<=[\w\]])=(?=\S)", " = ", words)
    line = fill(
        f"{name}({words}) -> {returns}", 100, subsequent_indent="    ", break_long_words=False
    )
    about, _, rest = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    arguments, _, closing = rest.partition("\n\n")
    listed = [
        "- `{}`: {}".format(*_joined(one).partition(": ")[::2])
        for one in re.split(r"\n    (?=\S)", f"\n{arguments}")
        if one.strip()
    ]
    parts = (f"```text\n{line}\n```", _text(about), _wrapped(listed), _text(closing))
    return "\n\n".join(filter(None, parts))


def keywords() -> str:
    """The keywords of `advise`, `evaluate` and `read`, with what the help says of the flags."""
    rows = ["| keyword | type | of | meaning |", "|---|---|---|---|"]
    for name, kind in AdviseKeywords.__annotations__.items():
        if name != "unsaid":  # the former name of omitted
            of = "all" if name in JobKeywords.__annotations__ else "`advise`"
            rows.append(f"| `{name}` | {_type(kind)} | {of} | {_cell(keyword(name))} |")
    return "\n".join(rows)


def keyword(name: str) -> str:
    """What a keyword is, by the help of its flag; empty where there is no such flag."""
    if name in SHORT:
        return f"short for `{SHORT[name]}`"
    texts = {flag.name: flag.text for flag in RANKING.flags} | _MORE
    text = texts.get(name, "")
    return (
        text.replace("{choices}", ", ".join(map(str, choices(name))))
        if "{choices}" in text
        else text
    )


_MORE: Final = {
    "overrides": "any KEY: a mapping, or `KEY=VALUE` texts",
    "sequence_parallel": "sequence parallelism, or none",
    "output": "write the answer: `.html` is the explorer, `.json`, `.csv`",
    "takes_recipe": "False: values that are not given are the framework's defaults",
    "omitted": "paths of given values that are only the framework's defaults",
    "recompute": "settings to rank instead of all; `advisor.evaluate` names one",
    "source": "a launch script or configuration whose job it is; `read` gives the job",
    "top": "number of candidates to return; None returns all",
    "price_per_gpu_hour": "for `Candidate.price_per_trillion_tokens`, in any currency",
    "explain": "rank of the candidate whose bytes and seconds `Advice.explain` has; 0 is `best`",
    "verify": "how many to rehearse with Megatron Core, which must be installed",
}


def types(*roots: type, known: Iterable[type] = ()) -> str:
    """A section for each type; those that are `known` have theirs elsewhere on the page."""
    kinds, there = types_of(*roots), set(known)
    own = (kind for kind in kinds if kind not in there)
    return "\n\n".join(_section(kind, {*kinds, *there}, kind in roots) for kind in own)


def meaning(kind: type[Struct], name: str) -> str:
    """What a field is; of a field that is a KEY what its flag is, or else its default."""
    said = _read(kind)[1].get(name) or SAID.get(f"{kind.__name__}.{name}")
    if kind in (*KEYS, advisor.Request) and not said and (said := keyword(name)):
        return said
    if kind in KEYS and not said:
        default = next(one.default for one in fields(kind) if one.name == name)
        return "" if default in (NODEFAULT, "", ()) else f"default: {spelled(default)}"
    return said or SAID.get(name, "")


def _section(kind: type[Struct], known: set[type], public: bool) -> str:
    bases = [base for base in kind.__bases__ if base is not Struct and base not in _same(kind)]
    inherited = {name for base in bases for name in getattr(base, "__struct_fields__", ())}
    about, _ = _read(kind)
    unit = _OF_THE_WHOLE.get(about.split(" ", 1)[0], "")
    rows = []
    for name, annotation in field_types(kind).items():
        if name not in inherited:
            words = ", ".join(
                filter(None, (_type(annotation, known), _unit(name, annotation, unit)))
            )
            rows.append(f"| `{name}` | {words} | {_cell(meaning(kind, name))} |")
    if kind not in KEYS and (public or "harness" not in kind.__module__):
        rows += _members(kind, known)
    linked = ", ".join(map(_link, bases))
    more = f"It also has the fields of {linked}." if linked else ""
    head = ["| field | type, unit | meaning |", "|---|---|---|", *rows] if rows else []
    parts = (f"### {heading(kind)}", _text(about), more, "\n".join(head))
    return "\n\n".join(filter(None, parts))


def _members(kind: type, known: set[type]) -> Iterator[str]:
    """Its properties and methods."""
    own = {name: member for base in reversed(_same(kind)) for name, member in vars(base).items()}
    for name, member in own.items():
        function = (
            member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        )
        if name.startswith("_") or name == "html_with" or not inspect.isfunction(function):
            continue
        brackets = "" if isinstance(member, property) else _brackets(function)
        hint = inspect.get_annotations(function).get("return", "")
        returns = hint.strip('"') if isinstance(hint, str) else _type(hint, known)
        text = _joined(inspect.getdoc(function) or "")
        yield f"| `{name}{brackets}` | {returns} | {_cell(text)} |"


def _same(kind: type) -> list[type]:
    """The type, and the one of its name that it extends."""
    return [one for one in kind.__mro__ if one.__name__ == kind.__name__]


def _brackets(function: Callable[..., Any]) -> str:
    names = [
        str(one.replace(annotation=one.empty))
        for name, one in inspect.signature(function).parameters.items()
        if name not in ("self", "cls")
    ]
    return f"({', '.join(names)})"


def _read(kind: type) -> tuple[str, dict[str, str]]:
    """What the docstring says of the whole, and of each field."""
    text = inspect.getdoc(_same(kind)[-1]) or ""
    about, _, listed = text.partition("\nAttributes:\n")
    fields = "|".join(kind.__struct_fields__)
    start = rf"(?:(?<=\n)|(?<=[.;] )|(?<=[.;]\n))((?:{fields})(?:,\s+(?:{fields}))*): "
    if listed:
        start = rf"(?:\A|\n)    ((?:{fields})(?:,\s+(?:{fields}))*): "
    parts = re.split(start, listed or text)
    meanings = {}
    for names, meaning in zip(parts[1::2], parts[2::2], strict=True):
        for name in re.split(r",\s+", names):
            meanings[name] = _joined(meaning).rstrip(".;")
    return about if listed else parts[0], meanings


def _type(kind: Any, known: Collection[type] = ()) -> str:
    """A type as Markdown, with the values of an enum and a link to a type of the page."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(f"`{member.value}`" for member in kind)
    arguments = [_type(one, known) for one in get_args(kind) if one is not Ellipsis]
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return " or ".join(arguments).replace("NoneType", "None")
    if arguments:
        between = " to " if issubclass(origin, Mapping) else ", "
        return f"{origin.__name__} of {between.join(arguments)}"
    return _link(kind) if kind in known else getattr(kind, "__name__", str(kind))


def _unit(name: str, annotation: Any, whole: str) -> str:
    numbers = re.search(r"\b(?:int|float)\b", str(annotation)) is not None
    if not numbers:
        return ""
    return whole or next((unit for end, unit in _UNITS if re.search(end, name)), "")


def _joined(text: str) -> str:
    """One line, in Markdown's marks."""
    return re.sub(r"``(.+?)``", r"`\1`", " ".join(text.split()))


def _text(text: str) -> str:
    """Paragraphs, wrapped."""
    return "\n\n".join(
        fill(_joined(one), 110, **_WHOLE_WORDS) for one in text.split("\n\n") if one.strip()
    )


def _wrapped(lines: list[str]) -> str:
    return "\n".join(fill(line, 110, subsequent_indent="  ", **_WHOLE_WORDS) for line in lines)


_WHOLE_WORDS: Final[dict[str, Any]] = {"break_long_words": False, "break_on_hyphens": False}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").strip()
