"""`harness sweep`: search settings, micro batches and layouts by measurement."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from advisor.report.command_help import CommandHelp, Topic, explained, flags
from harness.api.running import hand_over
from harness.api.sweeping import plan_sweep
from harness.cli.flags import CONFIG_DIR, HELP
from harness.cli.run import NO_REPORT, RETRY, again_line, ended, parse
from harness.execution import progress, runner, signals
from harness.sweeps.sweep_page import dry_page, page

_say: Final = partial(progress.say, command="sweep")
COMMAND: Final = CommandHelp(
    usage="harness sweep [flags] [KEY=VALUE]...",
    about="Measures recompute settings, micro batches and layouts to find the best step time and "
    "peak memory. It starts with the advisor's best, then picks the most promising by predictions "
    "corrected with the measurements. Clearly slower trials end early, leaders with overlapping "
    "times are repeated, and the sweep ends when the fastest is known. Prints the Pareto front, "
    "and writes the same report as harness run.",
    examples=(
        ("harness sweep", "a tiny model on the CPU"),
        "harness sweep sweep=llama3_8b_1xh200",
        "harness sweep experiment=llama3_8b_1xh200 'sweep.micro_batch_sizes=[1,2]' sweep.trials=30",
        "harness sweep experiment=llama3_8b_2xh100 sweep.layouts=true sweep.memory_budget=76GiB "
        "--budget 2h",
        (
            "harness sweep experiment=llama3_8b_1xh200 gpus=8xB200 sweep.layouts=true --dry-run",
            "on any machine",
        ),
    ),
    topics=(
        Topic(
            "What is searched",
            explained("""
            sweep=NAME                a file of configs/sweep: tiny_cpu, llama3_8b_1xh200, or
                recompute (for any experiment)
            recompute.settings=[…]    only these settings; default: every legal one
            sweep.micro_batch_sizes=[1,2,4]  default: the job's own; the global batch stays the same
            sweep.layouts=true        also try every legal layout of the job's GPUs
            sweep.memory_budget=76GiB  a point that needs more counts as not fitting
        """),
        ),
        Topic(
            "How it searches",
            explained("""
            sweep.trials=20           points to measure, those of earlier calls included
            sweep.first=3             number of the advisor's best to start with; then the sampler
                chooses
            sweep.sampler=prior       prior (default) uses predictions, corrected by measurements;
                tpe, nsga2, random and brute_force are Optuna's and use no predictions
            sweep.repeats=3           most processes per point; only leaders with overlapping times
                get more than one
            sweep.budget=2h           wall time after which no trial starts (also --budget 2h)
            sweep.prune=true          a trial that is clearly slower than the leader ends early
            sweep.batch=1             points chosen at a time; launcher=slurm runs them in parallel
            sweep.min_fit_probability=0.01  points that are less likely to fit are not run
            sweep.seed=1234           seed of the sampler
        """),
        ),
        Topic(
            "Many workers",
            explained("""
            sweep.storage=URL         a database instead of the journal file in runs/NAME:
                sqlite:///FILE, or postgresql+pg8000://USER@HOST/DATABASE (password: PGPASSWORD)
            sweep.worker_timeout_seconds=120
                a worker that reports nothing for this time counts as dead
        """),
            "Start the same command several times, on one machine or on many, to share the sweep. "
            "Nothing runs twice, even when a worker is killed or loses its network "
            "(docs/sweeps.md). One worker per GPU: CUDA_VISIBLE_DEVICES=1 harness sweep …",
        ),
        Topic(
            "As for harness run",
            text="experiment, model.*, layout.*, job.*, measure.*, launcher.*, gpus, device, name, "
            "runs, track. The same command continues a stopped sweep; a larger sweep.trials "
            "extends a finished one.",
        ),
        Topic(
            "Flags",
            (
                *flags("""
                --budget TIME  sets sweep.budget, e.g. 30min or 2h
                --dry-run      show the points in the advisor's order for the job's GPUs (or those
                    of gpus=); run and write nothing. Works on any machine
                """),
                RETRY,
                NO_REPORT,
                CONFIG_DIR,
                HELP,
            ),
        ),
    ),
    closing="Exit codes: 0 points were measured, 2 the request is wrong (one line says why), 4 a "
    "trial failed or nothing was measured, 130 interrupted (143 by SIGTERM): what is finished is "
    "kept.",
)


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    flags = parse(argv, "sweep", COMMAND)
    spent = () if flags.budget is None else (f"sweep.budget={flags.budget}",)
    given = (*flags.overrides, *spent)
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
    print(page(title, space, work.outcomes, end.words), end="", flush=True)
    _say(f"results in {folder.path}")
    if folder.results():
        hand_over(folder.path, track, "sweep", report=not flags.no_report)
    return runner.exit_code(work.statuses)
