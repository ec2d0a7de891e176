"""Every page of `advise` in the width that COLUMNS says, in a pipe as in a terminal."""

from collections.abc import Iterator

import pytest

from advisor.cli import commands, main
from advisor.cli.help import SUBCOMMANDS
from advisor.report.blocks import command_lines

WIDTHS = (60, 80, 140)
JOB = "--model llama3_70b --gpus 32xH100"
QWEN = "--model qwen3_32b --gpus 64xH100 --framework"
LINES = (
    "--help",
    *(f"{name} --help" for name in SUBCOMMANDS),
    "models",
    "gpus",
    "recipes",
    "recipes llama3_70b",
    "recipes deepseek_v3",
    "rules",
    *(f"rules --framework {name}" for name in ("nemo", "torchtitan", "deepspeed", "huggingface")),
    "keys",
    "keys --framework huggingface",
    "lint --recompute-granularity selective --recompute-modules core_attn mlp",
    f"{JOB} --quick --against 0.13",
    f"{JOB} --explain --show-rejected --price-per-gpu-hour 2",
    f"{JOB} --quick --precision fp8_current --front",
    "--model deepseek_v3 --gpus 1024xH100 --quick --explain 1 --top 40",
    "--model mixtral_8x7b --gpus 64xH100 --explain 3",
    f"{QWEN} torchtitan --quick --explain",
    f"{QWEN} fsdp2 --quick --top 30",
    f"{QWEN} deepspeed",
    f"{QWEN} huggingface --show-rejected",
    "--model llama3_70b --gpus 8xA100-40GB",
    "--model llama3_8b --gpus 8xH100 --search layout",
    "--model llama3_70b --gpus 64xH100 --search layout --top 20",
    "--model llama3_8b --gpus 8xH100 --search optimum --framework torchtitan",
    "--model llama3_8b --gpus 1xH100 --explain",
    "models Qwen/Qwen3-30B-A3B",
    "--from tests/advisor/lint/configurations/jobs/axolotl.yaml --gpus 8xH100 --quick",
    "--from tests/advisor/lint/configurations/jobs/deepspeed_auto.sh --gpus 8xH100",
    "lint tests/advisor/lint/configurations/faulty/megatron_one_branch_wrong.sh",
    "diagnose tests/docs/files/train.log",
)


@pytest.fixture(scope="module")
def answered() -> Iterator[None]:
    """Each answer is worked out once, and drawn in every width."""
    answers: dict[str, object] = {}
    answer_to = commands.answer_to

    def known(request, **more):
        key = repr((request, more["explain"]))
        if key not in answers:
            answers[key] = answer_to(request, **more)
        return answers[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "answer_to", known)
        yield


@pytest.mark.parametrize("line", LINES)
def test_no_line_is_wider_than_the_page(answered: None, line: str, capsys, monkeypatch) -> None:
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        assert main.main(line.split()) in (0, 1)
        shown = capsys.readouterr().out.splitlines()
        assert [text for text in shown if len(text) > width and not is_one_word(text)] == []


def is_one_word(line: str) -> bool:
    """Whether it is a flag with its value, or one word of what is to be copied, which stays
    whole."""
    words = line.strip().removesuffix("\\").strip()
    return len(command_lines(words, 1)) == 1 and (" " not in words or words.startswith("-"))
