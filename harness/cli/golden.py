"""`harness golden update | list | show | history`."""

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from advisor.base.output_file import check_output_file
from advisor.report.command_help import read_page
from advisor.report.figures.plot import check_figure
from harness.cli.flags import Parser
from harness.execution.progress import say
from harness.judge import golden, golden_update
from harness.judge.golden_page import change_page, golden_page, judged, list_page
from harness.judge.identity import CPU
from harness.judge.results import load_results
from harness.report.golden_history import draw_history, history, history_lines, metric_of
from harness.trial.files import write_atomic

_say: Final = partial(say, command="golden")
COMMAND: Final = read_page(__file__, "golden")
SUBCOMMANDS: Final = {
    name: read_page(__file__, f"golden_{name}", {"--reason": {"required": True}})
    for name in ("update", "list", "show", "history")
}


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    name = argv[0] if argv else ""
    if name not in SUBCOMMANDS:
        parser = Parser("golden", COMMAND)
        parser.add_argument("command", choices=SUBCOMMANDS, metavar="COMMAND")
        parser.parse_args(list(argv))
    run, words = _RUN[name]
    run(Parser(f"golden {name}", SUBCOMMANDS[name], Path, **words).read(argv[1:]))
    return 0


def _update(arguments: Namespace) -> None:
    if arguments.diff:
        check_output_file("--diff", arguments.diff, "diff.json")
    results = load_results(arguments.results).results
    folder = arguments.to or golden.FOLDER
    changes = golden_update.plan_update(results, arguments.reason, folder, append=arguments.append)
    on_gpu = [change.new for change in changes if change.new.identity.gpus != CPU]
    if len(on_gpu) < len(changes):
        _say("CPU times are not judged: memory and loss are the baseline")
    few = min((len(one.samples) for new in on_gpu for one in new.sessions), default=0)
    if 0 < few < golden_update.ADVISED_REPEATS:
        better = f"measure.repeats={golden_update.ADVISED_REPEATS} gives a better golden"
        _say(f"few processes ({few} of a setting); {better}")
    days = (Counter((s.host, s.started_at[:10]) for s in new.sessions) for new in on_gpu)
    if same := {day for one in days for (_, day), times in one.items() if day and times > 1}:
        _say(f"sessions of one machine and day count as one: {', '.join(sorted(same))}")
    if arguments.diff:
        write_atomic(arguments.diff, golden_update.diff_text(changes))
    else:
        pages = map(change_page, sorted(changes, key=lambda one: str(one.path)))
        print(*pages, sep="", end="", file=sys.stderr)
    if arguments.dry_run:
        return
    golden_update.write(changes)
    for change in changes:
        print(change.path)


def _list(arguments: Namespace) -> None:
    print(list_page(golden.load_goldens(arguments.paths or [golden.FOLDER])), end="")


def _history(arguments: Namespace) -> None:
    if arguments.figure:
        check_figure(arguments.figure, "--figure")
    results = load_results(arguments.results).results if arguments.results else ()
    one = golden.read_golden(arguments.file)
    metric = metric_of(one, arguments.metric)
    sessions, title = history(one, results, metric.name), f"{one.identity.label}: {metric.name}"
    title += "" if judged(one, metric.name) else " (CPU time)"
    print(f"{title}, change since the first session", *history_lines(sessions, metric), sep="\n")
    if arguments.figure:
        draw_history(sessions, metric, title, arguments.figure)
        _say(f"wrote {arguments.figure}")


_RUN: Final[dict[str, tuple[Callable[[Namespace], None], dict[str, str | None]]]] = {
    "update": (_update, {"results": "+"}),
    "list": (_list, {"paths": "*"}),
    "show": (lambda one: print(golden_page(golden.read_golden(one.file)), end=""), {"file": None}),
    "history": (_history, {"file": None, "results": "*"}),
}
"""What runs each, and what stands between its flags."""
