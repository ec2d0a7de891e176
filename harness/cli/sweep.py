"""`harness sweep`: search settings, micro batches and layouts by measurement."""

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Final

from advisor.base.errors import UserError
from harness.cli.run import FAILED, Flags, again_line, parse
from harness.planner.launcher_options import LauncherKind, LauncherOptions
from harness.planner.planning import device_name
from harness.planner.run_request import RunConfig, compose_sweep
from harness.planner.sweep_options import SweepOptions
from harness.run.launch import machine_of, make_runner
from harness.run.runner import exit_code
from harness.run.signals import Stop
from harness.sweep.front import page
from harness.sweep.loop import Sweep
from harness.sweep.space import Space, make_space
from harness.trial.run_plan import RunPlan
from harness.trial.store import RunFolder
from harness.trial.trial import Backend

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
    if "--help" in argv or "-h" in argv:
        print(HELP, end="")
        return 0
    flags = parse(argv)
    config, options = compose_sweep(flags.overrides, flags.config_dir)
    if config.measure.repeats > 1:
        raise UserError(
            "measure.repeats",
            config.measure.repeats,
            "must be 1: a point is one trial",
            "repeat the best ones with `harness run`",
        )
    if config.backend is Backend.COMMAND:
        raise UserError(
            "backend",
            config.backend,
            "a command chooses layout and batch itself",
            "backend=native, or `harness run backend=command`",
        )
    machine = machine_of(config)
    space = make_space(config, machine, options)
    plan = RunPlan(
        experiment=config.experiment_name,
        device_name=device_name(space.target.job, machine.device),
        settings=(),
        assumptions=space.target.assumptions,
    )
    folder = RunFolder(Path(config.runs) / folder_name(config, space))
    if flags.dry_run:
        print(dry_page(space, folder), end="")
        return 0
    return _sweep(config, options, space, plan, folder, flags, argv)


def folder_name(config: RunConfig, space: Space) -> str:
    """As given, else one that the same space always gives."""
    if config.name:
        if os.path.basename(config.name) != config.name or config.name in (".", ".."):
            raise UserError("name", config.name, "must be the name of one folder")
        return config.name
    keys = sorted(planned.trial.workload.key() for planned in space.planned.values())
    digest = hashlib.sha256(" ".join(keys).encode()).hexdigest()[:6]
    return f"{config.experiment_name}-sweep-{digest}"


def _sweep(
    config: RunConfig,
    options: SweepOptions,
    space: Space,
    plan: RunPlan,
    folder: RunFolder,
    flags: Flags,
    argv: Sequence[str],
) -> int:
    launcher = _waiting(config.launcher)
    sweep = Sweep(
        folder=folder,
        plan=plan,
        space=space,
        options=options,
        make_runner=lambda plan, progress, retry: make_runner(
            launcher, folder, plan, progress, retry
        ),
        retry=flags.retry,
    )
    again = again_line("sweep", argv)
    _say(
        f"{min(options.trials, len(space.planned))} of {len(space.planned)} points "
        f"into {folder.path}"
    )
    try:
        outcomes = sweep.run()
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
    print(page(title, space, outcomes, options.budget_bytes()), end="")
    _say(f"results in {folder.path}; harness report {quote(str(folder.path))}")
    return exit_code(folder.results())


def _waiting(options: LauncherOptions) -> LauncherOptions:
    """A sweep has to know what came of a round before it asks for the next."""
    return replace(options, wait=True) if options.kind is LauncherKind.SLURM else options


def dry_page(space: Space, folder: RunFolder) -> str:
    """The points, and what is predicted of them."""
    lines = [f"{len(space.planned)} points (dry run)", f"into {folder.path}", ""]
    for point, planned in space.planned.items():
        prediction = planned.trial.prediction
        words = f"  {point.label}"
        if planned.skip:
            words += f"  not run: {planned.skip}"
        elif prediction is not None and prediction.step_time_seconds is not None:
            words += f"  predicted {prediction.step_time_seconds * 1e3:.1f} ms a step"
        lines.append(words)
    lines += ["", *(f"Note: {text}." for text in space.target.assumptions)]
    return "\n".join(lines) + "\n"


def _say(text: str) -> None:
    print(f"harness sweep: {text}", file=sys.stderr, flush=True)
