"""`harness sweep`: search settings, micro batches and layouts by measurement."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from advisor.report.command_help import read_page
from harness.api.running import hand_over
from harness.api.sweeping import plan_sweep
from harness.cli.run import again_line, ended, parse
from harness.execution import progress, runner, signals
from harness.sweeps.sweep_page import dry_page, page

_say: Final = partial(progress.say, command="sweep")
COMMAND: Final = read_page(__file__, "sweep")


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    flags = parse(argv, "sweep", COMMAND)
    limits = {name: getattr(flags, name) for name in ("budget", "trials")}
    given = (*flags.overrides, *(f"sweep.{k}={v}" for k, v in limits.items() if v is not None))
    work, track = plan_sweep(given, flags.config_dir, flags.retry, dry_run=flags.dry_run)
    space, plan, folder = work.space, work.plan, work.folder
    if flags.dry_run:
        title = f"{plan.experiment} on {plan.device_name} (dry run)"
        print(dry_page(title, space, folder.path), end="")
        return 0
    again = again_line("sweep", argv)
    number = len(space.legal)
    most = min(work.options.trials, number)
    _say(f"measures at most {most} of {number} points; results go to {folder.path}")
    try:
        end = work.run()
    except (signals.Stop, OSError) as error:
        return ended(error, folder, f"what is finished is in {folder.path}", again, "sweep")
    title = f"{plan.experiment} on {plan.device_name}; sweep of step time and peak memory"
    print(page(title, space, work.outcomes, end), end="", flush=True)
    _say(f"results in {folder.path}")
    if folder.results():
        hand_over(folder.path, track, "sweep", report=not flags.no_report)
    return runner.exit_code(work.statuses)
