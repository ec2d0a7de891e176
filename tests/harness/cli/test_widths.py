"""Help and tables of `harness` in the width that COLUMNS says."""

import pytest

from harness.cli import main
from harness.cli.golden import SUBCOMMANDS
from tests.advisor.cli.test_widths import WIDTHS, is_one_word

GOLDEN = "results/golden/llama3_70b_sft_32xh100_fp8_current.json"
LINES = (
    "--help",
    *(f"{name} --help" for name in main.MODULES),
    *(f"golden {name} --help" for name in SUBCOMMANDS),
    "run --dry-run experiment=llama3_8b_1xh200 device=cuda",
    "sweep --dry-run sweep=llama3_8b_1xh200",
    "rehearse --dry-run model=llama3_70b gpus=32xH100",
    "ingest --dry-run tests/harness/logs/recorded/deepspeed.log",
    "golden list results/golden",
    f"golden show {GOLDEN}",
    "accuracy results/measured/h200 --out {out}",
)


@pytest.mark.parametrize("line", LINES)
def test_no_line_is_wider_than_the_page(line: str, capsys, monkeypatch, tmp_path) -> None:
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        assert main.main(line.format(out=tmp_path).split()) == 0
        shown = capsys.readouterr().out.splitlines()
        assert [text for text in shown if len(text) > width and not is_one_word(text)] == []
