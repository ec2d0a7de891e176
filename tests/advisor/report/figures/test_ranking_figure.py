"""`--plot`: files are written, axes carry units, and everything drawn is labelled."""

from itertools import combinations
from pathlib import Path

import pytest
from msgspec.structs import replace

pytest.importorskip("matplotlib")

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from advisor.answer.answer import Answer
from advisor.api.answering import answer_to
from advisor.base.errors import UserError
from advisor.base.units import GIB
from advisor.report.explain_page import COMPONENTS
from advisor.report.figures.plot import write_figure
from advisor.report.figures.rows_figures import draw_memory, ranking_figure
from advisor.request.request import Request


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_picture_is_written(layouts: Answer, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out.{suffix}"
    write_figure(layouts, path)
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize("kind", ["ranking", "pareto"])
def test_the_same_answer_gives_the_same_svg(tight: Answer, tmp_path: Path, kind: str) -> None:
    for name in ("a.svg", "b.svg"):
        write_figure(tight, tmp_path / name, kind, top=3)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    text = (tmp_path / "a.svg").read_text()
    assert "selective:mlp" in text
    assert "llama3_70b" in text
    assert kind == "pareto" or "selective:core_attn" not in text


def test_scatter_has_units_names_and_the_budget(tight: Answer) -> None:
    figure = ranking_figure(tight, None)
    axes, _ = figure.axes
    assert "(GiB)" in axes.get_xlabel()
    assert "(s)" in axes.get_ylabel()
    (choice,) = [text.get_text() for text in axes.texts if text.get_fontweight() == "bold"]
    assert choice == "1 selective:mlp"
    assert len(axes.texts) == 5
    (legend,) = figure.legends
    words = [text.get_text() for text in legend.get_texts()]
    assert words == ["Pareto front", "fits", "does not fit", "budget 77.0 GiB", *COMPONENTS]


@pytest.mark.parametrize("name", ["tight", "roomy", "hopeless", "layouts", "crowded"])
def test_no_label_covers_a_label_a_mark_a_line_or_the_frame(name: str, request) -> None:
    figure = ranking_figure(request.getfixturevalue(name), None)
    FigureCanvasAgg(figure).draw()
    axes, _ = figure.axes
    boxes = [Text.get_window_extent(text) for text in axes.texts]
    assert boxes
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    frame = axes.get_window_extent()
    marks = [axes.transData.transform(marks.get_offsets()) for marks in axes.collections]
    lines = [line.get_transform().transform_path(line.get_path()) for line in axes.lines]
    for box in boxes:
        assert frame.count_contains(box.corners()) == 4
        assert not any(box.count_contains(points) for points in marks)
        assert not any(line.intersects_bbox(box, filled=False) for line in lines)


def test_it_says_how_many_rows_it_shows(crowded: Answer, tight: Answer) -> None:
    for answer, top, words in (
        (crowded, None, "24 of 60 rows"),
        (crowded, 5, "5 of 60 rows; --top 24 shows more"),
        (tight, None, "all 5 rows"),
    ):
        assert ranking_figure(answer, top).get_suptitle().splitlines()[1] == words


def test_equal_points_share_a_label(tight: Answer) -> None:
    first = tight.candidates[0]
    axes, _ = ranking_figure(replace(tight, candidates=(first, replace(first, rank=2))), None).axes
    assert [text.get_text() for text in axes.texts] == ["1 selective:mlp\n2 selective:mlp"]


def test_bars_sum_to_the_reserved_peak(tight: Answer) -> None:
    axes = Figure().subplots()
    labels = [candidate.evaluation.setting.spec for candidate in tight.candidates]
    draw_memory(
        axes, [one.evaluation.peak for one in tight.candidates], labels, [False] * len(labels)
    )
    widths = [[patch.get_width() for patch in bars] for bars in axes.containers]
    assert len(widths) == len(COMPONENTS)
    assert [sum(parts) for parts in zip(*widths, strict=True)] == [66.0, 69.0, 49.0, 85.0, 85.0]
    assert "(GiB)" in axes.get_xlabel()


def test_nothing_to_draw_is_a_user_error(tight: Answer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to draw"):
        write_figure(replace(tight, candidates=()), tmp_path / "out.png")


def test_a_cycle_has_a_bar_a_phase() -> None:
    """They sum to the peaks of the phases; the one that decides is bold."""
    options = ("rl.algorithm=grpo", "rl.engine=vllm", "rl.gpu_memory_utilization=0.5")
    request = Request(
        model="qwen3_0.6b", gpus="8xH100", framework="huggingface", overrides=options, quick=True
    )
    answer = answer_to(request)
    assert answer.leading is not None
    cycle = answer.leading.evaluation
    _, axes = ranking_figure(answer, None).axes
    assert [text.get_text() for text in axes.get_yticklabels()] == [p.name for p in cycle.phases]
    widths = zip(*([bar.get_width() for bar in bars] for bars in axes.containers), strict=True)
    assert [sum(parts) for parts in widths] == pytest.approx(
        [phase.peak_reserved_bytes / GIB for phase in cycle.phases]
    )
    (bold,) = [one for one in axes.get_yticklabels() if one.get_fontweight() == "bold"]
    assert cycle.phase is not None
    assert bold.get_text() == cycle.phase.name
