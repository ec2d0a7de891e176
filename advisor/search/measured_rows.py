"""An answer with what its rows rest on, and what was learned from measured runs."""

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
from advisor.hardware.calibration import Provenance
from advisor.learning.applied import Applied, applied
from advisor.learning.learned import KindResiduals, LearnedCalibration, MeasuredSetting
from advisor.learning.step_errors import TERMS, WIDTHS

_STATES: Final = ("states", "activations")
_SHOWN_SHARE: Final = 1e-4


def with_measured(answer: Answer, calibration: LearnedCalibration) -> Answer:
    """`answer` with the runs behind its rows, and with what was learned of jobs like its own."""
    rows = tuple(_row(row, calibration) for row in answer.candidates)
    return replace(
        answer, candidates=rows, calibration=_note(answer, applied(calibration, answer.job))
    )


def _row(row: RankedEvaluation, calibration: LearnedCalibration) -> RankedEvaluation:
    its = row.evaluation
    ran = calibration.learned.measured(its.job, its.setting)
    if ran is not None:
        return replace(row, basis=Basis.MEASURED, measured=_measured(ran))
    within = applied(calibration, its.job).kind is not None
    return replace(row, basis=Basis.LEARNED if within else Basis.SHIPPED)


def _measured(ran: MeasuredSetting) -> Measured:
    return Measured(
        trials=ran.processes,
        step_time_seconds=ran.seconds,
        peak_allocated_bytes=ran.peak_allocated_bytes,
        peak_reserved_bytes=ran.peak_reserved_bytes,
        ran_out=ran.ran_out,
    )


def _note(answer: Answer, its: Applied) -> CalibrationNote:
    before, learned, kind = answer.calibration, its.learned, its.kind
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
        band = f"step time of row 1 ±{error * 100:.0f} %"
    return replace(
        before,
        provenance=Provenance.MEASURED,
        summary=band,
        known_error="",
        learned=replace(
            note,
            within=kind.range.words,
            step_time=_step_terms(kind),
            memory=_memory_terms(kind),
        ),
    )


def _step_terms(kind: KindResiduals) -> dict[str, LearnedTerm]:
    """Of the terms that some run has told apart from the shipped prediction."""
    posterior = kind.times.posterior
    shipped = (kind.times.base_sigma, *WIDTHS.terms)
    return {
        name: LearnedTerm(
            mean=posterior.mean[number],
            sigma=posterior.sigma(number),
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
            mean=states.mean[number], sigma=states.sigma(number), shipped_sigma=width.allocated
        )
        for number, name in enumerate(_STATES)
    }
    for name, shift, shipped in (
        ("unused", memory.unused, width.unused),
        ("outside", memory.outside, width.outside),
    ):
        found[name] = LearnedTerm(mean=shift.mean, sigma=shift.sigma, shipped_sigma=shipped)
    return found
