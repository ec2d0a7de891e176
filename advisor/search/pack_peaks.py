"""What microbatches of samples of several lengths take: their sizes, the peak of the longest one
until some steps, and how soon a step meets one that does not fit."""

from collections.abc import Callable
from functools import cache
from math import log
from typing import Final

from msgspec.structs import replace

from advisor.answer.answer import LongestUntil, SampleNote
from advisor.answer.evaluation import Evaluation
from advisor.job.job import Job
from advisor.job.microbatches import Microbatches, microbatches
from advisor.search.evaluate import Evaluator

_STEPS: Final = (1, 10, 100, 412, 1000)
_PARTS: Final = 64
"""Of the worst row: to a part of it the longest row that fits is looked for (a judgement)."""


def sample_note(evaluation: Evaluation) -> SampleNote | None:
    """Of an evaluation's job and setting; None where all samples are of one length."""
    job = evaluation.job
    if not job.config.samples.varies:
        return None
    found, peak = microbatches(job), cache(_peaks(evaluation))
    worst, most = found.worst.config, found.worst.config.seq_length
    fits = job.config.certainty
    largest = None if evaluation.fits else _largest(found, lambda row: peak(row)[1] >= fits)
    above = 0.0 if largest is None else found.share_of_steps_above(largest)
    if largest is not None and found.longest_until(1) > largest:
        above = 1.0
    steps = {} if not found.varies else {step: found.longest_until(step) for step in _STEPS}
    return SampleNote(
        mean_length=found.lengths.mean,
        longest=found.lengths.longest,
        capacity=found.capacity,
        rows=worst.micro_batch_size,
        worst_tokens=most,
        mean_tokens=found.mean.config.seq_length,
        microbatches=found.mean.num_microbatches,
        padding=1 - found.tokens / found.padded_tokens,
        imbalance=_slowest(found) / found.padded_tokens - 1,
        until=tuple(
            LongestUntil(step, row, *(peak(row) if row < most else _own(evaluation)))
            for step, row in steps.items()
        ),
        most_tokens_that_fit=largest,
        share_of_steps_that_run_out=above,
        even_odds_by_step=None if above == 0 else 1 if above == 1 else round(_half(above)) or 1,
    )


def _half(share: float) -> float:
    """Steps by which half of the runs have met what a share of steps has."""
    return log(0.5) / log(1 - share)


def _slowest(found: Microbatches) -> int:
    """Tokens of a step on all ranks with padding, had all as many as the slowest one."""
    config = found.mean.config
    return config.global_batch_size * config.seq_length


def _own(evaluation: Evaluation) -> tuple[int, float]:
    return evaluation.peak_reserved_bytes, evaluation.fit_probability


def _peaks(evaluation: Evaluation) -> Callable[[int], tuple[int, float]]:
    worst = microbatches(evaluation.job).worst

    def of_row(row: int) -> tuple[int, float]:
        """Peak of a microbatch with rows of so many tokens, and how likely it fits."""
        packed = worst.config.mean_packed_length
        config = replace(
            worst.config, seq_length=row, mean_packed_length=packed and min(packed, row)
        )
        job: Job = replace(worst, config=config)
        found = Evaluator(job, evaluation.calibration).evaluate(evaluation.setting)
        return _own(found if evaluation.requests is None else found.simulated)

    return of_row


def _largest(found: Microbatches, fits: Callable[[int], bool]) -> int:
    """The longest row that fits, to a part of the worst one; 0 where none does."""
    most = found.worst.config.seq_length
    unit = -(-most // _PARTS // found.multiple) * found.multiple
    low, high = 0, -(-most // unit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * unit) else (low, middle)
    return low * unit
