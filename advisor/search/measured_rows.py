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
from advisor.answer.evaluation import Evaluation, TimeBreakdown
from advisor.base.units import counted, human_bytes
from advisor.hardware.calibration import Provenance, band_text
from advisor.learning.applied import Applied, applied
from advisor.learning.learned import KindResiduals, Learned, LearnedCalibration, MeasuredSetting
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
        return replace(
            row, basis=Basis.MEASURED, measured=measured, notes=(*row.notes, _words(measured))
        )
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
    time = evaluation.time_seconds
    parts = {name: getattr(time, name) * factor for name in time.__struct_fields__}
    return replace(
        evaluation,
        time_seconds=TimeBreakdown(**parts),
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
    kind = its.kind or _of_some_row(answer, its.learned)
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
    if its.kind is None:
        return replace(before, learned=note)
    measured = replace(before, provenance=Provenance.MEASURED, summary=band, known_error="")
    return replace(measured, learned=note)


def _of_some_row(answer: Answer, learned: Learned) -> KindResiduals | None:
    """What holds for the first row that rests on runs."""
    found = (learned.residuals_of(row.evaluation.job) for row in answer.candidates)
    return next((kind for kind in found if kind is not None), None)


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
    found = {
        name: LearnedTerm(
            mean=states.mean[number],
            sigma=states.sigma(number) * memory.scatter,
            shipped_sigma=width.allocated,
        )
        for number, name in enumerate(("states", "activations"))
    }
    for name, shift, shipped in (
        ("unused", memory.unused, width.unused),
        ("outside", memory.outside, width.outside),
    ):
        found[name] = LearnedTerm(mean=shift.mean, sigma=shift.sigma, shipped_sigma=shipped)
    return found
