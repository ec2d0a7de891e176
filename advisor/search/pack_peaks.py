"""What microbatches of samples of several lengths take: their sizes, the peak of the longest one
until some steps, and how soon a step meets one that does not fit."""

from collections.abc import Callable
from functools import cache, lru_cache
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


@lru_cache(maxsize=8)
def sample_note(evaluation: Evaluation) -> SampleNote:
    """Of the samples of the evaluation's job, whose rows are of several lengths or budgeted."""
    found = microbatches(evaluation.job)
    worst, mean = found.worst.config, found.mean.config

    @cache
    def peak(row: int) -> tuple[int, float]:
        """Of a microbatch with rows of so many tokens, and how likely it fits."""
        one = evaluation if row == worst.seq_length else _with_rows(evaluation, found.worst, row)
        return one.peak_reserved_bytes, one.fit_probability

    def fits(row: int) -> bool:
        return peak(row)[1] >= evaluation.job.config.certainty

    steps = {step: found.longest_until(step) for step in _STEPS}
    largest = None if evaluation.fits else _largest(found, fits)
    over = 0.0 if largest is None else found.share_of_steps_above(largest)
    return SampleNote(
        mean_length=found.lengths.mean,
        longest=found.lengths.longest,
        rows=worst.micro_batch_size,
        capacity=found.capacity,
        worst_tokens=worst.seq_length,
        mean_tokens=mean.seq_length,
        microbatches=found.mean.num_microbatches,
        padding=1 - found.tokens / found.padded_tokens,
        imbalance=mean.global_batch_size * mean.seq_length / found.padded_tokens - 1,
        until=tuple(LongestUntil(step, row, *peak(row)) for step, row in steps.items())
        if steps[1] < worst.seq_length
        else (),
        most_tokens_that_fit=largest,
        share_of_steps_that_run_out=over,
        even_odds_by_step=max(1, round(log(0.5) / log(1 - over))) if 0 < over < 1 else None,
    )


def _with_rows(evaluation: Evaluation, worst: Job, row: int) -> Evaluation:
    """The evaluation of the worst job with other rows."""
    packed = worst.config.mean_packed_length
    own = replace(worst.config, seq_length=row, mean_packed_length=packed and min(packed, row))
    found = Evaluator(replace(worst, config=own), evaluation.calibration)
    one = found.evaluate(evaluation.setting)
    return one if evaluation.requests is None else one.simulated


def _largest(found: Microbatches, fits: Callable[[int], bool]) -> int:
    """The longest row that fits, to a part of the worst one; 0 where none does."""
    most = found.worst.config.seq_length
    unit = -(-most // _PARTS // found.multiple) * found.multiple
    low, high = 0, -(-most // unit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * unit) else (low, middle)
    return low * unit
