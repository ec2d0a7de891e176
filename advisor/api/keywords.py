"""Keywords of a Python call as a Request: short names, Python types, overrides as a mapping."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from msgspec.structs import asdict

from advisor.api.answering import checked_price
from advisor.api.asked_files import PlotKind
from advisor.base.errors import UserError, nearest_names, show
from advisor.base.fields import convert, field_types, optional_type, spelled
from advisor.job.layout import SHORT_NAMES
from advisor.models.presets import ModelSource
from advisor.request.given import GROUPS
from advisor.request.request import Request, SearchScope

if TYPE_CHECKING:
    from advisor.reading.read_configuration import ReadConfiguration


class JobKeywords(TypedDict, total=False):
    """Every flag of `advise` that describes the job. A keyword that is left out, or None, comes
    from the recipe or is chosen. model is a preset (``llama3_70b``), the path of a YAML file or of
    a config.json, a ModelSpec, or a mapping of its fields (``base``: the preset below them); gpus
    is ``32xH100``. tp, pp, … are short names as in the flags; memory_budget is text with a unit
    (``60GiB``); lengths is ``p50=900,p99=9000,max=32768`` or a file; calibration names folders of
    measured runs; overrides has any KEY."""

    model: ModelSource | None
    gpus: str | None
    seq_length: int | None
    micro_batch_size: int | None
    global_batch_size: int | None
    lengths: str | Path | None
    packing: str | None
    max_tokens_per_gpu: int | None
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


class AdviseKeywords(JobKeywords, total=False):
    """JobKeywords, where the job is from (source: a launch script or configuration), what is
    searched, and what of the answer is given, explained, rehearsed and written to files. output is
    the answer itself, as its ending says (``.html``, the explorer; ``.json``, ``.csv``). explain 0
    is `Advice.best`; top None is all."""

    source: str | Path | None
    recompute: str | Sequence[str]
    search: str | None
    quick: bool | None
    top: int | None
    front: bool
    explain: int | None
    verify: int | None
    price_per_gpu_hour: float | None
    output: str | Path | None
    plot: str | Path | None
    plot_kind: str | None
    trace: str | Path | None
    memory_snapshot: str | Path | None
    row: int | None


_DEGREES: Final = {short.lower(): name for short, name in SHORT_NAMES.items() if short != "DP"}
SHORT: Final = _DEGREES | {"sp": "sequence_parallel"}
_OTHER: Final = SHORT | {"unsaid": "omitted", "output": "written"}
"""Keywords whose field has another name; `unsaid` is taken for one release more."""
KNOWN: Final = tuple(AdviseKeywords.__annotations__)
_INTEGERS: Final = (
    *("seq_length", "micro_batch_size", "global_batch_size", "max_tokens_per_gpu"),
    *_DEGREES.values(),
)
_ELSEWHERE: Final = {
    "dp": "it follows from the GPUs and the other degrees",
    "against": "compare with advisor.diff(first, second)",
    "format": "use Advice.to_json(), rows() or table(), or output with an ending",
    "show_rejected": "Advice.rejected lists them",
    "solve": 'call advisor.solve("seq_length", …)',
}
"""Flags of the command that are no keywords, and what there is in their place."""


def given_by(keywords: Mapping[str, Any], kind: Any = AdviseKeywords) -> dict[str, Any]:
    """Values by their fields; UserError where a keyword is none of `kind`, has another type, or is
    given twice with two values."""
    given: dict[str, Any] = {}
    for keyword, value in keywords.items():
        if keyword not in kind.__annotations__:
            hint = _ELSEWHERE.get(keyword) or nearest_names(keyword, kind.__annotations__)
            raise UserError("is not a keyword", None, keyword, hint)
        name = _OTHER.get(keyword, keyword)
        found = None if value is None else _READERS.get(name, _text)(value, keyword)
        if found is not None and given.setdefault(name, found) != found:
            relation = f"cannot be combined with {name}={given[name]}"
            raise UserError(keyword, show(value), relation, "give one")
    return given


def taken(given: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Those of the names, which are `given` no longer."""
    return {name: given.pop(name) for name in names if name in given}


def job_of(
    given: Mapping[str, Any], job: Request | None = None, *, whole: bool = True
) -> tuple[Request, "ReadConfiguration | None"]:
    """The request that the fields make, and the configuration of its `source`, if it has one: what
    is given goes before what `job` says. UserError unless it is `whole`: with model and GPUs."""
    if not isinstance(job, Request | None):
        raise UserError("request", show(job), "must be a Request", 'write model="llama3_8b"')
    given = dict(given)
    source = given.pop("source", "") or (job.source if job else "")
    earlier = _changed(job) if job else {}
    given["overrides"] = (*earlier.get("overrides", ()), *given.get("overrides", ()))
    given = earlier | given
    if source:
        from advisor.lint.request_from import read_job

        read = read_job(source, given, whole=whole)
        return read.request, read.configuration
    for name, example in (("model", "llama3_70b"), ("gpus", "32xH100")):
        if name == "gpus" and "," in given.get(name, ""):
            raise UserError(name, given[name], "is several GPUs", "use advisor.compare([…])")
        if not given.get(name):
            raise UserError(name, None, "is missing", f'write e.g. {name}="{example}"')
    return Request(**given), None


def _changed(job: Request) -> dict[str, Any]:
    """What a job says other than the file that it was read from."""
    if not job.source:
        return asdict(job)
    read = asdict(job_of({"source": job.source}, whole=False)[0])
    changed = {name: value for name, value in asdict(job).items() if value != read[name]}
    changed.pop("omitted", None)
    return changed | {"overrides": tuple(x for x in job.overrides if x not in read["overrides"])}


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
    **dict.fromkeys((*_INTEGERS, "top", "verify", "row"), at_least_one),
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
    "lengths": lambda value, name: str(_folder(value, name)),
    "calibration": _folders,
    "source": lambda value, name: str(_folder(value, name)),
    "model": lambda value, name: value,
    "explain": lambda value, name: 0 if value == 0 else at_least_one(value, name),
    "price_per_gpu_hour": lambda value, name: checked_price(convert(value, float, "", name), name),
    "front": _reader(bool),
    "plot_kind": _reader(PlotKind),
    **dict.fromkeys(("written", "plot", "trace", "memory_snapshot"), _folder),
}
