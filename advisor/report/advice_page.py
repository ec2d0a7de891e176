"""The page that `advise` prints: what was assumed, one table, the answer, its flags, the notes."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from advisor.answer.answer import Answer, RankedEvaluation, Verification
from advisor.base.fields import join_key_values
from advisor.base.grouping import grouped
from advisor.base.units import DASH, gib, ranges, rate_words
from advisor.frameworks.registry import parts_of
from advisor.job.job import LIKELY, Job
from advisor.report import setting_flags as flags
from advisor.report import wording
from advisor.report.blocks import (
    Block,
    Column,
    Fitted,
    Indented,
    Text,
    dotted_lines,
    group,
    labelled_rows,
    table,
)
from advisor.report.header import header
from advisor.report.ranking_table import Ranking, Rows, overhead_words, remarks, shared_changes

_USUAL = Rows()


def page(
    advice: Answer,
    *,
    rows: Rows = _USUAL,
    show_rejected: bool = False,
    search_layout: bool = False,
    with_layout_flags: bool = False,
    caveat: str = "",
    price: float | None = None,
) -> Block:
    """The whole page with some `rows` of the ranking, `caveat` next to the verdict, and the `price`
    of a GPU-hour."""
    shown, best = rows.shown(advice.candidates), advice.chosen
    jobs = [candidate.evaluation.job for candidate in shown]
    columns = None
    others = (*jobs[1:], *filter(None, [advice.usual]))
    if search_layout or any(job != jobs[0] for job in others if jobs):
        from advisor.report.job_changes import LayoutColumns

        columns = LayoutColumns(jobs, advice.usual or advice.job)
    table = Ranking(shown, columns, remarks(advice.candidates, shown, columns)) if shown else None
    shared = shared_changes(shown, columns)
    blocks = [
        header(
            advice,
            search_layout=search_layout,
            has_bars=lambda width: table is not None and table.bar_cells(width) > 0,
        ),
        table,
        _answer(advice, caveat, price),
        _phases(advice),
        _samples(advice),
        _optimum(advice),
        _toss(advice),
        _verified(advice.job, shown),
        _flags(advice, with_layout=with_layout_flags),
        _rejected(advice) if show_rejected or not shown else None,
    ]
    notes = _notes(
        shown,
        noted={*rows.kept, *([best.rank] if best and not advice.fastest_found else [])},
        found=advice.fastest_found.candidate.notes if advice.fastest_found else (),
        shared=join_key_values(shared),
        folded=rows.folded_words(advice.candidates),
        count=rows.count_words(advice.candidates),
        overhead=overhead_words(advice.candidates, shown),
        with_degrees=_with_degrees(advice, shared),
    )
    last = [part for part in (notes, _hint(advice, shown, show_rejected)) if part]
    blocks += [group(*last)] if last else []
    parts = [part for block in blocks if block is not None for part in ("", block)]
    return group(*parts[1:])


def _answer(advice: Answer, caveat: str, price: float | None) -> Block:
    """The sentence that decides, what its row trains and what it rests on; or what helps where
    nothing fits."""
    lines: list[Block] = [Text(f"{wording.verdict(advice)} {caveat}".strip(), "bold")]
    best = advice.leading
    if best is not None and best.evaluation.fits:
        hours = best.evaluation.gpu_hours_per_trillion_tokens
        lines.append(rate_words(best.evaluation.tokens_per_second, hours, price))
    lines += wording.found_notes(advice)
    if texts := wording.remedy_lines(advice):
        if len(texts) == 1:
            lines.append(f"Other changes that help: {texts[0]}")
        else:
            lines.append("Other changes that help:")
            lines += (labelled_rows([("  -", text)], gap=1) for text in texts)
    if not advice.fastest_found:
        lines += filter(None, [wording.way_out(advice), wording.against_preset(advice)])
    return group(*lines)


def _phases(advice: Answer) -> Block | None:
    """Of the row that the first sentence names: the phases of its cycle, and its host memory."""
    best = advice.leading
    if best is None or not (best.evaluation.phases or best.evaluation.host_bytes):
        return None
    from advisor.report.phases_block import phases_block

    name = "the fastest found" if advice.fastest_found else f"row {best.rank}"
    return phases_block(best.evaluation, name)


def _samples(advice: Answer) -> Block | None:
    """Microbatches of samples of several lengths."""
    from advisor.report.sample_block import sample_block, sample_note_of

    note = sample_note_of(advice)
    return sample_block(note) if note else None


def _optimum(advice: Answer) -> Block | None:
    """What `--search optimum` has proven, of which space, and what lies beyond it."""
    if advice.optimum is None:
        return None
    from advisor.report.optimum_block import optimum_block

    return optimum_block(advice.optimum, stopped=advice.stopped)


def _toss(advice: Answer) -> Block | None:
    """Two rows to measure, and the command that does it."""
    if advice.toss is None:
        return None
    from advisor.report.measuring import toss_block

    return toss_block(advice.toss)


def _verified(job: Job, shown: Sequence[RankedEvaluation]) -> Block | None:
    """Peaks predicted and rehearsed of the candidates that --verify was asked about."""
    found = [(c, c.verification) for c in shown if c.verification is not None]
    if not found:
        return None
    rows = table([Column(title=title, left=title in ("recompute", "")) for title in _VERIFIED])
    for candidate, seen in found:
        rows.add_row(str(candidate.rank), candidate.evaluation.setting.spec, *_verdict_of(seen))
    by = parts_of(job.config.framework).harness.rehearsed_by(len(found))
    unverified = parts_of(job.config.framework).harness.unverified(job)
    without = f" ({unverified} not verified)" if unverified else ""
    head = f"Rehearsed by {by} on fake tensors{without}: GiB allocated on the worst stage"
    words = dict.fromkeys(seen.refused or seen.differences for _, seen in found)
    words.pop("", None)
    if any(seen.differences for _, seen in found):
        words[_OF_ANOTHER_JOB] = None
    return group(head, Indented(rows, 2), *(Text(text, "dim") for text in words))


_OF_ANOTHER_JOB = "predicted GiB are of the rehearsed job, which differs from the job ranked above"
_VERIFIED = ("row", "recompute", "stage", "predicted", "rehearsed", "error", "")


def _verdict_of(seen: Verification) -> list[str]:
    if seen.predicted_bytes is None or seen.rehearsed_bytes is None:
        return [str(seen.stage), DASH, DASH, DASH, "not rehearsed"]
    error = seen.predicted_bytes / seen.rehearsed_bytes - 1
    shown = f"{error * 100:+.1f} %" if abs(error) >= _SHOWN_ERROR else "0.0 %"
    reason = f"in the {seen.explanation}" if seen.explanation else ""
    return [str(seen.stage), gib(seen.predicted_bytes), gib(seen.rehearsed_bytes), shown, reason]


_SHOWN_ERROR = 5e-4


def _flags(advice: Answer, *, with_layout: bool) -> Block | None:
    """What tells the framework the row that the first sentence names, to be copied."""
    best = advice.leading
    if best is None:
        return None
    blocks: list[Block] = []
    if not best.evaluation.fits:
        verb = "may" if best.evaluation.fit_probability > 1 - LIKELY else "does"
        blocks.append(f"Flags of row {best.rank}, which {verb} not fit:")
    blocks.append(flags.framework_block(advice, best.evaluation, with_layout=with_layout))
    if variables := flags.environment_words(best.evaluation):
        blocks.append(flags.command_block("Environment", variables))
    return group(*blocks)


def _notes(
    shown: Sequence[RankedEvaluation],
    *,
    noted: Collection[int],
    found: Sequence[str] = (),
    shared: str = "",
    folded: str = "",
    count: str = "",
    overhead: str = "",
    with_degrees: str = "",
) -> Block | None:
    """What is to be said of the fastest `found` and of the rows `noted`; what ~ means; what all
    rows change, over which row the overhead is, how many rows are folded or shown, and what is to
    be given with the degrees of a row."""
    speaking = (candidate for candidate in shown if candidate.rank in noted)
    rows_of = grouped((note, candidate.rank) for candidate in speaking for note in candidate.notes)
    notes = [("found", note) for note in found]
    notes += [
        (f"row {rows[0]}" if len(rows) == 1 else f"rows {ranges(rows)}", note)
        for note, rows in rows_of.items()
    ]
    words = (
        ("~", _ESTIMATED * any(candidate.evaluation.requests is None for candidate in shown)),
        ("all rows", f"with {shared}" * bool(shared)),
        ("overhead", overhead),
        ("hidden", folded),
        ("rows", count * (not folded)),
        ("to rerun a row", with_degrees),
    )
    notes += [(label, text) for label, text in words if text]
    return labelled_rows([(label, Text(text, "dim")) for label, text in notes]) if notes else None


def _with_degrees(advice: Answer, shared: Mapping[str, Any]) -> str:
    """What the request loses where the degrees of a row are given, except what rows have `shared`;
    empty where that is nothing."""
    if not advice.beside_degrees:
        return ""
    from advisor.report.job_changes import untold

    given = untold(advice.beside_degrees)
    lost = join_key_values({path: value for path, value in given.items() if path not in shared})
    return f"degrees given as flags turn off the recipe; then also give {lost}" if lost else ""


_ESTIMATED = "an estimate; peaks without ~ come from a simulation of torch's allocator"


def _rejected(advice: Answer) -> Block:
    """Refused settings with the rule that refuses them, the way out, and the source."""
    settings_of: dict[tuple[str, str], list[str]] = {}
    for rejection in advice.rejected:
        text = rejection.reason.rstrip(".") + (f". Fix: {rejection.fix}" if rejection.fix else "")
        source = f"{rejection.rule}: {rejection.source}"
        settings_of.setdefault((text, source), []).append(rejection.setting.spec)
    lines: list[Block] = [f"Rejected settings: {len(advice.rejected) or 'none'}"]
    for (text, source), specs in settings_of.items():
        names = Fitted(partial(dotted_lines, specs))
        lines += [Indented(names, 2), Indented(text, 6), Indented(Text(source, "dim"), 6)]
    return group(*lines)


def _hint(advice: Answer, shown: Sequence[RankedEvaluation], show_rejected: bool) -> Block | None:
    if not shown:
        return None
    parts = [f"--explain {shown[:2][-1].rank} explains a row"]
    if advice.rejected and not show_rejected:
        parts.append(f"--show-rejected lists {len(advice.rejected)} rejected settings")
    others = flags.other_frameworks(advice.job)
    parts += (f"--framework {name} prints its flags" for name in others)
    parts.append("-o job.html writes the explorer")
    return Fitted(lambda width: dotted_lines(parts, width), "dim")
