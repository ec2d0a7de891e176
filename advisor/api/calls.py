"""What `import advisor` calls: `advise`, `evaluate`, `read`, `diff` and the rest."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, Unpack

from msgspec.structs import asdict

from advisor.answer import difference
from advisor.answer.advice import Advice, Candidate
from advisor.answer.notebook import preformatted
from advisor.api.admission import Admission, admission
from advisor.api.answering import answer_to
from advisor.api.asked_files import AskedFiles, check_files, check_path, write_answer, write_files
from advisor.api.in_python import in_python
from advisor.api.keywords import AdviseKeywords, JobKeywords, given_by, job_of, taken
from advisor.base.errors import UserError, show
from advisor.base.json_schema import json_schema as schema_of
from advisor.hardware import catalogue
from advisor.models import presets
from advisor.report.difference_page import difference_page
from advisor.report.plain_advice import plain_advice
from advisor.report.text import plain_lines
from advisor.request.request import Request

_P = ParamSpec("_P")
_R = TypeVar("_R")


def python_errors(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """`call`, whose errors speak Python."""

    @wraps(call)
    def spoken(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return call(*args, **kwargs)
        except UserError as error:
            raise in_python(error, kwargs) from None

    return spoken


load_model = python_errors(presets.load_model)
load_gpu = python_errors(catalogue.load_gpu)


@python_errors
def advise(request: Request | None = None, **keywords: Unpack[AdviseKeywords]) -> Advice:
    """Rank every legal recompute setting of a job: what `advise --format json` answers.

    Args:
        request: a job, e.g. of `read`; keywords go before what it says.
        keywords: the flags of the command, e.g. ``model="llama3_70b"``, ``gpus="32xH100"``,
            ``tp=4``, ``seq_length=8192``, ``recompute=["none", "selective:mlp"]``,
            ``search="layout"``, ``overrides={"model.num_layers": 12}``, ``quick=True`` for the job
            as typed alone, ``output="job.html"`` to write the explorer.

    Sizes in the answer are bytes, times seconds. Raises UserError if the request is wrong. If
    nothing fits, `Advice.fits` is False.
    """
    given = given_by(keywords)
    files = AskedFiles(**taken(given, AskedFiles.__struct_fields__))
    asked = taken(given, ("explain", "verify"))
    shown = taken(given, ("top", "front", "price_per_gpu_hour"))
    if files != AskedFiles():
        check_files(files)
    if files.written:
        check_path("-o", files.written, (".html", ".json", ".csv"))
    job, read = job_of(given, request)
    answer = answer_to(job, read=read, **asked)
    found = plain_advice(answer, read=read, explained=asked.get("explain"), **shown)
    call = f"advisor.advise({', '.join(f'{name}={value!r}' for name, value in keywords.items())})"
    write_files(answer, files, call, shown.get("top"))
    if files.written:
        write_answer(files.written, answer, found, job, call)
    return found


@python_errors
def evaluate(
    recompute: str, request: Request | None = None, **keywords: Unpack[JobKeywords]
) -> Candidate:
    """Predict memory and time of one setting: ``evaluate("selective:mlp", model=…, gpus=…)``.

    request, keywords: as for `advise`. Raises UserError if the request is wrong or the framework
    refuses the setting.
    """
    given = given_by(keywords, JobKeywords) | given_by({"recompute": recompute, "quick": True})
    job, read = job_of(given, request)
    return plain_advice(answer_to(job, read=read)).candidates[0]


@python_errors
def check(request: Request | None = None, **keywords: Unpack[AdviseKeywords]) -> Admission:
    """Say whether one job fits as it is, before it starts: what `advise check` prints.

    Args:
        request: a job, e.g. of `read`; keywords go before what it says.
        keywords: as for `advise`; ``source`` is a launch script or configuration, ``recompute`` one
            setting (else that of the source, or none).

    The result is true where the job fits. Sizes are bytes. Raises UserError if the request is
    wrong, or if the framework refuses the job.
    """
    return admission(*job_of(given_by(keywords), request))


@python_errors
def read(source: str | Path, **keywords: Unpack[JobKeywords]) -> Request:
    """The job of a launch script or configuration file of any framework: what `--from` reads.

    Args:
        source: the file; ``train.sh#2`` is its second job.
        keywords: as for `advise`; they go before what the file says.

    Pass it to `advise` or `evaluate`, with the GPUs if the file does not state them, and with what
    is to change: ``advise(job, gpus="8xH100", tp=8)``. Raises UserError if the file cannot be read,
    or holds no job, or several.
    """
    given = given_by(keywords, JobKeywords) | given_by({"source": source})
    return job_of(given, whole=False)[0]


class Difference(difference.Difference, frozen=True, kw_only=True):
    """One that prints as the page of `advise diff`."""

    def __str__(self) -> str:
        return "\n".join(plain_lines(difference_page(self)))

    def _repr_html_(self) -> str:
        """How a notebook shows it: the same page."""
        return preformatted(str(self))


@python_errors
def diff(first: Advice, second: Advice) -> Difference:
    """Compare two jobs as typed and the rows that are best of them (`Advice.as_typed`), as `advise
    diff` does. Differences are second minus first, in bytes and seconds. UserError for anything but
    two answers."""
    for name, one in (("first", first), ("second", second)):
        if not isinstance(one, Advice):
            raise UserError(
                name, show(one), "must be an Advice", "write diff(advise(…), advise(…))"
            )
    return Difference(**asdict(difference.difference(first, second)))


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of `Advice.to_json` and `advise --format json`; the same text
    is shipped as advisor/api/advice.schema.json."""
    return schema_of(Advice, title="advise --format json, schema_version 1")


def diff_schema() -> dict[str, Any]:
    """The JSON Schema of `Difference.to_json`; the same text is shipped as
    advisor/api/difference.schema.json."""
    return schema_of(difference.Difference, title="advise diff --format json, schema_version 1")
