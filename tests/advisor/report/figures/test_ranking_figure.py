"""`--plot`: files are written, axes carry units, and everything drawn is labelled."""

from pathlib import Path

import pytest
from msgspec.structs import replace

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from advisor.answer.answer import Answer
from advisor.base.errors import UserError
from advisor.report.explain_page import COMPONENTS
from advisor.report.figures.plot import write_figure
from advisor.report.figures.ranking_figure import draw_components, ranking_figure


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_picture_is_written(layouts: Answer, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out.{suffix}"
    write_figure(layouts, path)
    assert path.stat().st_size > 10_000


def test_the_same_answer_gives_the_same_svg(tight: Answer, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        write_figure(tight, tmp_path / name, top=3)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    text = (tmp_path / "a.svg").read_text()
    assert "selective:mlp" in text
    assert "llama3_70b" in text
    assert "selective:core_attn" not in text


def test_scatter_has_units_ranks_and_the_budget(tight: Answer) -> None:
    axes, _ = ranking_figure(tight, None).axes
    assert "(GiB)" in axes.get_xlabel()
    assert "(s)" in axes.get_ylabel()
    assert sorted(text.get_text() for text in axes.texts) == ["1", "2", "3", "4", "5"]
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["Pareto front", "fits", "does not fit", "budget 77.0 GiB"]


def test_equal_points_share_a_label(tight: Answer) -> None:
    first = tight.candidates[0]
    axes, _ = ranking_figure(replace(tight, candidates=(first, replace(first, rank=2))), None).axes
    assert [text.get_text() for text in axes.texts] == ["1, 2"]


def test_bars_sum_to_the_reserved_peak(tight: Answer) -> None:
    axes = Figure().subplots()
    labels = [candidate.evaluation.setting.spec for candidate in tight.candidates]
    draw_components(axes, tight.candidates, labels, tight.candidates[0])
    widths = [[patch.get_width() for patch in bars] for bars in axes.containers]
    assert len(widths) == len(COMPONENTS)
    assert [sum(parts) for parts in zip(*widths, strict=True)] == [66.0, 69.0, 49.0, 85.0, 85.0]
    assert "(GiB)" in axes.get_xlabel()


def test_nothing_to_draw_is_a_user_error(tight: Answer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to draw"):
        write_figure(replace(tight, candidates=()), tmp_path / "out.png")
