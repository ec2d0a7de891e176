"""`harness golden update | list | show | export | import`."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from advisor.base.errors import UserError
from harness.cli.flags import Parser
from harness.execution.progress import say
from harness.judge.goldens.foreign import FIRST_STEP, write_layout
from harness.judge.goldens.golden_json import json_text, read_golden
from harness.judge.goldens.imported import ImportRequest, import_golden
from harness.judge.goldens.listing import change_page, golden_page, list_page
from harness.judge.results import load_results
from harness.judge.update import (
    ADVISED_REPEATS,
    FOLDER,
    Change,
    change_for,
    diff_text,
    load_goldens,
    plan_update,
    write,
)
from harness.logs.golden_layouts import FIRST, Layout
from harness.trial.files import write_atomic

_say: Final = partial(say, command="golden")
HELP: Final = """\
Goldens are baselines kept as reviewable files; only this command changes them.

  harness golden update --reason "torch 2.8" runs/NAME      from measured results
  harness golden list
  harness golden show FILE
  harness golden import golden_values.json --reason "upstream CI" --gpus 8xH100 \\
      --workload model.name=gpt3_7b --workload recompute=none
  harness golden export FILE --layout megatron_bridge

Exit codes: 0 done, 2 the request is wrong (one line says why).
"""


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    arguments = parser().parse_args(list(argv))
    run: Any = _COMMANDS[arguments.command]
    return int(run(arguments) or 0)


def _update(arguments: Namespace) -> None:
    results = load_results(arguments.results).results
    changes = plan_update(results, arguments.reason, arguments.to)
    for change in changes:
        count = len(change.new.processes)
        if 0 < count < ADVISED_REPEATS:
            _say(
                f"{change.new.identity.label}: few samples ({count}); "
                f"measure.repeats={ADVISED_REPEATS} gives a better golden"
            )
    _apply(changes, arguments)


def _apply(changes: Sequence[Change], arguments: Namespace) -> None:
    """Show what changes, then write; with --dry-run nothing is written."""
    if arguments.diff:
        write_atomic(arguments.diff, diff_text(changes))
    else:
        for change in sorted(changes, key=lambda one: str(one.path)):
            diff = change.diff() if change.old else None
            print(change_page(change.path, change.new, diff), end="", file=sys.stderr)
    if arguments.dry_run:
        return
    write(changes)
    for change in changes:
        print(change.path)


def _list(arguments: Namespace) -> None:
    print(list_page(load_goldens(arguments.paths or [FOLDER])), end="")


def _show(arguments: Namespace) -> None:
    print(golden_page(read_golden(arguments.file)), end="")


def _export(arguments: Namespace) -> None:
    golden = read_golden(arguments.file)
    if not golden.processes:
        raise UserError("golden", str(arguments.file), "holds no numbers to export")
    text = json_text(write_layout(golden.processes[0], Layout(arguments.layout)))
    if len(golden.processes) > 1:
        _say(f"{golden.processes[0].name} is exported, the first of {len(golden.processes)}")
    if arguments.output:
        write_atomic(arguments.output, text)
    else:
        print(text, end="")


def _import(arguments: Namespace) -> None:
    request = ImportRequest(
        path=arguments.file,
        reason=arguments.reason,
        gpus=arguments.gpus,
        fields=tuple(arguments.workload),
        like=arguments.like,
        layout=Layout(arguments.layout) if arguments.layout else None,
        first_step=arguments.first_step,
        source=arguments.source,
        date=arguments.date,
    )
    present = load_goldens([arguments.to]) if arguments.to.exists() else {}
    _apply([change_for(import_golden(request), present, arguments.to)], arguments)


def parser() -> ArgumentParser:
    """Arguments of `harness golden`."""
    made = Parser("harness golden", description=HELP)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    update = commands.add_parser("update", help="make or replace goldens from results")
    update.add_argument("results", nargs="+", type=Path, metavar="RESULTS")
    _writing(update)
    listing = commands.add_parser("list", help="all goldens")
    listing.add_argument("paths", nargs="*", type=Path, metavar="PATH")
    show = commands.add_parser("show", help="one golden")
    show.add_argument("file", type=Path)
    export = commands.add_parser("export", help="in the layout of another suite")
    export.add_argument("file", type=Path)
    export.add_argument("--layout", choices=list(Layout), default=FIRST)
    export.add_argument("--output", type=Path, metavar="FILE", help="instead of stdout")
    _importing(commands.add_parser("import", help="from the layout of another suite"))
    return made


def _importing(made: ArgumentParser) -> None:
    made.add_argument("file", type=Path)
    made.add_argument(
        "--workload",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="what is known of the workload, e.g. model.name=gpt3_7b",
    )
    made.add_argument(
        "--like",
        type=Path,
        metavar="RESULT",
        help="a result.json of the same workload, instead of --workload",
    )
    made.add_argument("--gpus", required=True, metavar="COUNTxTYPE")
    made.add_argument("--layout", choices=list(Layout), help="found out where it is not given")
    made.add_argument(
        "--first-step",
        type=int,
        default=FIRST_STEP,
        metavar="N",
        help=f"times before it are warm-up (default {FIRST_STEP})",
    )
    made.add_argument("--source", default="", help="where the file comes from")
    made.add_argument("--date", default="", help="when it was measured")
    _writing(made)


def _writing(made: ArgumentParser) -> None:
    made.add_argument("--reason", required=True, help="why the baseline changes; kept in the file")
    made.add_argument(
        "--to",
        type=Path,
        default=FOLDER,
        metavar="FOLDER",
        help=f"where goldens are (default {FOLDER})",
    )
    made.add_argument(
        "--diff", type=Path, metavar="FILE", help="write old and new of every value there, as JSON"
    )
    made.add_argument("--dry-run", action="store_true", help="show what changes, write nothing")


_COMMANDS: Final = {
    "update": _update,
    "list": _list,
    "show": _show,
    "export": _export,
    "import": _import,
}
