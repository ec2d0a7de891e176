"""Keywords of a Python call as a Request: short names, Python types, overrides as a mapping."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypedDict

from advisor.base.errors import UserError
from advisor.base.fields import convert, field_types, optional_type, show, spelled
from advisor.base.units import nearest_names
from advisor.job.layout import SHORT_NAMES
from advisor.models.presets import ModelSource
from advisor.request.given import GROUPS
from advisor.request.request import Request, SearchScope


class JobKeywords(TypedDict, total=False):
    """Every flag of `advise` that describes the job. A keyword that is left out, or None, comes
    from the recipe or is chosen. tp, pp, … are short names as in the flags (tp is
    tensor_model_parallel_size); memory_budget is text with a unit (``60GiB``); calibration names
    folders of measured runs."""

    seq_length: int | None
    micro_batch_size: int | None
    global_batch_size: int | None
    tensor_model_parallel_size: int | None
    pipeline_model_parallel_size: int | None
    virtual_pipeline_model_parallel_size: int | None
    context_parallel_size: int | None
    expert_model_parallel_size: int | None
    expert_tensor_parallel_size: int | None
    sequence_parallel: bool | None
    tp: int | None
    pp: int | None
    vpp: int | None
    cp: int | None
    ep: int | None
    etp: int | None
    sp: bool | None
    precision: str | None
    framework: str | None
    framework_version: str | None
    memory_budget: str | None
    certainty: float | None
    overrides: Mapping[str, object] | Sequence[str]
    config_dir: str | Path | None
    calibration: str | Path | Sequence[str | Path]
    takes_recipe: bool
    omitted: Sequence[str]
    unsaid: Sequence[str]


class RequestKeywords(JobKeywords, total=False):
    """JobKeywords and the search: recompute, the settings to rank instead of all; search,
    ``recompute``, ``layout`` or ``optimum``; quick, the job as typed alone: nothing faster is
    looked for."""

    recompute: str | Sequence[str]
    search: str | None
    quick: bool | None


_DEGREES: Final = {short.lower(): name for short, name in SHORT_NAMES.items() if short != "DP"}
SHORT: Final = _DEGREES | {"sp": "sequence_parallel"}
_FORMER: Final = {"unsaid": "omitted"}
"""Names of keywords that are taken for one release more."""
_KNOWN: Final = tuple(RequestKeywords.__annotations__)
_INTEGERS: Final = ("seq_length", "micro_batch_size", "global_batch_size", *_DEGREES.values())


def request_of(model: ModelSource, gpus: str, keywords: Mapping[str, Any]) -> Request:
    """The request that the keywords make; UserError where one is not known, has another type, or
    is given twice with two values."""
    for name, value, example in (("model", model, "llama3_70b"), ("gpus", gpus, "32xH100")):
        if not value:
            raise UserError(name, "(none)", "is missing", f'write e.g. {name}="{example}"')
    given: dict[str, Any] = {}
    for keyword, value in keywords.items():
        if keyword not in _KNOWN:
            hint = nearest_names(keyword, _KNOWN)
            raise UserError(keyword, show(value), "is not a keyword of advise", hint)
        name = (SHORT | _FORMER).get(keyword, keyword)
        if value is not None and given.setdefault(name, value) != value:
            raise UserError(
                keyword, show(value), f"cannot be combined with {name} = {given[name]}", "give one"
            )
    return Request(
        model=model,
        gpus=convert(gpus, str, "", "gpus"),
        **{name: _READERS.get(name, _text)(value, name) for name, value in given.items()},
    )


def _text(value: object, name: str) -> str:
    text: str = convert(value, str, "", name)
    return str(text)


def at_least_one(value: object, name: str) -> int:
    """A whole number of at least 1; UserError where it is none."""
    number: int = convert(value, int, "", name)
    if number < 1:
        raise UserError(name, number, "must be at least 1")
    return number


def _size(value: object, name: str) -> str:
    """A size with its unit; a number could be bytes as well as GiB."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise UserError(name, show(value), "needs a unit", f'write e.g. {name}="60GiB"')
    return _text(value, name)


def _reader(kind: Any) -> Callable[[object, str], Any]:
    """What reads values of a type."""
    return lambda value, name: convert(value, kind, "", name)


def _settings(value: object, name: str) -> tuple[str, ...]:
    several = [value] if isinstance(value, str) else value
    texts: tuple[str, ...] = convert(several, tuple[str, ...], "", name)
    return texts


def overrides_of(value: object, name: str = "overrides") -> tuple[str, ...]:
    """``KEY=VALUE`` of a mapping with Python values, of one text, or of several."""
    if not isinstance(value, Mapping):
        return _settings(value, name)
    for key, item in value.items():
        if isinstance(item, list | tuple) and _takes_one(str(key)):
            raise UserError(str(key), show(item), "must be one value, not a list")
    return tuple(f"{key}={spelled(item)}" for key, item in value.items())


def _takes_one(key: str) -> bool:
    """Whether the field of a KEY is a number or a boolean."""
    group, _, name = key.partition(".")
    kind = field_types(GROUPS[group]).get(name) if group in GROUPS else None
    return (optional_type(kind) or kind) in (int, float, bool)


def _folder(value: object, name: str) -> Path:
    return value if isinstance(value, Path) else Path(_text(value, name))


def _folders(value: object, name: str) -> tuple[Path, ...]:
    several = value if isinstance(value, list | tuple) else [value]
    return tuple(_folder(one, name) for one in several)


_READERS: Final[dict[str, Callable[[object, str], Any]]] = {
    **dict.fromkeys(_INTEGERS, at_least_one),
    "sequence_parallel": _reader(bool),
    "takes_recipe": _reader(bool),
    "quick": _reader(bool),
    "omitted": _settings,
    "recompute": _settings,
    "search": _reader(SearchScope),
    "memory_budget": _size,
    "certainty": _reader(float),
    "overrides": overrides_of,
    "config_dir": _folder,
    "calibration": _folders,
}
