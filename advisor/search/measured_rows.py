"""An answer with what its rows rest on, and what was learned from measured runs."""

from math import exp
from typing import Final

from msgspec.structs import replace

from advisor.answer.answer import (
    Answer,
    Basis,
    CalibrationNote,
    LearnedNote,
    LearnedTerm,
    Measured,
    RankedEvaluation,
)
from advisor.answer.evaluation import Evaluation
from advisor.base.units import counted, human_bytes
from advisor.hardware.calibration import Provenance, band_text
from advisor.learning.applied import Applied, applied
from advisor.learning.learned import KindResiduals, LearnedCalibration, MeasuredSetting
from advisor.learning.time_residual import TERMS, WIDTHS

_SHOWN_SHARE: Final = 1e-4


def with_measured(answer: Answer, calibration: LearnedCalibration) -> Answer:
    """`answer` with the runs of its rows, and with what was learned of jobs like its own; times
    with what runs say of all of them, which changes no order."""
    rows = [_row(row, calibration) for row in answer.candidates]
    if any(row.basis is not Basis.SHIPPED for row in rows):
        rows = [_beyond(row, calibration) for row in rows]
    own = rows[0].evaluation.job if rows else answer.job
    factor = applied(calibration, own).common_factor
    remedies = (replace(one, effect_seconds=one.effect_seconds * factor) for one in answer.remedies)
    answer = replace(answer, remedies=tuple(remedies))
    return replace(
        answer, candidates=tuple(rows), calibration=_note(answer, applied(calibration, answer.job))
    )


def _row(row: RankedEvaluation, calibration: LearnedCalibration) -> RankedEvaluation:
    row = replace(row, evaluation=corrected(row.evaluation, calibration))
    its = row.evaluation
    ran = calibration.learned.measured(its.job, its.setting)
    if ran is not None:
        measured = _measured(ran)
        notes = (*row.notes, _words(measured))
        return replace(row, basis=Basis.MEASURED, measured=measured, notes=notes)
    within = applied(calibration, its.job).kind is not None
    return replace(row, basis=Basis.LEARNED if within else Basis.SHIPPED)


def measured_note(evaluation: Evaluation) -> str:
    """What runs of just this setting of this job gave; empty where there are none."""
    calibration = evaluation.calibration
    if not isinstance(calibration, LearnedCalibration):
        return ""
    ran = calibration.learned.measured(evaluation.job, evaluation.setting)
    return "" if ran is None else _words(_measured(ran))


def corrected(evaluation: Evaluation, calibration: LearnedCalibration) -> Evaluation:
    """`evaluation` with what runs say of all times alike."""
    factor = applied(calibration, evaluation.job).common_factor
    return replace(
        evaluation,
        time_seconds=evaluation.time_seconds.times(factor),
        step_time_low_seconds=evaluation.step_time_low_seconds * factor,
        step_time_high_seconds=evaluation.step_time_high_seconds * factor,
    )


def _beyond(row: RankedEvaluation, calibration: LearnedCalibration) -> RankedEvaluation:
    """Among rows that measured runs have moved, why one stands as shipped."""
    if row.basis is not Basis.SHIPPED:
        return row
    why, more = calibration.learned.outside(row.evaluation.job), exp(calibration.learned.common) - 1
    longer = f"{abs(more) * 100:.1f} % {'more' if more > 0 else 'less'}"
    note = (
        f"not measured ({why}): step time from the shipped calibration; your runs took "
        f"{longer} time than the shipped calibration predicts"
    )
    return replace(row, notes=(*row.notes, note))


def _words(measured: Measured) -> str:
    """``measured: 12.30 s, 71.2 GiB, 2 trials``."""
    trials = counted(measured.trials, "trial")
    if measured.ran_out:
        return f"measured: ran out of memory, {trials}"
    found = []
    if measured.step_time_seconds is not None:
        found.append(f"{measured.step_time_seconds:.4g} s")
    if measured.peak_reserved_bytes is not None:
        found.append(human_bytes(measured.peak_reserved_bytes))
    return f"measured: {', '.join(found)}, {trials}"


def _measured(ran: MeasuredSetting) -> Measured:
    return Measured(
        trials=ran.processes,
        step_time_seconds=ran.seconds,
        peak_allocated_bytes=ran.peak_allocated_bytes,
        peak_reserved_bytes=ran.peak_reserved_bytes,
        ran_out=ran.ran_out,
    )


def _note(answer: Answer, its: Applied) -> CalibrationNote:
    before, learned = answer.calibration, its.learned
    found = (learned.residuals_of(row.evaluation.job) for row in answer.candidates)
    kind = its.kind or next(filter(None, found), None)  # that of the first row that has any
    note = LearnedNote(
        sources=learned.sources,
        trials=learned.trials,
        left_out=tuple(f"{count} {why}" for why, count in learned.left_out),
        outside=learned.outside(its.job),
    )
    if kind is None:
        return replace(before, learned=note)
    first = answer.candidates[0].evaluation if answer.candidates else None
    band = before.summary
    if first is not None:
        error = first.step_time_high_seconds / first.step_time_seconds - 1
        band = f"step time of row 1 {band_text(error)}"
    note = replace(
        note,
        within=kind.range.description,
        step_time=_step_terms(kind),
        memory=_memory_terms(kind),
        scatter={"step_time": kind.times.scatter, "memory": kind.memory.scatter},
    )
    if its.kind is not None:
        before = replace(before, provenance=Provenance.MEASURED, summary=band, known_error="")
    return replace(before, learned=note)


def _step_terms(kind: KindResiduals) -> dict[str, LearnedTerm]:
    """Of the terms that some run has told apart from the shipped prediction."""
    posterior = kind.times.posterior
    shipped = (kind.times.base_sigma, *WIDTHS.terms)
    return {
        name: LearnedTerm(
            mean=posterior.mean[number],
            sigma=posterior.sigma(number) * kind.times.scatter,
            shipped_sigma=shipped[number],
        )
        for number, name in enumerate(TERMS)
        if any(row.shares[number] > _SHOWN_SHARE for row in kind.times.rows)
    }


def _memory_terms(kind: KindResiduals) -> dict[str, LearnedTerm]:
    memory, width = kind.memory, kind.memory.width
    states = memory.states
    terms = {
        "states": (states.mean[0], states.sigma(0) * memory.scatter, width.allocated),
        "activations": (states.mean[1], states.sigma(1) * memory.scatter, width.allocated),
        "unused": (memory.unused.mean, memory.unused.sigma, width.unused),
        "outside": (memory.outside.mean, memory.outside.sigma, width.outside),
    }
    return {
        name: LearnedTerm(mean=mean, sigma=sigma, shipped_sigma=shipped)
        for name, (mean, sigma, shipped) in terms.items()
    }
