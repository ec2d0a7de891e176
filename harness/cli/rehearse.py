"""`harness rehearse`: one rank of each pipeline stage of a large job, alone on one device."""

from collections.abc import Sequence
from typing import Final

from advisor.report.command_help import read_page
from harness.api.running import plan_rehearsal
from harness.cli.run import execute, parse
from harness.execution.progress import say
from harness.execution.runner import exit_code
from harness.rehearsal.comparison_page import dry_page, page
from harness.trial.result import TrialResult

COMMAND: Final = read_page(__file__, "rehearse")


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    flags = parse(argv, "rehearse", COMMAND)
    planned = plan_rehearsal(flags.overrides, flags.config_dir)
    if flags.dry_run:
        print(dry_page(planned.plan), end="")
        return 0

    def conclude(results: dict[str, TrialResult]) -> int:
        print(page(planned.plan, results), end="", flush=True)
        say(f"results in {planned.folder.path}", "rehearse")
        return exit_code(result.status for result in results.values())

    return execute(planned, flags, argv, conclude, "rehearse")
