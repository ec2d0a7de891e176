from pathlib import Path

from advisor.lint.target import lint_target
from advisor.report.lint_page import lint_page
from advisor.report.text import plain_lines

SELECTIVE = "--recompute-granularity selective --recompute-modules"


def page(flags: str) -> list[str]:
    return plain_lines(lint_page(lint_target(flags)))


def test_errors_come_first_and_a_block_has_level_rule_reason_fix_and_source() -> None:
    lines = page("--recompute-activations --recompute-modules core_attn bogus")
    assert lines[0] == "command line: selective recompute of core_attn, bogus, megatron-core 0.19"
    levels = [line.split()[0] for line in lines[1:] if not line.startswith(" ")]
    assert levels == ["ERROR", "WARNING", "NOTE"]
    assert lines[1].split(maxsplit=2) == ["ERROR", "recompute_modules", "command line:1:55"]
    assert lines[2].strip() == "recompute_modules bogus: not accepted by megatron-core 0.19"
    fix = " ".join(" ".join(lines[3:6]).split())
    assert fix.startswith("fix drop bogus, or use core_attn")
    assert "[megatron-core 0.19.2 transformer_config.py:1778]" in fix


def test_no_line_is_longer_than_a_page() -> None:
    lines = page(f"{SELECTIVE} core_attn layernorm --cuda-graph-impl local --fp8-format e4m3")
    assert len(lines) > 10
    assert max(map(len, lines)) <= 100


def test_a_place_stays_in_one_piece(tmp_path: Path) -> None:
    script = tmp_path / "-".join(["a_long_name"] * 8) / "train.sh"
    script.parent.mkdir()
    script.write_text(f"torchrun pretrain_gpt.py {SELECTIVE} bogus\npython -m x $(\n")
    report = lint_target(str(script))
    lines = plain_lines(lint_page(report), 80)
    assert lines[0] == f"{script}:"
    assert [line.strip() for line in lines if line.startswith(f"         {script}")] == [
        str(finding.place) for finding in report.findings
    ]
    assert [line for line in lines if line.startswith("NOT READ")] == [
        f"NOT READ  {note.place}:" for note in report.notes
    ]
    assert max(len(line) for line in lines if str(script) not in line) <= 80


def test_nothing_to_report_is_said() -> None:
    assert page(f"{SELECTIVE} mlp")[1] == "OK       nothing to report"
