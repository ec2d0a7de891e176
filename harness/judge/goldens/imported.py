"""Goldens of other suites as ours."""

from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from advisor.base.documents import read_json
from advisor.base.errors import UserError
from advisor.base.units import parse_gpus
from harness.base.collections import Scalar, flatten
from harness.judge.goldens.foreign import FIRST_STEP, guess_layout, read_layout
from harness.judge.goldens.golden import Golden, Identity, Meta, Provenance
from harness.judge.identity import CPU, workload_label
from harness.judge.results import load_results
from harness.logs.golden_layouts import Layout


class ImportRequest(Struct, frozen=True, kw_only=True):
    """A foreign golden and what its file does not say. fields: KEY=VALUE of the workload as far as
    it is known; like: a result of the same workload, instead. first_step: warm-up ends before."""

    path: Path
    reason: str
    gpus: str
    fields: tuple[str, ...] = ()
    like: Path | None = None
    layout: Layout | None = None
    first_step: int = FIRST_STEP
    source: str = ""
    date: str = ""


def import_golden(request: ImportRequest) -> Golden:
    """The golden that `request` means, of provenance "published"; UserError where it is wrong.

    Its environment is not known but for the GPUs. Of memory, Megatron-LM's files hold the last
    rank's peak, which under pipeline parallelism is not the fullest rank's.
    """
    if request.gpus != CPU:
        parse_gpus(request.gpus)
    values = read_json(request.path)
    layout = request.layout or guess_layout(values)
    fields = _fields(request)
    return Golden(
        meta=Meta(
            provenance=Provenance.PUBLISHED,
            reason=" ".join(request.reason.split()),
            date=request.date or datetime.now(UTC).date().isoformat(),
            source=request.source or f"{layout} golden {request.path.name}",
        ),
        identity=Identity(label=workload_label(fields), gpus=request.gpus, fields=fields),
        processes=(read_layout(values, layout, request.path, request.first_step),),
    )


def _fields(request: ImportRequest) -> dict[str, Scalar]:
    """What is known of the workload: it decides which results belong to the golden."""
    if request.like is not None:
        result = load_results([request.like]).results[0]
        return flatten(result.trial["workload"])
    found: dict[str, Scalar] = {}
    for pair in request.fields:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise UserError(
                "--workload",
                pair,
                "must be FIELD=VALUE of the workload",
                "write e.g. model.name=llama3_8b",
            )
        found[key] = value
    if not found:
        raise UserError(
            "--workload",
            "(none)",
            "must state the workload of the golden",
            "e.g. --workload model.name=llama3_8b, or --like RESULT",
        )
    return found
