"""Pictures of one row, of real evaluations: they are written, and say what the row holds."""

from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from advisor.answer.answer import Answer
from advisor.plan.recompute_plan import recomputes
from advisor.report.figures.memory_figures import waterfall_figure
from advisor.report.figures.plot import OF_ONE_ROW, row_of, write_figure
from advisor.report.figures.rows_figures import time_figure
from advisor.report.figures.timeline_figure import MOST_PASSES, windows
from advisor.request.request import Request
from advisor.search.advise import advise
from advisor.step.predicted_step import training_step
from advisor.step.timeline import timeline


@pytest.fixture(scope="module")
def llama() -> Answer:
    specs = ("none", "selective:mlp", "full:block:2")
    return advise(Request(model="llama3_70b", gpus="32xH100", recompute=specs, quick=True))


@pytest.mark.parametrize("kind", [*OF_ONE_ROW, "time"])
def test_a_picture_says_its_row(llama: Answer, tmp_path: Path, kind: str) -> None:
    for row in llama.candidates:
        write_figure(llama, tmp_path / "out.svg", kind, row=row.rank)
        assert row.evaluation.setting.spec in (tmp_path / "out.svg").read_text()


def test_the_time_of_the_rows_says_how_many_they_are_and_what_the_thin_line_is(llama) -> None:
    figure = time_figure(llama, 2)
    assert figure.get_suptitle().endswith("2 of 3 rows; --top 3 shows more")
    (legend,) = figure.legends
    assert legend.get_texts()[-1].get_text() == "band of the step time (±9 %)"


def test_a_change_too_small_for_a_bar_is_a_line(llama: Answer) -> None:
    row = next(row for row in llama.candidates if recomputes(row.evaluation.setting))
    (axes,) = waterfall_figure(llama, row).axes
    signed = [text.get_text() for text in axes.texts if text.get_text()[0] in "+-"]
    thin = [words for words in signed if abs(float(words)) < 0.01 * 79.1]
    assert thin
    assert len(axes.collections) == len(thin)


def test_the_choice_is_drawn_where_no_row_is_named(llama: Answer) -> None:
    assert row_of(llama, None).evaluation.fits
    assert row_of(llama, 3).rank == 3


def test_a_long_step_is_shown_in_parts_without_its_middle(llama: Answer) -> None:
    step = training_step(llama.candidates[0].evaluation)
    passes = timeline(step).stages[0]
    found = windows(passes, passes[60], step.seconds - step.tail.optimizer, step.seconds)
    each = sum(one.end - one.start for one in passes) / len(passes)
    assert len(found) > 2
    assert found[0].start == 0
    assert found[-1].end <= step.seconds
    assert any(window.clipped(passes[60].start, passes[60].end) for window in found)
    assert sum(window.length for window in found) < 1.3 * MOST_PASSES * each
    assert all(one.end < other.start for one, other in pairwise(found))
