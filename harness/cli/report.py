"""`harness report`: what a run gave, for people, CI systems and other programs."""

from collections.abc import Sequence
from typing import Final

from advisor.base.errors import UserError
from advisor.report.command_help import read_page
from harness.api.running import hand_over
from harness.cli.compare import existing, parse_limit
from harness.cli.flags import Parser
from harness.execution.progress import say
from harness.judge.golden import load_goldens
from harness.judge.trial_rows import CompareOptions
from harness.report.tracking import parse_trackers

_REPEATED: Final = ("--golden", "--limit", "--track")
COMMAND: Final = read_page(__file__, "report", {flag: {"repeated": True} for flag in _REPEATED})


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    arguments = Parser("report", COMMAND, run=None).read(argv)
    trackers = parse_trackers(arguments.track, "--track")
    from harness.report.facts import load_facts
    from harness.report.write import FOLDER, step_summary_file, write_report

    held = load_goldens(existing(arguments.golden, "report")).values()
    goldens = list(held) if arguments.golden else None
    options = CompareOptions(
        allow_env_change=arguments.allow_env_change,
        limits=tuple(parse_limit(text) for text in arguments.limit),
    )
    if not arguments.run.is_dir():
        raise UserError("RUN", str(arguments.run), "is not a folder", "name the folder of a run")
    facts = load_facts(arguments.run, goldens, options)
    written = write_report(facts, arguments.to or arguments.run / FOLDER, step_summary_file())
    for path in sorted(written.files):
        print(path)
    for note in written.notes:
        say(note, "report")
    hand_over(arguments.run, trackers, "report")
    return 0
