"""`harness report`: what a run gave, for people, CI systems and other programs."""

from collections.abc import Sequence
from typing import Final

from advisor.base.errors import UserError
from advisor.report.command_help import CommandHelp, Flag, Topic, explained
from harness.api.running import hand_over
from harness.cli.compare import ALLOW_ENV_CHANGE, LIMIT, find_goldens, parse_limit
from harness.cli.flags import HELP, Parser
from harness.execution.progress import say
from harness.judge.trial_rows import CompareOptions
from harness.report.tracking import parse_trackers

COMMAND: Final = CommandHelp(
    usage="harness report [flags] RUN",
    about="Writes the report of a RUN: the folder of a run, or of result.json files. It needs no "
    "GPU and no torch. harness run writes the same report when it ends, without a verdict.",
    examples=(
        ("harness report runs/NAME", "into runs/NAME/report"),
        ("harness report runs/NAME --golden results/golden", "with the verdict first"),
        ("harness report runs/NAME --track mlflow", "sends its trials to a tracker, each once"),
    ),
    topics=(
        Topic(
            "Files",
            explained("""
            report.md    for GitHub; also appended to the file named by GITHUB_STEP_SUMMARY
            report.html  one file with all figures; loads nothing else
            junit.xml    a case for each setting and metric: failure = regression, error = failed
                run, skipped = refused by a rule, or no verdict
            trials.csv   one row per trial (also trials.parquet if pyarrow is installed)
            bmf.json     Bencher metric format
            figures/     memory against time, Pareto front, predicted against measured, memory by
                component, memory over one step; SVG and PNG
        """),
        ),
        Topic(
            "Flags",
            (
                Flag(
                    "--golden PATH",
                    "judge by this golden file or folder, repeatable",
                    repeated=True,
                ),
                LIMIT,
                ALLOW_ENV_CHANGE,
                Flag(
                    "--track NAME",
                    "send the trials to mlflow (MLFLOW_TRACKING_URI), wandb (offline unless "
                    "WANDB_MODE says otherwise) or tensorboard (RUN/tensorboard), repeatable",
                    repeated=True,
                ),
                Flag("--to FOLDER", "default: RUN/report"),
                HELP,
            ),
        ),
    ),
    closing="Exit codes: 0 written (whatever the verdict: harness compare judges), 2 the request "
    "is wrong, 4 a file could not be written.",
)
_NOT_WRITTEN: Final = 4


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    arguments = Parser("report", COMMAND, run=None).read(argv)
    trackers = parse_trackers(arguments.track, "--track")
    from harness.report.facts import load_facts
    from harness.report.write import FOLDER, step_summary_file, write_report

    goldens = find_goldens(arguments.golden, "report") if arguments.golden else None
    options = CompareOptions(
        allow_env_change=arguments.allow_env_change,
        limits=tuple(parse_limit(text) for text in arguments.limit),
    )
    if not arguments.run.is_dir():
        raise UserError("RUN", str(arguments.run), "is not a folder", "name the folder of a run")
    facts = load_facts(arguments.run, goldens, options)
    folder = arguments.to or arguments.run / FOLDER
    try:
        written = write_report(facts, folder, step_summary_file())
    except OSError as error:  # a full disk names no file
        where = error.filename or folder
        say(f"cannot write {where}: {error.strerror}", "report")
        return _NOT_WRITTEN
    for path in sorted(written.files):
        print(path)
    for note in written.notes:
        say(note, "report")
    hand_over(arguments.run, trackers, "report")
    return 0
