"""What is to be said of a whole answer: what its rows rest on, and the choice that is a toss."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from advisor.answer.answer import Answer, RankedEvaluation, Toss
from advisor.base.errors import UserError
from advisor.base.fields import key_values
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.learning.toss import likeliest_toss
from advisor.request.request import Request
from advisor.search.changed_options import changed


def told(answer: Answer, calibration: Calibration, request: Request) -> Answer:
    """`answer` with the runs behind its rows, where `calibration` has learned from some, and with
    the two rows that are to be measured before one is chosen, if there are."""
    if type(calibration) is not Calibration:
        from advisor.learning.learned import LearnedCalibration
        from advisor.search.measured_rows import with_measured

        assert isinstance(calibration, LearnedCalibration)
        answer = with_measured(answer, calibration)
    return _with_toss(answer, request)


def _with_toss(answer: Answer, request: Request) -> Answer:
    """`answer` with the two rows that are to be measured before one is chosen, if there are."""
    found = likeliest_toss(answer.candidates)
    if found is None:
        return answer
    command, beside = command_for(answer, (found.first, found.second), request)
    ranks = found.first.rank, found.second.rank
    toss = Toss(ranks=ranks, why=found.why, command=command, beside=beside)
    return replace(answer, toss=toss)


def command_for(
    answer: Answer, rows: tuple[RankedEvaluation, RankedEvaluation], request: Request
) -> tuple[str, str]:
    """What measures both rows, one line where they are of one job, else one for each; and with
    which other options it runs them, or why there is none."""
    if not isinstance(request.model, str):
        return "", "no harness command: the model was not given by name"
    one, two = (row.evaluation.job for row in rows)
    try:
        lost = {path: value for job in (one, two) for path, value in lost_options(job).items()}
        lines = _lines(answer, rows, request.model, request.config_dir)
    except UserError as error:
        return "", str(error)
    apart = {path: value for path, value in lost.items() if path in changed(one, two)}
    if apart:
        differ, sets = ", ".join(apart), f"harness run always sets {key_values(apart)}"
        return "", f"no harness command: the rows differ in {differ}, and {sets}"
    beside = f"harness run differs from the rows: it sets {key_values(lost)}" if lost else ""
    return " && ".join(lines), beside


def lost_options(job: Job) -> dict[str, Any]:
    """Options that `harness run` has another value of: ``GROUP.FIELD`` -> its value."""
    return changed(job, parts_of(job.config.framework).harness.job(job))


def _lines(
    answer: Answer,
    rows: tuple[RankedEvaluation, RankedEvaluation],
    model: str,
    config_dir: Path | None,
) -> list[str]:
    from advisor.request.differences import harness_line

    specs: dict[int, list[str]] = {}
    jobs = [row.evaluation.job for row in rows]
    for row in rows:
        specs.setdefault(jobs.index(row.evaluation.job), []).append(row.evaluation.setting.spec)
    return [
        harness_line(jobs[number], of, model, answer.recipe, config_dir)
        for number, of in specs.items()
    ]
