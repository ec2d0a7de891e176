"""What is to be said of a whole answer: what its rows rest on, and the choice that is a toss."""

from msgspec.structs import replace

from advisor.answer.answer import Answer, RankedEvaluation, Toss
from advisor.base.errors import UserError
from advisor.hardware.calibration import Calibration
from advisor.learning.toss import likeliest_toss
from advisor.request.request import Request


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
    rows = found.first, found.second
    try:
        command = _command(answer, rows, request)
    except UserError:  # a model that only the caller has, say
        command = ""
    ranks = found.first.rank, found.second.rank
    return replace(answer, toss=Toss(ranks=ranks, why=found.why, command=command))


def _command(answer: Answer, rows: tuple[RankedEvaluation, ...], request: Request) -> str:
    """One line where both are of one job, else one for each."""
    if not isinstance(request.model, str):
        return ""
    from advisor.request.harness_line import harness_line

    specs: dict[int, list[str]] = {}
    jobs = [row.evaluation.job for row in rows]
    for row in rows:
        specs.setdefault(jobs.index(row.evaluation.job), []).append(row.evaluation.setting.spec)
    lines = [
        harness_line(jobs[number], of, request.model, answer.recipe, request.config_dir)
        for number, of in specs.items()
    ]
    return " && ".join(lines)
