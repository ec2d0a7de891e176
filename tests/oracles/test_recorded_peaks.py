"""Today's predictions against every peak that was rehearsed once (see peak_matrix.py).

The bar is the issue's: 0.5 % in the mean and 2 % at worst, model by model. What the documents say
of them is made of the same figures.
"""

import re
from pathlib import Path
from statistics import mean

import pytest

pytest.importorskip("megatron.core")

from advisor.frameworks.megatron.setting import parse_setting

from .peak_matrix import FOLDER, MATRIX, Row, predicted, read

MEAN, WORST = 0.005, 0.02
EXPLAINED = {("0.13.1", "deepseek_v3"): 0.11}
"""Releases whose multi-token prediction is not what is modelled (docs/rehearsal.md): not judged by
the bar, but by this."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "rehearsal.md"
TABLES = sorted(FOLDER.glob("megatron_core_*.csv"))
WHOLE = FOLDER / "megatron_core_0.16.1.csv"


def errors(rows: list[Row], release: str) -> dict[str, list[float]]:
    """Of the activation peak, relative to the rehearsed one, by model."""
    found: dict[str, list[float]] = {}
    for row, prediction in zip(rows, predicted(rows, release), strict=True):
        error = abs(prediction.activations / row.activations - 1)
        found.setdefault(row.case.model, []).append(error)
    return found


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.stem)
def test_predictions_reach_the_bar_and_the_document_says_so(table: Path) -> None:
    text, release = DOCUMENT.read_text(), table.stem.split("_")[-1]
    every = errors(read(table), release.rpartition(".")[0])
    for model, found in every.items():
        bar = EXPLAINED.get((release, model))
        assert mean(found) <= (bar or MEAN), model
        assert max(found) <= (bar or WORST), model
        if table == WHOLE:
            line = f"| {model} | {len(found)} | {shown(mean(found))} | {shown(max(found))} |"
            assert line in text, line
    worst = max(map(max, every.values()))
    count = sum(map(len, every.values()))
    line = rf"\| {release} \| .* \| {count} \| {re.escape(shown(worst))} \|"
    assert re.search(line, text), line


def shown(error: float) -> str:
    """As the document writes it: two digits, and nothing below a thousandth of a percent."""
    return f"{error * 100:.2f} %" if error >= 1e-4 else f"{error * 100:.3f} %"


def test_the_matrix_is_what_was_rehearsed_and_holds_what_was_asked_for() -> None:
    rows = read(WHOLE)
    asked = [
        (case, spec, stage)
        for case, settings, stages in MATRIX
        for spec in settings
        for stage in (range(case.pp) if stages is None else stages)
    ]
    assert [(row.case, row.recompute, row.stage) for row in rows] == asked
    assert {row.case.model for row in rows} == {
        *("llama3_8b", "llama3_70b", "llama3_405b", "gpt3_175b", "mixtral_8x7b", "qwen3_30b_a3b"),
        *("deepseek_v3", "qwen3_8b", "gpt_oss_20b"),
    }
    assert {row.case.pp for row in rows} == {1, 2, 4, 8, 16}
    assert {row.case.vpp for row in rows} > {1, 2, 3}
    settings = [parse_setting(row.recompute) for row in rows]
    assert {name for setting in settings for name in setting.effective_modules} == {
        *("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
    }
    assert {setting.method for setting in settings} == {None, "uniform", "block"}
