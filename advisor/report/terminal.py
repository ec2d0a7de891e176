"""The page that `advise` prints: what was assumed, one table, the reasons, the flags."""

from collections.abc import Sequence

from advisor.answer import Advice, Candidate
from advisor.report.header import header_lines
from advisor.report.ranking_table import ranking_lines
from advisor.report.text import Screen, Style, continued, wrap
from advisor.report.wording import chosen, remedy_line, verdict

_FLAG_MARGIN = 17


def page(
    advice: Advice,
    *,
    screen: Screen,
    top: int = 10,
    show_rejected: bool = False,
    search_layout: bool = False,
    with_layout_flags: bool = False,
) -> str:
    """The whole page with a final newline; `top` rows of the ranking are shown."""
    shown = advice.candidates[:top]
    blocks = [
        header_lines(advice, screen),
        ranking_lines(shown, screen, search_layout=search_layout) if shown else [],
        _notes(shown, screen),
        _reasons(advice, screen),
        _rejected(advice, screen) if show_rejected or not shown else [],
        _flags(advice, screen, with_layout=with_layout_flags),
        [
            screen.paint(line, Style.DIM)
            for line in _hint(advice, len(shown), show_rejected, screen)
        ],
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"


def _notes(shown: Sequence[Candidate], screen: Screen) -> list[str]:
    """What single rows buy, rows with the same note together; then the dominated rows."""
    rows_of: dict[str, list[int]] = {}
    for candidate in shown:
        if candidate.note:
            rows_of.setdefault(candidate.note, []).append(candidate.rank)
    dominated = [candidate.rank for candidate in shown if not candidate.pareto]
    if dominated:
        rows_of["another row needs no more memory and no more time"] = dominated
    lines = []
    for note, rows in rows_of.items():
        who = f"row {rows[0]}" if len(rows) == 1 else f"rows {_ranges(rows)}"
        first, *more = wrap(f"{who}: {note}", screen.width - 6)
        lines += [f"    {first}", *(f"      {line}" for line in more)]
    return [screen.paint(line, Style.DIM) for line in lines]


def _ranges(numbers: Sequence[int]) -> str:
    """``2, 5-8`` for 2, 5, 6, 7, 8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _reasons(advice: Advice, screen: Screen) -> list[str]:
    lines = [screen.paint(line, Style.BOLD) for line in wrap(verdict(advice), screen.width)]
    best = chosen(advice)
    if best is None or not advice.remedies:
        return lines
    head = "Cheaper still" if advice.fits else "Outside recompute"
    texts = [remedy_line(remedy, best.evaluation) for remedy in advice.remedies]
    if len(texts) == 1:
        return lines + wrap(f"{head}: {texts[0]}", screen.width)
    lines.append(f"{head}:")
    for text in texts:
        first, *more = wrap(text, screen.width - 4)
        lines += [f"  - {first}", *(f"    {line}" for line in more)]
    return lines


def _rejected(advice: Advice, screen: Screen) -> list[str]:
    """Every refused setting with the rule that refuses it, the way out, and the source."""
    lines = [f"Rejected settings: {len(advice.rejected) or 'none'}"]
    for rejection in advice.rejected:
        lines.append(f"  {rejection.setting.spec}")
        told = rejection.reason.rstrip(".") + (f". Fix: {rejection.fix}" if rejection.fix else "")
        lines += [f"      {line}" for line in wrap(told, screen.width - 6)]
        source = wrap(f"{rejection.rule}: {rejection.source}", screen.width - 6)
        lines += [screen.paint(f"      {line}", Style.DIM) for line in source]
    return lines


def _flags(advice: Advice, screen: Screen, *, with_layout: bool) -> list[str]:
    """The chosen row's flags for each framework; a backslash joins what had to be broken."""
    from advisor.report import flags

    best = chosen(advice)
    if best is None:
        return []
    lines = []
    for framework, text in flags.all_flags(best.evaluation).items():
        job_flags = (
            flags.framework_layout_flags(best.evaluation, framework)
            if with_layout
            else flags.framework_assumed_flags(best.evaluation, framework)
        )
        text = f"{job_flags} {text}".strip()
        lines += _in_margin(flags.LABELS[framework], text or flags.NO_FLAGS, screen.width)
    variables = flags.environment_words(best.evaluation)
    return lines + (_in_margin("Environment", variables, screen.width) if variables else [])


def _in_margin(label: str, command: str, width: int) -> list[str]:
    first, *more = continued(command, width - _FLAG_MARGIN)
    return [f"{label:<{_FLAG_MARGIN}}{first}", *(" " * _FLAG_MARGIN + line for line in more)]


def _hint(advice: Advice, shown: int, show_rejected: bool, screen: Screen) -> list[str]:
    parts = []
    if shown < len(advice.candidates):
        parts.append(f"{shown} of {len(advice.candidates)} rows: --top N")
    if shown:
        parts.append(f"explain a row with --explain {min(2, shown)}")
    if advice.rejected and not show_rejected and shown:
        parts.append(f"{len(advice.rejected)} rejected with --show-rejected")
    if shown:
        parts.append("pictures with --plot out.svg")
    hint = " · ".join(parts)
    return wrap(hint[:1].upper() + hint[1:], screen.width)
