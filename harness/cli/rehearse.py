"""`harness rehearse`: one rank of each pipeline stage of a large job, alone on one device."""

from collections.abc import Sequence
from typing import Final

from advisor.report.command_help import Command, Topic
from harness.api.running import plan_rehearsal
from harness.cli.flags import CONFIG_DIR, HELP
from harness.cli.run import DRY_RUN, RETRY, execute, parse
from harness.execution.progress import say
from harness.execution.runner import exit_code
from harness.rehearsal.comparison_page import dry_page, page
from harness.trial.result import TrialResult

COMMAND: Final = Command(
    usage="harness rehearse model=NAME gpus=COUNTxTYPE [flags] [KEY=VALUE]...",
    about="Runs one rank of each pipeline stage of a job of many GPUs alone: Megatron Core's own "
    "model, schedule and optimizer shards in a process group that sends nothing. Prints what the "
    "advisor predicts beside it.",
    examples=(
        "harness rehearse model=llama3_70b gpus=32xH100",
        "harness rehearse model=llama3_70b gpus=32xH100 layout=tp4_pp4_vpp5 stage=0 "
        "'recompute=[none,selective:mlp]'",
        "harness rehearse model=gpt3_175b gpus=64xA100 layout=tp8_pp8_vpp3_sp "
        "recompute=full_uniform_1",
        "harness rehearse model=llama3_8b gpus=8xH200 layout=tp2 device=cuda job.seq_length=8192",
    ),
    topics=(
        Topic(
            "What is rehearsed",
            (
                (
                    "model=NAME gpus=COUNTxTYPE",
                    "as for `advise`; the job preset fills in what is not given",
                ),
                ("layout=tp4_pp4_vpp5_cp2_sp", "degrees; DP is what the GPUs leave"),
                ("layout.* model.* job.*", "any field, in Megatron's names"),
                (
                    "recompute=SETTING",
                    "or [SETTING,…], or a name from configs/recompute; default none",
                ),
                ("stage=all", "or a pipeline stage's number"),
            ),
        ),
        Topic(
            "On what",
            (
                (
                    "device=fake",
                    "fake tensors: no device, no values, every byte counted (default)",
                ),
                ("device=cuda", "one GPU, capped to the memory of the one rehearsed"),
                ("device=cpu", "small models"),
                ("steps=3", "timed steps on a real device"),
            ),
        ),
        Topic(
            "Where results go",
            (
                (
                    "name=NAME runs=FOLDER",
                    "results go to runs/NAME; the same command goes on where it stopped",
                ),
            ),
        ),
        Topic("Flags", (DRY_RUN, RETRY, CONFIG_DIR, HELP)),
    ),
    closing="What it cannot contain: communication, pipeline bubbles, NCCL's memory; see "
    "docs/rehearsal.md.\n\nExit codes: 0 all was rehearsed, 2 the request is wrong (one line says "
    "why), 4 a rehearsal failed or nothing was rehearsed, 130 interrupted (143 by SIGTERM): what "
    "is finished is kept.",
)


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
