"""Two answers side by side: what differs in their jobs, and in the rows that they choose.

Sizes are bytes, times seconds; a difference is that of the second less the first. Keys may be
added; while SCHEMA_VERSION is 1 none is renamed or removed.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, json
from msgspec.structs import asdict, replace

from advisor.answer.advice import Advice, AdvisedJob, Candidate
from advisor.answer.evaluation import MemoryBreakdown, TimeBreakdown
from advisor.base.fields import spelled
from advisor.base.plain_json import to_text

SCHEMA_VERSION: Final = 1
_FOLLOWS: Final = ("model_flops_per_step", "price_per_gpu_hour", "model", "layout", "gpus")
_FIGURES: Final = (
    *("rank", "fits", "fit_probability", "peak_stage", "peak_reserved_bytes"),
    *("peak_allocated_bytes", "step_time_seconds", "time_seconds", "tokens_per_second_per_gpu"),
)
"""Those of a candidate that a side has under the same names."""


class Side(Struct, frozen=True, kw_only=True):
    """The chosen row of one answer: the first that fits, else the first. Its figures are null or
    empty if nothing could be evaluated.

    Attributes:
        request: the request as text.
        memory_bytes: peak memory of the worst rank, by component.
        peak_phase: what the worst rank does then, as its stage in an answer has it.
        flags: the framework's flags of job and setting, one option each.
    """

    request: str
    model: str
    gpus: str
    framework: str
    framework_version: str
    calibration: str
    rank: int | None = None
    recompute: str = ""
    fits: bool = False
    fit_probability: float | None = None
    peak_stage: int | None = None
    peak_phase: str = ""
    peak_reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    memory_bytes: MemoryBreakdown | None = None
    step_time_seconds: float | None = None
    time_seconds: TimeBreakdown | None = None
    tokens_per_second_per_gpu: float | None = None
    flags: tuple[str, ...] = ()


class ChangedField(Struct, frozen=True, kw_only=True):
    """A value of the job that is not the same, as KEY=VALUE spells it, and where each comes from;
    an origin is empty where the value follows from others."""

    field: str
    first: str
    second: str
    first_origin: str = ""
    second_origin: str = ""


class Difference(Struct, frozen=True, kw_only=True):
    """What the second of two answers has other than the first.

    memory_bytes, time_seconds: by component and by phase, where both sides have a row.
    flags_only_first, flags_only_second: options that one of the two says alone.
    """

    schema_version: int = SCHEMA_VERSION
    first: Side
    second: Side
    job: tuple[ChangedField, ...]
    peak_reserved_bytes: int | None = None
    memory_bytes: dict[str, int]
    step_time_seconds: float | None = None
    time_seconds: dict[str, float]
    flags_only_first: tuple[str, ...]
    flags_only_second: tuple[str, ...]

    def to_json(self) -> str:
        """What `advise diff --format json` prints."""
        return to_text(self)


def difference(first: Advice, second: Advice, names: tuple[str, str] = ("", "")) -> Difference:
    """`second` less `first`; `names`: what was asked, in words."""
    a, b = (_side(one, name) for one, name in zip((first, second), names, strict=True))
    return Difference(
        first=a,
        second=b,
        job=tuple(_changed(first, second)),
        peak_reserved_bytes=_less(b.peak_reserved_bytes, a.peak_reserved_bytes),
        memory_bytes=_by_part(a.memory_bytes, b.memory_bytes),
        step_time_seconds=_less(b.step_time_seconds, a.step_time_seconds),
        time_seconds=_by_part(a.time_seconds, b.time_seconds),
        flags_only_first=tuple(flag for flag in a.flags if flag not in b.flags),
        flags_only_second=tuple(flag for flag in b.flags if flag not in a.flags),
    )


def _side(advice: Advice, name: str) -> Side:
    job, best = advice.job, advice.as_typed
    about = Side(
        request=name,
        model=job.model.name,
        gpus=f"{job.gpus.count}x{job.gpus.type}",
        framework=str(job.framework),
        framework_version=job.framework_version,
        calibration=advice.calibration.name,
    )
    if best is None:
        return about
    return replace(
        about,
        **{name: getattr(best, name) for name in _FIGURES},
        recompute=best.recompute.spec,
        memory_bytes=best.peak.memory_bytes,
        peak_phase=best.peak.peak_phase,
        flags=_options(advice, best),
    )


def _options(advice: Advice, best: Candidate) -> tuple[str, ...]:
    """Options of the job, then of the setting, each with its value."""
    framework = str(advice.job.framework)
    texts = (advice.job_flags.get(framework, ""), best.flags.get(framework, ""))
    return tuple(dict.fromkeys(option for text in texts for option in options_of(text)))


def options_of(text: str) -> Iterator[str]:
    """Each flag with its values, each KEY=VALUE, each key of a JSON object, each statement."""
    if text.startswith("{"):
        yield from _keys("", json.decode(text))
    elif "(" in text or text.endswith(";"):
        yield from filter(None, (part.rstrip(";") for part in text.split("; ")))
    else:
        words: list[str] = []
        for word in shlex.split(text):
            begins = word.startswith("-") or "=" in word or ":" in word
            # a word that may begin an option is the value of one that has none yet
            lacks = len(words) == 1 and words[0].startswith("--") and "=" not in words[0]
            if begins and words and (word.startswith("--") or not lacks):
                yield shlex.join(words)
                words = []
            words.append(word)
        if words:
            yield shlex.join(words)


def _keys(path: str, value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _keys(f"{path}.{key}" if path else str(key), item)
    else:
        yield f"{path}: {spelled(value)}"


def _changed(first: Advice, second: Advice) -> Iterator[ChangedField]:
    ours, theirs = _fields(first.job), _fields(second.job)
    for name in dict.fromkeys((*ours, *theirs)):
        if ours[name] != theirs[name]:
            yield ChangedField(
                field=name,
                first=spelled(ours[name]),
                second=spelled(theirs[name]),
                first_origin=_origin(first, name),
                second_origin=_origin(second, name),
            )


def _origin(advice: Advice, key: str) -> str:
    return advice.origin.get(key) or advice.origin.get(f"job.{key.partition('.')[0]}", "")


def _fields(job: AdvisedJob) -> dict[str, Any]:
    """Values by their KEY."""
    return {
        **{f"model.{name}": value for name, value in asdict(job.model).items()},
        "gpus.count": job.gpus.count,
        "gpus.type": job.gpus.type,
        **{f"layout.{name}": value for name, value in asdict(job.layout).items()},
        **dict(
            pair for one in asdict(job).items() if one[0] not in _FOLLOWS for pair in _keyed(*one)
        ),
    }


def _keyed(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A field of the job by its KEY; a group of keys each by its own."""
    if isinstance(value, Struct):
        yield from ((f"{name}.{key}", one) for key, one in asdict(value).items())
    else:
        yield f"job.{name}", value


def _less(value: Any, other: Any) -> Any:
    return None if value is None or other is None else value - other


def _by_part(first: Struct | None, second: Struct | None) -> dict[str, Any]:
    if first is None or second is None:
        return {}
    names: Sequence[str] = first.__struct_fields__
    return {name: getattr(second, name) - getattr(first, name) for name in names}
