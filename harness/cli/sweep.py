"""`harness sweep`: search settings, micro batches and layouts by measurement."""

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from shlex import quote
from typing import Final

from harness.api.running import hand_over
from harness.api.sweeping import PlannedSweep, plan_sweep
from harness.cli.run import FAILED, again_line, parse, planned_words
from harness.execution.progress import say
from harness.execution.runner import exit_code
from harness.execution.signals import Stop
from harness.sweeps.front import page
from harness.sweeps.space import Space
from harness.trial.store import RunFolder

_say: Final = partial(say, command="sweep")
HELP: Final = """\
harness sweep [flags] [KEY=VALUE]...

Searches recompute settings, micro batches and layouts for the best step time and peak memory:
the advisor's best first, then what Optuna asks for. Prints the Pareto front of what was measured.

  harness sweep                                          a tiny model on the CPU
  harness sweep sweep=llama3_8b_1xh200
  harness sweep experiment=llama3_8b_1xh200 'sweep.micro_batch_sizes=[1,2]' sweep.trials=30
  harness sweep experiment=llama3_8b_2xh100 sweep.layouts=true sweep.memory_budget=76GiB

What is searched
  sweep=NAME                configs/sweep: tiny_cpu, llama3_8b_1xh200, recompute (any experiment)
  recompute.settings=[…]    these settings only, else every legal one
  sweep.micro_batch_sizes=[1,2,4]      else the job's own; the global batch stays
  sweep.layouts=true        every legal layout of the job's GPUs as well
  sweep.memory_budget=76GiB            points that need more are infeasible

How
  sweep.trials=20           points that get a result, earlier ones of the same sweep included
  sweep.first=5             so many of the advisor's best before the sampler chooses
  sweep.sampler=auto|brute_force|tpe|nsga2|random        auto: all points where trials suffice
  sweep.batch=1             points at a time; with launcher=slurm they run side by side
  sweep.min_fit_probability=0.01       what the advisor thinks less likely to fit is not run
  sweep.seed=1234           sweep.storage=URL: an Optuna storage instead of the journal file

experiment, model.*, layout.*, job.*, measure.*, launcher.*, gpus, device, name, runs: as for
`harness run`. The same command goes on where it was stopped, and runs nothing twice; with a larger
sweep.trials it goes further.

Flags
  --dry-run                 show the points in the advisor's order, run nothing, write nothing
  --retry                   run trials again that gave no measurement
  --config-dir DIR          searched before ./configs and the packaged configuration
  --help

Exit codes: 0 points were measured, 2 the request is wrong (one line says why), 4 a trial failed or
nothing was measured, 130 interrupted (143 by SIGTERM): what is finished is kept.
"""


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    flags = parse(argv, "sweep", HELP)
    planned = plan_sweep(flags.overrides, flags.config_dir)
    if flags.dry_run:
        print(dry_page(planned.space, planned.folder), end="")
        return 0
    return _sweep(planned, flags, argv)


def _sweep(planned: PlannedSweep, flags: Namespace, argv: Sequence[str]) -> int:
    space, plan, folder = planned.space, planned.plan, planned.folder
    again = again_line("sweep", argv)
    number = len(space.legal)
    _say(f"at most {min(planned.options.trials, number)} of {number} points into {folder.path}")
    work = planned.sweep(flags.retry)
    try:
        ended = work.run()
    except Stop as stop:
        _say(f"stopped: what is finished is in {folder.path}; go on with: {again}")
        return stop.exit_code
    except OSError as error:
        _say(
            f"cannot write {error.filename or folder.path}: {error.strerror or error}; when that "
            f"is put right: {again}"
        )
        return FAILED
    title = f"{plan.experiment} on {plan.device_name}; sweep of step time and peak memory"
    print(page(title, space, work.outcomes, ended.words), end="", flush=True)
    _say(f"results in {folder.path}; harness report {quote(str(folder.path))}")
    hand_over(folder.path, planned.track, "sweep")
    return exit_code(work.statuses)


def dry_page(space: Space, folder: RunFolder) -> str:
    """The points, and what is predicted of them."""
    lines = [f"{len(space.planned)} points (dry run)", f"into {folder.path}", ""]
    for point, planned in space.planned.items():
        lines.append(f"  {point.label}{planned_words(planned)}")
    lines += ["", *(f"Note: {text}." for text in space.target.assumptions)]
    return "\n".join(lines) + "\n"
