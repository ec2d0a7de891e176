"""What the page says of samples of several lengths: the worst microbatch, the mean one, and how soon
a step meets one that does not fit."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from advisor.answer.answer import Answer, SampleNote
from advisor.answer.evaluation import Evaluation
from advisor.base.units import percent
from advisor.job.job import JobConfig
from advisor.report.blocks import Block, Column, Indented, group, labelled_rows, table
from advisor.report.wording import gib


def note_of(answer: Answer) -> SampleNote | None:
    """Of the row that the first sentence names; None where samples are of one length."""
    best = answer.leading
    if best is None or not best.evaluation.job.config.samples.varies:
        return None
    return _note(best.evaluation)


@lru_cache(maxsize=8)
def _note(evaluation: Evaluation) -> SampleNote | None:
    from advisor.search.pack_peaks import sample_note

    return sample_note(evaluation)


def sample_block(answer: Answer) -> Block | None:
    """Sizes of microbatches, the longest row until some steps with its peak, and what does not
    fit."""
    note, best = note_of(answer), answer.leading
    if note is None or best is None:
        return None
    blocks: list[Block] = [labelled_rows(_sizes(note, best.evaluation.job.config))]
    if note.until:
        found = table([Column(title=one) for one in ("step", "longest row", "peak GiB", "fits")])
        for one in note.until:
            cells = f"{one.step:,}", f"{one.tokens:,}", gib(one.peak_reserved_bytes)
            found.add_row(*cells, percent(one.fit_probability))
        blocks += ["The longest row of all ranks until a step, with even odds:"]
        blocks += [Indented(found, 2)]
    row = "Packs" if best.evaluation.job.config.samples.packed else "Rows"
    return group(*blocks, *_too_long(note, row))


def _sizes(note: SampleNote, config: JobConfig) -> Iterator[tuple[str, Block]]:
    row = "pack" if config.samples.packed else "row"
    yield "samples", f"{round(note.mean_length):,} tokens in the mean, at most {note.longest:,}"
    alone = note.capacity is not None and note.longest > note.capacity
    why = " (one sample, longer than the budget)" if alone else ""
    rows = f", {note.rows} rows in a microbatch" if note.rows > 1 else ""
    yield f"worst {row}", f"{note.worst_tokens:,} tokens{why}{rows}: peaks are of it"
    steps = f"{note.microbatches:,} microbatch{'es' * (note.microbatches > 1)} a step"
    yield (
        f"mean {row}",
        f"{note.mean_tokens:,} tokens on the slowest rank, {steps}: times are of it",
    )
    if note.imbalance >= _SHOWN:
        more = f"the slowest rank has {note.imbalance * 100:.0f} % more tokens than the mean one"
        yield "balance", more
    if note.padding >= _SHOWN:
        yield "padding", f"{note.padding * 100:.0f} % of the tokens that are computed"


_SHOWN: Final = 0.01


def _too_long(note: SampleNote, rows: str) -> Iterator[Block]:
    """How soon a step runs out of memory."""
    most = note.most_tokens_that_fit
    if most is None:
        return
    if most == 0:
        yield f"{rows} do not fit, however short."
    elif note.even_odds_by_step == 1:
        yield f"{rows} of more than {most:,} tokens do not fit: the first step likely has one."
    elif note.even_odds_by_step is not None:
        yield (
            f"{rows} of more than {most:,} tokens do not fit: one step in "
            f"{round(1 / note.share_of_steps_that_run_out):,} has one, and half of the runs meet "
            f"it by step {note.even_odds_by_step:,}."
        )
