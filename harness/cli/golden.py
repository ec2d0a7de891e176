"""`harness golden update | list | show | export | import`."""

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from advisor.base.errors import UserError
from advisor.base.units import either
from advisor.report.command_help import Command, Flag, Kind, Topic
from harness.cli.flags import Parser
from harness.execution.progress import say
from harness.judge.goldens.foreign import FIRST_STEP, write_layout
from harness.judge.goldens.golden_json import json_text, read_golden
from harness.judge.goldens.imported import ImportRequest, import_golden
from harness.judge.goldens.listing import change_page, golden_page, list_page
from harness.judge.identity import CPU
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
COMMAND: Final = Command(
    usage="harness golden update|list|show|export|import [arguments]; details: harness golden "
    "COMMAND --help",
    about="Makes and shows goldens: baselines in files that can be reviewed. Only this command "
    "changes them.",
    examples=(
        ('harness golden update --reason "torch 2.8" runs/NAME', "from measured results"),
        "harness golden list",
        "harness golden show FILE",
        'harness golden import golden_values.json --reason "upstream CI" --gpus 8xH100 '
        "--workload model.name=gpt3_7b --workload recompute=none",
        "harness golden export FILE --layout megatron_bridge",
    ),
    closing="Exit codes: 0 done, 2 the request is wrong (one line says why).",
)


def _layout(default: str) -> Flag:
    """Of a foreign golden's format."""
    words = f"format of the other suite: {either(Layout)}; default: {default}"
    return Flag("--layout NAME", words, Kind.CHOICE, choices=tuple(Layout))


_WRITING: Final = (
    Flag("--reason WHY", "why the baseline changes; kept in the file", Kind.TEXT, required=True),
    Flag("--to FOLDER", f"where goldens are (default {FOLDER})", Kind.FOLDER),
    Flag("--diff FILE", "write the old and new values to FILE, as JSON", Kind.FILE),
    Flag("--dry-run", "show what changes, write nothing"),
)
SUBCOMMANDS: Final = {
    "update": Command(
        usage="harness golden update --reason WHY [flags] RESULTS...",
        about="Makes or replaces goldens from measured results.",
        topics=(Topic("Flags", _WRITING),),
    ),
    "list": Command(usage="harness golden list [PATH...]", about="Lists all goldens."),
    "show": Command(usage="harness golden show FILE", about="Shows one golden."),
    "export": Command(
        usage="harness golden export [flags] FILE",
        about="Writes a golden in the format of another test suite.",
        topics=(
            Topic(
                "Flags",
                (
                    _layout(FIRST),
                    Flag("--output FILE", "write to FILE instead of stdout", Kind.FILE),
                ),
            ),
        ),
    ),
    "import": Command(
        usage="harness golden import --reason WHY --gpus COUNTxTYPE [flags] FILE",
        about="Makes a golden from the file of another test suite.",
        topics=(
            Topic(
                "Flags",
                (
                    Flag(
                        "--workload KEY=VALUE",
                        "a field of the workload, e.g. model.name=gpt3_7b; repeatable",
                        Kind.TEXT,
                        repeated=True,
                    ),
                    Flag(
                        "--like RESULT",
                        "a result.json of the same workload, instead of --workload",
                        Kind.FILE,
                    ),
                    Flag("--gpus COUNTxTYPE", "the GPUs that it ran on", Kind.GPUS, required=True),
                    _layout("by the content of FILE"),
                    Flag(
                        "--first-step N",
                        f"steps before step N are warm-up (default {FIRST_STEP})",
                        Kind.NUMBER,
                    ),
                    Flag("--source TEXT", "where the file comes from", Kind.TEXT),
                    Flag("--date DATE", "when it was measured", Kind.TEXT),
                    *_WRITING,
                ),
            ),
        ),
    ),
}
_WORDS: Final = {
    "update": ("results", "+"),
    "list": ("paths", "*"),
    "show": ("file", None),
    "export": ("file", None),
    "import": ("file", None),
}
"""What stands between the flags, and how often."""


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    arguments = parse(argv)
    _COMMANDS[argv[0]](arguments)
    return 0


def parse(argv: Sequence[str]) -> Namespace:
    """Arguments of the subcommand that `argv` begins with; UserError where they cannot be read."""
    name = argv[0] if argv else ""
    if name not in SUBCOMMANDS:
        parser = Parser("golden", COMMAND)
        parser.add_argument("command", choices=SUBCOMMANDS, metavar="COMMAND")
        parser.parse_args(list(argv))
    parser, (words, number) = Parser(f"golden {name}", SUBCOMMANDS[name]), _WORDS[name]
    parser.add_argument(words, nargs=number, type=Path)
    found = parser.read(argv[1:])
    for field, default in _DEFAULTS.items():
        if getattr(found, field, default) is None:
            setattr(found, field, default)
    return found


_DEFAULTS: Final = {"to": FOLDER, "first_step": FIRST_STEP, "source": "", "date": ""}


def _update(arguments: Namespace) -> None:
    results = load_results(arguments.results).results
    changes = plan_update(results, arguments.reason, arguments.to)
    if any(change.new.identity.gpus == CPU for change in changes):
        _say("CPU times are not judged: memory and loss are the baseline")
    for change in changes:
        count = len(change.new.processes)
        if 0 < count < ADVISED_REPEATS and change.new.identity.gpus != CPU:
            _say(
                f"{change.new.identity.label}: few processes ({count}); "
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
    text = json_text(write_layout(golden.processes[0], Layout(arguments.layout or FIRST)))
    if len(golden.processes) > 1:
        count = len(golden.processes)
        _say(f"only the first of {count} processes is exported: {golden.processes[0].name}")
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


_COMMANDS: Final[dict[str, Callable[[Namespace], None]]] = {
    "update": _update,
    "list": _list,
    "show": _show,
    "export": _export,
    "import": _import,
}
