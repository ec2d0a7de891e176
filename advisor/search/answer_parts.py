"""An answer of ranked candidates, with what is said of it and of each of them: what its rows rest
on, how far predictions are known to be off, and the choice that is a toss."""

from collections.abc import Callable, Iterator, Sequence
from math import floor
from typing import Any, Final

from msgspec.structs import replace

from advisor.answer.answer import Answer, CalibrationNote, RankedEvaluation, Rejection, Remedy, Toss
from advisor.answer.evaluation import Evaluation, UnevenRouting
from advisor.base.errors import UserError
from advisor.base.fields import join_key_values
from advisor.base.grouping import grouped
from advisor.base.units import human_bytes, percent
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.learning.toss import likeliest_toss
from advisor.memory.allocator import most_likely
from advisor.plan.recompute_plan import recomputes
from advisor.request.request import Request
from advisor.request.resolve import Resolution
from advisor.search.changed_options import changed
from advisor.search.evaluate import Evaluator, is_legal, learned_of
from advisor.search.step_time_band import band_words, known_error


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
    off = known_error(job, calibration)
    return Answer(
        job=job,
        assumptions=(
            *resolution.assumptions,
            *parts_of(job.config.framework).settings.remarks(job),
            *_at_most(job, calibration),
            *(_saved_by_graphs(candidates[0].evaluation, resolution) if candidates else ()),
        ),
        calibration=CalibrationNote(
            name=calibration.name,
            provenance=calibration.provenance,
            summary=band_words(job, calibration),
            known_error="" if off is None else f"{off.in_words} were predicted {off.description}",
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


def _at_most(job: Job, calibration: Calibration) -> Iterator[str]:
    """How likely the job is said to fit at most, where no run measured what it reserves."""
    learned, most = learned_of(job, calibration), percent(most_likely(job.layout))
    measured = learned and learned.kind and learned.kind.memory.measures_unused
    if most_likely(job.layout) < 1 and not measured:
        yield f"context parallelism: at most {most} likely to fit, as one run reserved 8 % more"


def _saved_by_graphs(best: Evaluation, resolution: Resolution) -> Iterator[str]:
    """What the recipe's CUDA graphs, where they are left out, would save of a step, from 2 % on."""
    job = replace(best.job, config=replace(best.job.config, **resolution.without_graphs))
    if job != best.job and is_legal(best.setting, job):
        graphed = Evaluator(job, best.calibration).evaluate(best.setting)
        saved = 1 - graphed.step_time_seconds / best.step_time_seconds
        if graphed.fits and saved >= _WORTH_SAYING:
            yield f"the recipe's CUDA graphs would save {saved * 100:.0f} % of a step"


_WORTH_SAYING: Final = 0.02


def notes_on(evaluations: Sequence[Evaluation]) -> Callable[[Evaluation], tuple[str, ...]]:
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
        if job.model.num_moe_experts is not None and (uneven := evaluation.detail.uneven):
            said.append(_words_of_routing(uneven, job.layout.expert_model_parallel_size))
        return tuple(said)

    return notes


def _words_of_routing(uneven: UnevenRouting, most: int) -> str:
    """What uneven routing costs, and up to where it is safe; most: the largest busiest/mean."""
    safe = f"safe up to busiest/mean {floor(uneven.safe * 10) / 10:.1f}"
    if uneven.safe < 1:
        safe = "not safe even where routing is balanced"
    elif uneven.safe >= most:
        safe = "safe whatever the routing"
    return (
        f"uneven routing: {human_bytes(uneven.stated)} of the peak (9 runs in 10 have less); "
        f"0.1 of busiest/mean costs {human_bytes(uneven.doubled // 10)}; {safe}"
    )


def with_measurements_and_ties(
    answer: Answer, calibration: Calibration, request: Request
) -> Answer:
    """`answer` with the measured runs of its rows, where `calibration` has learned from some, and
    with the two rows that are to be measured before one is chosen, if there are; none where another
    job is chosen."""
    if type(calibration) is not Calibration:
        from advisor.learning.learned import LearnedCalibration
        from advisor.search.measured_rows import with_measured

        assert isinstance(calibration, LearnedCalibration)
        answer = with_measured(answer, calibration)
    found = None if answer.fastest_found else likeliest_toss(answer.candidates)
    if found is None:
        return answer
    command, beside = command_for(answer, (found.first, found.second), request)
    ranks = found.first.rank, found.second.rank
    return replace(answer, toss=Toss(ranks=ranks, why=found.why, command=command, beside=beside))


def command_for(
    answer: Answer, rows: tuple[RankedEvaluation, RankedEvaluation], request: Request
) -> tuple[str, str]:
    """What measures both rows, one line where they are of one job, else one for each; and with
    which other options it runs them, or why there is none."""
    if not isinstance(request.model, str):
        return "", "no harness command: the model was not given by name"
    from advisor.request.differences import HarnessLines

    one, two = (row.evaluation.job for row in rows)
    specs = grouped((row.evaluation.job, row.evaluation.setting.spec) for row in rows)
    try:
        lost = {path: value for job in (one, two) for path, value in lost_options(job).items()}
        harness = HarnessLines(request.model, answer.recipe, request.config_dir)
        lines = [harness.of(job, of) for job, of in specs.items()]
    except UserError as error:
        return "", str(error)
    apart = {path: value for path, value in lost.items() if path in changed(one, two)}
    if apart:
        differ, sets = ", ".join(apart), f"harness run always sets {join_key_values(apart)}"
        return "", f"no harness command: the rows differ in {differ}, and {sets}"
    beside = f"harness run differs from the rows: it sets {join_key_values(lost)}" if lost else ""
    return " && ".join(lines), beside


def lost_options(job: Job) -> dict[str, Any]:
    """Options that `harness run` has another value of: ``GROUP.FIELD`` -> its value."""
    return changed(job, parts_of(job.config.framework).harness.job(job))
