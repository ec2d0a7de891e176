"""`harness rehearse`: one rank of each pipeline stage of a large job, alone on one device."""

from collections.abc import Sequence
from typing import Final

from advisor.report.command_help import CommandHelp, Topic, explained
from harness.api.running import plan_rehearsal
from harness.cli.flags import CONFIG_DIR, HELP
from harness.cli.run import DRY_RUN, RETRY, execute, parse
from harness.execution.progress import say
from harness.execution.runner import exit_code
from harness.rehearsal.comparison_page import dry_page, page
from harness.trial.result import TrialResult

COMMAND: Final = CommandHelp(
    usage="harness rehearse model=NAME gpus=COUNTxTYPE [flags] [KEY=VALUE]...",
    about="Runs one rank of each pipeline stage of a large job on one device: Megatron Core's own "
    "model, schedule and optimizer shards, without communication. Prints predicted and rehearsed "
    "memory.",
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
            explained("""
            model=NAME gpus=COUNTxTYPE
                as for `advise`; values that are not given come from the job preset
            layout=tp4_pp4_vpp5_cp2_sp  degrees; DP follows from the number of GPUs
            layout.* model.* job.*    any field, in Megatron's names
            recompute=SETTING         one setting, [SETTING,…] or a name from configs/recompute;
                default: none
            stage=all                 all, or the number of a pipeline stage
        """),
        ),
        Topic(
            "Where it runs",
            explained("""
            device=fake  fake tensors (default): no device, no values, every byte counted
            device=cuda  one GPU, limited to the memory of the job's GPU
            device=cpu   the CPU, for small models
            steps=3      timed steps on a real device
        """),
        ),
        Topic(
            "Where results go",
            explained("""
            name=NAME runs=FOLDER  the folder FOLDER/NAME; the same command continues a stopped run
        """),
        ),
        Topic("Flags", (DRY_RUN, RETRY, CONFIG_DIR, HELP)),
    ),
    closing="A rehearsal has no communication, no pipeline bubbles and no memory of NCCL "
    "(docs/rehearsal.md).\n\nExit codes: 0 all was rehearsed, 2 the request is wrong (one line "
    "says why), 4 a rehearsal failed or nothing was rehearsed, 130 interrupted (143 by SIGTERM): "
    "what is finished is kept.",
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
