"""What each command of `advise` does: from arguments to text and exit code; nothing is printed."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import monotonic
from typing import TYPE_CHECKING, Final, TextIO

from advisor.api.answering import answer_to, check_prices
from advisor.base.errors import UserError
from advisor.cli.arguments import OutputFormat, RankingOptions, choices, parse
from advisor.cli.help import RANKING, SHORT, SUBCOMMANDS
from advisor.cli.outcome import FITS, INTERRUPTED, NOTHING_FITS, WRONG, Outcome

if TYPE_CHECKING:
    from advisor.answer.answer import Answer
    from advisor.report.ranking_table import Rows
    from advisor.search.layout_search import Progress, Watch

_BATCH = (
    *("micro_batch_size", "global_batch_size", "seq_length"),
    *("lengths", "packing", "max_tokens_per_gpu"),
)
_NOT_ITS_OWN = ("layers split", "the preset's layout", "the preset's global batch", "options of")
"""Beginnings of assumptions that no published recipe says of itself."""


def run(arguments: Sequence[str]) -> Outcome:
    """Run one command; UserError and UsageError where the request is wrong."""
    if not arguments:
        return Outcome(text="", exit_code=WRONG, talk=(SHORT,))
    if arguments[0] in SUBCOMMANDS:
        from advisor.cli import subcommands

        return subcommands.run(arguments[0], arguments[1:])
    if "--help" in arguments or "-h" in arguments:
        from advisor.report.command_help import help_page
        from advisor.report.text import on_screen

        return Outcome(text=on_screen(help_page(RANKING, choices)))
    if "--version" in arguments:
        from advisor.base.distribution import installed_version

        return Outcome(text=f"advise {installed_version()}\n")
    options = parse(arguments)
    if options.against is not None:
        from advisor.cli.diff import against

        return against(arguments, options)
    if options.solve is not None or "," in options.request.gpus:
        from advisor.cli.solving import solve

        return solve(options)
    return rank(options)


def rank(options: RankingOptions) -> Outcome:
    """`advise --model … --gpus …`: the ranked settings in the wanted format."""
    _check(options)
    with _watched() as watch:
        asked = {name: getattr(options, name) for name in ("explain", "verify", "read")}
        advice = answer_to(options.request, watch=watch, **asked)
    talk: tuple[str, ...] = ()
    if options.writes_files:
        from advisor.api.asked_files import write_files

        talk = write_files(advice, options, _line(options), options.top)
    if options.output is OutputFormat.FLAGS:
        from advisor.report.setting_flags import omitted_report

        omitted = omitted_report(advice, with_layout=_is_not_the_preset(advice, options))
        talk = (*talk, f"advise: {omitted}") if omitted else talk
    if options.read is not None and options.output is not OutputFormat.TABLE:
        from advisor.report.changes import read_file

        file = read_file(advice.job, options.read)
        talk = (*talk, *(f"advise: {file.file}, {words}" for words in file.refused))
    fits = advice.fits or advice.fastest_found is not None
    if options.output in (OutputFormat.FLAGS, OutputFormat.FILE) and not fits:
        from advisor.report.wording import verdict

        talk = (*talk, f"advise: {verdict(advice)}")
    exit_code = INTERRUPTED if advice.stopped else FITS if fits else NOTHING_FITS
    outcome = Outcome(exit_code=exit_code, talk=talk)
    if options.written is None:
        return outcome._replace(text=_render(advice, options))
    from advisor.cli.writing import into_file

    return into_file(outcome, options.written, lambda: _render(advice, options))


def _watched() -> "AbstractContextManager[Watch | None]":
    """Who watches a search: nobody, where stderr is no terminal."""
    return watched(sys.stderr) if sys.stderr.isatty() else nullcontext()


def _check(options: RankingOptions) -> None:
    """Refuse before the search what would fail after it, or say nothing."""
    if options.written is not None or options.output is OutputFormat.HTML or sys.stdout is None:
        from advisor.cli.writing import check_output

        check_output(options.written, options.output)
    words = (OutputFormat.FLAGS, OutputFormat.FILE, OutputFormat.HTML)
    for name in ("explain", "verify", "price_per_gpu_hour", "front"):
        value, some = getattr(options, name), name in ("explain", "verify")
        refusing = (OutputFormat.CSV, *words) if some else words
        if value is not None and value is not False and options.output in refusing:
            given, flag = None if value is True else value or None, name.replace("_", "-")
            others = " or ".join(one for one in OutputFormat if one not in refusing)
            relation = f"cannot be combined with --format {options.output}"
            raise UserError(f"--{flag}", given, relation, f"use --format {others}")
    check_prices(options.prices, 1)
    if options.writes_files:
        from advisor.api.asked_files import check_files

        check_files(options)


def _render(advice: "Answer", options: RankingOptions) -> str:
    """The answer in the wanted format; each module is imported when it is used."""
    match options.output:
        case OutputFormat.JSON | OutputFormat.CSV:
            from advisor.report.plain_advice import csv_report, plain_advice

            names = ("top", "front", "read", "price_per_gpu_hour")
            asked = {name: getattr(options, name) for name in names}
            plain = plain_advice(advice, explained=options.explain, **asked)
            return plain.to_json() if options.output is OutputFormat.JSON else csv_report(plain)
        case OutputFormat.FLAGS:
            from advisor.report.setting_flags import flags_report

            return flags_report(advice, with_layout=_is_not_the_preset(advice, options))
        case OutputFormat.FILE:
            from advisor.report.setting_flags import file_report

            return file_report(advice)
        case OutputFormat.HTML:
            from advisor.explorer.explorer_data import explorer_page

            with _watched() as watch:
                return explorer_page(advice, options.request, _line(options), watch)
    return _page(advice, options)


def _line(options: RankingOptions) -> str:
    from shlex import join

    return join(("advise", *options.arguments))


def _page(advice: "Answer", options: RankingOptions) -> str:
    from advisor.report.advice_page import page
    from advisor.report.text import on_screen
    from advisor.request.request import SearchScope

    said, changed = "", ""
    if options.read is not None:
        from advisor.report.changes import caveat, changes

        said, changed = caveat(options.read), on_screen(changes(advice, options.read))
    content = page(
        advice,
        rows=_rows(advice, options),
        show_rejected=options.show_rejected,
        search_layout=options.request.search is SearchScope.LAYOUT,
        with_layout_flags=_is_not_the_preset(advice, options),
        caveat=said,
        price=options.price_per_gpu_hour,
    )
    text = on_screen(content) + changed
    if options.explain is None:
        return text
    from advisor.report.explain_page import explanation
    from advisor.report.wording import row_of
    from advisor.search.explain import memory_lines, time_lines

    wanted = row_of(advice, options.explain).evaluation
    found = options.explain == 0 and advice.fastest_found is not None
    name = "Fastest found" if found else f"Row {row_of(advice, options.explain).rank}"
    return text + on_screen(explanation(wanted, name, memory_lines(wanted), time_lines(wanted)))


def _rows(advice: "Answer", options: RankingOptions) -> "Rows":
    """Rows that the rest of the page names, which are not folded."""
    from advisor.report.ranking_table import Rows
    from advisor.report.wording import row_of

    kept = [c.rank for c in advice.candidates if c.verification is not None]
    if options.explain is not None:
        kept.append(row_of(advice, options.explain).rank)
    if options.read is not None:
        from advisor.report.changes import same_as_now

        kept += [c.rank for c in same_as_now(advice, options.read.recompute)[:1]]
    return Rows(top=options.top, front=options.front, kept=kept)


def _is_not_the_preset(advice: "Answer", options: RankingOptions) -> bool:
    """Whether the job differs from a published one: then its own flags are printed as well."""
    from advisor.api.keywords import SHORT as SHAPING

    request = options.request
    given = (getattr(request, name) is not None for name in (*SHAPING.values(), *_BATCH, "search"))
    asked = request.overrides or any(given)
    published = any(text.startswith("preset ") for text in advice.assumptions)
    published &= not any(text.startswith(_NOT_ITS_OWN) for text in advice.assumptions)
    return bool(asked) or not published or bool(advice.recipe_differs)


_QUIET_SECONDS: Final = 0.5  # a search that ends sooner shows nothing
_BETWEEN_SECONDS: Final = 0.1
_BAR: Final = 20
_WIDTH: Final = 100


@contextmanager
def watched(terminal: TextIO) -> "Iterator[Watch]":
    """What watches a search: a line of the terminal, which is wiped in the end."""
    due, written = monotonic() + _QUIET_SECONDS, False

    def show(progress: "Progress") -> None:
        nonlocal due, written
        if (now := monotonic()) >= due:
            due, written = now + _BETWEEN_SECONDS, True
            terminal.write("\r" + progress_line(progress).ljust(_WIDTH))
            terminal.flush()

    try:
        yield show
    finally:
        if written:
            terminal.write("\r" + " " * _WIDTH + "\r")
            terminal.flush()


def progress_line(progress: "Progress") -> str:
    """``[####      ] 41 %, 2,311 settings; best so far 12.44 s: TP 1, DP 8, full``."""
    done = min(_BAR, max(0, int(progress.share * _BAR)))
    bar = f"[{'#' * done}{' ' * (_BAR - done)}] {100 * done // _BAR} %"
    text = f"advise: {bar}, {progress.evaluated:,} settings"
    best = progress.best
    if best is not None and best.fits:
        from advisor.request.layout_fields import degree_words

        degrees = degree_words(best.job.layout)
        text += f"; best so far {best.step_time_seconds:.2f} s: {degrees}, {best.setting.spec}"
    return f"{text} (Ctrl-C: stop here)"[:_WIDTH]
