"""All settings of one job in a ranking."""

from msgspec.structs import replace

from advisor.answer.answer import Answer, Remedy
from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.layout import ParallelLayout
from advisor.plan.recompute_plan import Setting
from advisor.request.resolve import Resolution
from advisor.search.answer_parts import answer_of, notes_on
from advisor.search.evaluate import Evaluator
from advisor.search.ranking import first_replayed, rank
from advisor.search.remedies import find_remedies


def rank_settings(
    resolution: Resolution,
    layout: ParallelLayout,
    calibration: Calibration,
    asked: tuple[Setting, ...],
) -> Answer:
    """Settings of one job: those asked for, or all legal ones with the preset's own."""
    job, shipped = resolution.job(layout), resolution.shipped
    own = parts_of(job.config.framework).settings
    if asked:
        refused = {setting: own.check(setting, job) for setting in asked}
        settings = tuple(setting for setting in asked if not refused[setting])
        rejected = tuple(rejection for found in refused.values() for rejection in found)
        if not settings:
            first = rejected[0]
            raise UserError(
                "--recompute", first.setting.spec, first.reason.rstrip("."), first.fix.rstrip(".")
            )
    else:
        settings = own.candidates(job)
        rejected = own.rejected(job)
        if shipped and not _among(shipped, settings):
            refused_preset = own.check(shipped, job)
            settings += () if refused_preset else (shipped,)
            rejected = (*refused_preset, *(r for r in rejected if r.setting != shipped))
    if not settings and (found := own.check_job(job)):
        raise UserError("--framework", job.config.framework, found[0].reason, found[0].fix)
    compared = tuple(s for s in settings if s == own.none or (shipped and _among(shipped, (s,))))
    evaluator = Evaluator(job, calibration)
    evaluations = first_replayed([evaluator.evaluate(one) for one in settings], compared)

    def is_preset(evaluation: Evaluation) -> bool:
        return shipped is not None and _among(shipped, (evaluation.setting,))

    candidates = tuple(
        replace(candidate, preset=is_preset(candidate.evaluation))
        for candidate in rank(
            evaluations,
            notes_on(evaluations),
            kept=lambda evaluation: bool(asked) or is_preset(evaluation),
        )
    )
    remedies: tuple[Remedy, ...] = ()
    if candidates:
        remedies = find_remedies(candidates[0].evaluation, calibration, asked)
    return answer_of(resolution, job, calibration, candidates, rejected, len(evaluations), remedies)


def _among(setting: Setting, others: tuple[Setting, ...]) -> bool:
    """Whether `setting` runs like one of `others`: unset and empty lists are what they mean."""
    return any(setting.promoted == other.promoted for other in others)
