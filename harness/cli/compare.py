"""`harness compare`: judge results against goldens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from advisor.base.errors import UserError
from advisor.base.key_value import split_key_value
from advisor.report.command_help import CommandHelp, Flag, Topic, explained, flags
from harness.api.comparing import compare
from harness.cli.flags import HELP, Parser
from harness.execution.progress import say
from harness.judge.golden import FOLDER, Golden, load_goldens
from harness.judge.render import render

LIMIT: Final = Flag(
    "--limit METRIC=LIMIT",
    "relative limit of a metric, e.g. tflops_per_gpu=3%, repeatable",
    repeated=True,
)
ALLOW_ENV_CHANGE: Final = Flag(
    "--allow-env-change", "compare across environments; the differences are printed first"
)
COMMAND: Final = CommandHelp(
    usage="harness compare [flags] RESULTS...",
    about="Compares results (folders of runs, or result.json files) with the goldens of the same "
    "workloads, and prints the worst first.",
    examples=(
        "harness compare runs/NAME",
        "harness compare runs/NAME --golden results/golden --limit step_time_seconds=3%",
    ),
    topics=(
        Topic(
            "What is compared",
            text="A result belongs to the golden of its workload (model, layout, batch, precision, "
            "recompute); GPUs, torch, CUDA, driver, NCCL, Transformer Engine, allocator settings "
            "and power limit must be the same. On a CPU, only memory and loss are judged; "
            "times are shown.",
        ),
        Topic(
            "Flags",
            (
                Flag(
                    "--golden PATH",
                    f"golden file or folder, repeatable (default {FOLDER})",
                    repeated=True,
                ),
                LIMIT,
                ALLOW_ENV_CHANGE,
                *flags("""
                --allow-unmatched  a trial without a golden, or a golden without a trial, is only
                    listed
                --exact-loss       losses must be equal bit by bit
                --strict           a stale golden fails (exit 1)
                """),
                HELP,
            ),
        ),
        Topic(
            "Verdicts",
            explained("""
            FAIL      regression: worse at 99 % confidence; the change is at least two thirds of the
                limit, and its 95 % interval reaches the limit
            ERROR     a run failed (oom, timeout, nccl_error, nan, no_data, failed)
            UNSTABLE  the measurement cannot be trusted, or its log was cut short
            OPEN      inconclusive: more repeats are needed
            REFUSED   the environment differs
            GONE      only in the goldens
            NEW       only in the results
            STALE     better than the golden by more than the limit
            PASS      the interval of the change is inside the limit
            INFO      a CPU time: shown, not judged
        """),
        ),
        Topic(
            "Exit codes",
            explained("""
            0  pass
            1  regression (--strict: or a stale golden)
            2  the request is wrong
            3  no verdict: unstable, inconclusive, no golden, missing trials, or another environment
            4  a run failed (and no regression was found)
        """),
        ),
    ),
)


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    arguments = Parser("compare", COMMAND, results="+").read(argv)
    comparison = compare(
        arguments.results,
        golden=existing(arguments.golden or [FOLDER], "compare"),
        limits=dict(parse_limit(text) for text in arguments.limit),
        allow_env_change=arguments.allow_env_change,
        allow_unmatched=arguments.allow_unmatched,
        exact_loss=arguments.exact_loss,
        strict=arguments.strict,
    )
    print(render(comparison), end="")
    return comparison.exit_code


def find_goldens(paths: Sequence[Path], command: str) -> list[Golden]:
    """Goldens of files and folders; a folder that is not there yet holds none, and that is said."""
    return list(load_goldens(existing(paths, command)).values())


def existing(paths: Sequence[Path], command: str) -> list[Path]:
    """Those of `paths` that are there or must be; of the others a line is printed."""
    there = []
    for path in paths:
        if path.exists() or path.suffix == ".json":
            there.append(path)
        else:
            say(f"{path} does not exist, so there is no golden", command)
    return there


def parse_limit(text: str) -> tuple[str, float]:
    """``step_time_seconds=3%`` or ``=0.03`` as a metric and a relative limit."""
    name, amount = split_key_value(text, "--limit")
    scale = 0.01 if amount.endswith("%") else 1.0
    try:
        return name, float(amount.removesuffix("%")) * scale
    except ValueError:
        hint = "write e.g. step_time_seconds=3%"
        raise UserError("--limit", text, "is not METRIC=LIMIT", hint) from None
