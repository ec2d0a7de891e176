"""An answer of ranked candidates, with what is to be said of it and of each of them."""

from collections.abc import Callable, Sequence

from advisor.answer.answer import Answer, CalibrationNote, RankedEvaluation, Rejection, Remedy
from advisor.answer.evaluation import Evaluation
from advisor.base.units import human_bytes
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.plan.recompute_plan import recomputes
from advisor.request.resolve import Resolution
from advisor.search.known_errors import known_error, step_time_error


def answer_of(
    resolution: Resolution,
    job: Job,
    calibration: Calibration,
    candidates: tuple[RankedEvaluation, ...],
    rejected: tuple[Rejection, ...],
    evaluated: int,
    remedies: tuple[Remedy, ...],
) -> Answer:
    """The answer of what was ranked of a job, as it was resolved."""
    remarks = parts_of(job.config.framework).settings.remarks(job)
    return Answer(
        job=job,
        assumptions=(
            *resolution.assumptions,
            *remarks,
        ),
        calibration=CalibrationNote(
            name=calibration.name,
            provenance=calibration.provenance,
            summary=calibration.summary(step_time_error(job.model, calibration)),
            known_error=_known_error(job, calibration),
        ),
        evaluated=evaluated,
        candidates=candidates,
        rejected=rejected,
        remedies=remedies,
        recipe=resolution.recipe,
        recipe_framework=resolution.recipe_framework,
        recipe_differs=resolution.differs,
        origin={path: str(origin) for path, origin in resolution.origins_of(job).items()},
    )


def _known_error(job: Job, calibration: Calibration) -> str:
    """In words; empty where nothing is known to be off."""
    found = known_error(job, calibration)
    if found is None:
        return ""
    return f"{found.rows} published runs like this ({found.of.words}) were predicted {found.words}"


def notes_on(
    evaluations: Sequence[Evaluation],
) -> Callable[[Evaluation], tuple[str, ...]]:
    """What is to be said of each setting: that it buys nothing, what a label or default does.

    A setting is held against `none` on the same job. By how much it is worse is said of one job
    only: among many layouts every row would carry another figure.
    """
    without = {id(e.job): e for e in evaluations if not recomputes(e.setting)}
    alone = len({id(e.job) for e in evaluations}) == 1

    def notes(evaluation: Evaluation) -> tuple[str, ...]:
        job, setting = evaluation.job, evaluation.setting
        said = list(parts_of(job.config.framework).settings.notes(setting, job))
        none = without.get(id(job))
        if none is not None and recomputes(setting):
            more = evaluation.usual_reserved_bytes - none.usual_reserved_bytes
            if more >= 0:
                figure = f": peak {human_bytes(more)} above that of none" if alone and more else ""
                said.insert(0, f"saves nothing{figure}")
        return tuple(said)

    return notes
