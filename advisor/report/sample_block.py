"""The page's part on samples of several lengths: the worst microbatch, the mean one, and how soon a
step meets one that does not fit."""

from collections.abc import Iterator

from advisor.answer.answer import Answer, SampleNote
from advisor.base.units import percent
from advisor.report.blocks import Block, Column, Indented, group, labelled_rows, table
from advisor.report.wording import gib

_SHOWN = 0.01


def sample_note_of(answer: Answer) -> SampleNote | None:
    """Of the row that the first sentence names; None where all samples are of seq_length."""
    best = answer.leading
    if best is None or not best.evaluation.job.config.samples.varies:
        return None
    from advisor.search.pack_peaks import sample_note

    return sample_note(best.evaluation)


def sample_block(note: SampleNote) -> Block:
    """Sizes of microbatches, the longest row until some steps with its peak, and what does not
    fit."""
    blocks: list[Block] = [labelled_rows(sizes(note))]
    if note.until:
        found = table([Column(title=one) for one in ("step", "longest row", "peak GiB", "fits")])
        for one in note.until:
            cells = f"{one.step:,}", f"{one.tokens:,}", gib(one.peak_reserved_bytes)
            found.add_row(*cells, percent(one.fit_probability))
        blocks += ["Longest row of all ranks by a step (half of the runs have a longer one):"]
        blocks += [Indented(found, 2)]
    return group(*blocks, *too_long(note))


def sizes(note: SampleNote) -> Iterator[tuple[str, str]]:
    """What a microbatch is, the worst and the mean one."""
    most = f"{note.longest:,} tokens"
    mean = f"{round(note.mean_length):,} tokens in the mean, at most {note.longest:,}"
    yield "samples", mean if round(note.mean_length) < note.longest else f"all of {most}"
    alone = " (one sample, longer than the budget)" * (0 < note.capacity < note.longest)
    rows = f", {note.rows} rows in a microbatch" if note.rows > 1 else ""
    yield "worst row", f"{note.worst_tokens:,} tokens{alone}{rows}; peaks are predicted for it"
    steps = f"{note.microbatches:,} microbatch{'es' * (note.microbatches > 1)} per step"
    mean = f"{note.mean_tokens:,} tokens on the slowest rank, {steps}; times are predicted for it"
    yield "mean row", mean
    if note.imbalance >= _SHOWN:
        more = f"the slowest rank has {note.imbalance * 100:.0f} % more tokens than the mean one"
        yield "balance", more
    if note.padding >= _SHOWN:
        yield "padding", f"{note.padding * 100:.0f} % of the computed tokens"


def too_long(note: SampleNote) -> Iterator[str]:
    """How soon a step runs out of memory."""
    most, over = note.most_tokens_that_fit, note.share_of_steps_that_run_out
    if most == 0:
        yield "No row fits, however short."
    elif most is not None:
        soon, half = "the first step likely has one", note.even_odds_by_step
        if half is not None and half > 1:
            soon = f"one step in {round(1 / over):,} has one"
            soon += f", and half of the runs meet it by step {half:,}"
        yield f"Rows of more than {most:,} tokens do not fit: {soon}."
