"""Whether one job may start: `advise check` and `advisor.check`, for schedulers and trainers."""

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.api.answering import answer_to
from advisor.base.place import Place
from advisor.base.plain_json import to_text
from advisor.base.rule import Level
from advisor.frameworks.registry import parts_of
from advisor.request.request import Request

if TYPE_CHECKING:
    from advisor.answer.answer import Answer
    from advisor.reading.read_configuration import ReadConfiguration

_GIB: Final = 2**30
_CALLERS: Final = ("$@", "$*")
"""What a script is called with: a job is asked for as its file has it."""


class Verdict(StrEnum):
    """What is said of a job."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    UNKNOWN = "unknown"


_CODES: Final = {Verdict.FITS: 0, Verdict.DOES_NOT_FIT: 1, Verdict.UNKNOWN: 3}


class Admission(Struct, frozen=True, kw_only=True):
    """Whether a job fits as it is, with one recompute setting.

    Attributes:
        verdict: fits: at least as likely as `certainty` asks. does not fit: as unlikely. unknown:
            between the two, or `unknown` names something.
        fit_probability: that no rank runs out of memory, of what was read.
        peak_reserved_bytes: of the worst rank.
        budget_bytes: what a rank may reserve.
        recompute: the setting, as `--recompute` takes it.
        job: model and GPUs in words.
        unknown: what of the job no prediction includes, or was not read.
        phase: of a cycle, the one that decides and has this peak; empty where a step is all.
        refused: options of the file that its framework refuses: the job ends before it runs.
    """

    verdict: Verdict
    fit_probability: float
    peak_reserved_bytes: int
    budget_bytes: int
    recompute: str
    job: str
    unknown: tuple[str, ...] = ()
    phase: str = ""
    refused: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """Of `advise check`: 0 fits, 1 does not fit, 3 unknown."""
        return _CODES[self.verdict]

    def __bool__(self) -> bool:
        return self.verdict is Verdict.FITS

    def __str__(self) -> str:
        peak, budget = (n / _GIB for n in (self.peak_reserved_bytes, self.budget_bytes))
        probability = min(0.999, max(0.001, self.fit_probability))
        where = f" in the {self.phase}" if self.phase else ""
        said = (
            f"{self.verdict}: {self.job}, recompute {self.recompute}: {peak:.1f} of {budget:.1f} "
            f"GiB{where}, {probability * 100:.3g} % likely to fit"
        )
        notes = {"not included": self.unknown, "refused by the framework": self.refused}
        return said + "".join(f"; {how}: {', '.join(what)}" for how, what in notes.items() if what)

    def to_json(self) -> str:
        """The fields as one JSON object."""
        return to_text(self)


def admission(request: Request, read: "ReadConfiguration | None") -> Admission:
    """As `advisor.check`, of a request, and the configuration that it was read from."""
    spec = request.recompute[0] if request.recompute else read.recompute if read else None
    spec = spec or _usual(request.framework if read is None else None)
    spec = spec or parts_of(request.framework or "").settings.none.spec
    asked = replace(request, recompute=(spec,), quick=True)
    answer = answer_to(asked, read=read, remedies=False)
    sharded = answer.candidates[0].evaluation.job.num_gpus > 1
    found = _of(answer, tuple(_unknown(read, asked, sharded=sharded)) if read else ())
    refused = [f"line {one.place.line}: {one.reason}" for one in read.refused] if read else ()
    return replace(found, refused=tuple(refused))


def _usual(framework: str | None) -> str | None:
    """The recompute of a file that says nothing to a dialect; None for other frameworks."""
    from advisor.frameworks.dialect_rows import dialect_names
    from advisor.frameworks.readers import readers_of
    from advisor.reading.document_tree import Tree

    if framework not in dialect_names():
        return None
    empty = Tree(format="yaml", values={}, place=Place(framework, 1, 1))
    reader = next(iter(readers_of(empty, framework)))
    return next((one.recompute for one in reader.read(empty)), None)


def _of(answer: "Answer", unknown: tuple[str, ...]) -> Admission:
    found = answer.candidates[0].evaluation
    job, probability, phase = found.job, found.fit_probability, found.phase
    verdict = Verdict.UNKNOWN
    if found.fits:
        unknown += tuple(f"images ({t})" for t in answer.assumptions if t.startswith("text alone"))
    if not unknown and found.fits:
        verdict = Verdict.FITS
    elif not unknown and probability <= 1 - job.config.certainty:
        verdict = Verdict.DOES_NOT_FIT
    return Admission(
        verdict=verdict,
        fit_probability=probability,
        peak_reserved_bytes=(phase or found).peak_reserved_bytes,
        budget_bytes=found.budget_bytes,
        recompute=found.setting.spec,
        job=f"{job.model.name} on {job.num_gpus} x {job.gpu.name}",
        unknown=unknown,
        phase=phase.name if phase else "",
    )


def _unknown(read: "ReadConfiguration", asked: Request, *, sharded: bool) -> list[str]:
    """Options that change memory or may, and no prediction includes; parts that were not read; keys
    of ours that the file leaves open and `asked` does not say. sharded: there are GPUs to shard
    over."""
    from advisor.lint.left_out import left_out

    loud = [one for one in read.untaken if getattr(one, "level", Level.WARNING) is not Level.NOTE]
    found = dict.fromkeys(left_out(replace(read, untaken=tuple(loud))))
    keys = {pair.partition("=")[0] for pair in asked.overrides}
    if not sharded:
        keys.add("layout.data_parallel_sharding")
    opened = [one for one in read.unknown if one.path and not one.text and one.path not in keys]
    found |= {f"{one.path} ({one.written})": None for one in opened}
    return [one for one in found if one not in _CALLERS]
