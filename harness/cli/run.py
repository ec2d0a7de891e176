"""`harness run`: plan, run, and show predicted and measured."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from shlex import quote
from typing import Final

from advisor.base.fields import key_of
from advisor.base.units import counted
from advisor.report.blocks import Column, Indented, group, spec_cell, table, verbatim
from advisor.report.command_help import CommandHelp, read_page
from advisor.report.text import on_screen
from harness.api.running import PlannedRun, hand_over, plan_run, statuses_of
from harness.cli.flags import Parser
from harness.execution.progress import say
from harness.execution.runner import FAILED as UNANSWERED
from harness.execution.runner import exit_code
from harness.execution.signals import Stop
from harness.judge.predicted import page
from harness.trial.result import TrialResult
from harness.trial.store import RunFolder
from harness.trial.trial import PlannedSetting, Prediction, RunPlan

UNFINISHED: Final = 3
FAILED: Final = 4
_RETRY: Final = "--retry"
COMMAND: Final = read_page(__file__, "run")


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    flags = parse(argv)
    planned = plan_run(flags.overrides, flags.config_dir, dry_run=flags.dry_run)
    if flags.dry_run:
        print(dry_page(planned.plan, planned.folder), end="")
        return 0
    plan, folder = planned.plan, planned.folder

    def conclude(results: dict[str, TrialResult]) -> int:
        if len(results) < sum(1 for _ in plan.trials()):
            if results:
                print(page(plan, results), end="")
            say(f"{_kept(folder, plan)}; collect the other trials with: {again_line('run', argv)}")
            return UNFINISHED
        print(page(plan, results), end="", flush=True)
        say(f"results in {folder.path}")
        hand_over(folder.path, planned.track, report=not flags.no_report)
        return exit_code(result.status for result in results.values())  # which no report changes

    return execute(planned, flags, argv, conclude)


def parse(argv: Sequence[str], name: str = "run", command: CommandHelp = COMMAND) -> Namespace:
    """Flags and overrides of a command that runs trials; UserError for a flag that is not known."""
    made = Parser(name, command, str, overrides="*")
    # a bare --retry takes none of the overrides after it
    found = made.read([f"{word}=" if word == _RETRY else word for word in argv])
    found.overrides = tuple(found.overrides)
    found.retry = statuses_of(found.retry.split(",") if found.retry else found.retry == "")
    return found


def execute(
    planned: PlannedRun,
    flags: Namespace,
    argv: Sequence[str],
    conclude: Callable[[dict[str, TrialResult]], int],
    command: str = "run",
) -> int:
    """Run all trials and `conclude` from their results; the exit code."""
    again = again_line(command, argv)
    plan, folder = planned.plan, planned.folder
    total = sum(1 for _ in plan.trials())
    runner = planned.runner(flags.retry)
    say(f"{counted(total, 'trial')}; results go to {folder.path}", command)
    try:
        results = runner.run()
    except (Stop, OSError) as error:
        return ended(error, folder, _kept(folder, plan), again, command)
    code = conclude(results)
    unanswered = sum(result.status in UNANSWERED for result in results.values())
    if unanswered:
        words = f"{unanswered} of {total} trials failed; re-run the unmeasured trials with"
        say(f"{words}: {again} --retry", command)
    return code


def ended(error: Stop | OSError, folder: RunFolder, kept: str, again: str, command: str) -> int:
    """Say what is `kept` of what was stopped or could not be written; the exit code."""
    if isinstance(error, Stop):
        say(f"stopped: {kept}; continue with: {again}", command)
        return error.exit_code
    reason = f"{error.filename or folder.path}: {error.strerror or error}"
    say(f"cannot write {reason}: {kept}; after fixing this, run: {again} --retry", command)
    return FAILED


def dry_page(plan: RunPlan, folder: RunFolder) -> str:
    """What would be run and what is predicted of it."""
    title = f"{plan.experiment} on {plan.device_name} (dry run)"
    found = table(Column(left=True, wrap=wraps) for wraps in (False, True, True))
    for setting, trial in plan.trials():
        found.add_row(trial.name, spec_cell(setting.spec), planned_words(setting))
    where = verbatim(f"results go to {folder.path}")
    notes = [f"Note: {text}." for text in plan.assumptions]
    return on_screen(group(title, where, "", Indented(found, 2), "", *notes))


def planned_words(setting: PlannedSetting) -> str:
    """After a setting's name: what is predicted of it, or why it is not run."""
    if setting.skip:
        return f"not run: {setting.skip}"
    seconds = (setting.trial.prediction or Prediction()).step_time_seconds
    return "" if seconds is None else f"predicted {seconds * 1e3:.1f} ms per step"


def _kept(folder: RunFolder, plan: RunPlan) -> str:
    """How much of the run is on disk, and where."""
    names = [trial.name for _, trial in plan.trials()]
    done = sum(folder.trial(name).has_result() for name in names)
    return f"{done} of {len(names)} trials are finished, in {folder.path}"


def again_line(command: str, argv: Sequence[str]) -> str:
    """The command line that continues this one."""
    words = [word for word in argv if key_of(word) != _RETRY]
    return " ".join(["harness", command, *(quote(word) for word in words)])
