"""`--plot-kind pareto`: what is drawn, and that no label covers another."""

from itertools import combinations

import pytest

pytest.importorskip("matplotlib")

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from advisor.answer.answer import Answer
from advisor.report.figures.rows_figures import pareto_figure, spread


def drawn(answer: Answer) -> Figure:
    figure = pareto_figure(answer)
    FigureCanvasAgg(figure).draw()
    return figure


@pytest.mark.parametrize("name", ["tight", "roomy", "hopeless", "layouts", "crowded"])
def test_no_label_covers_another_and_all_are_in_the_picture(name: str, request) -> None:
    figure = drawn(request.getfixturevalue(name))
    (axes,) = figure.axes
    labels = [text for text in axes.texts if not text.get_text().isdigit()]
    boxes = [Text.get_window_extent(label) for label in labels]  # without its line
    boxes += [axes.get_window_extent(), figure.legends[0].get_window_extent()]
    assert len(boxes) > 3
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    whole = figure.bbox
    assert all(whole.x0 <= box.x0 and box.x1 <= whole.x1 for box in boxes)
    assert all(whole.y0 <= box.y0 and box.y1 <= whole.y1 for box in boxes)


def test_the_front_the_budget_and_the_choice(crowded: Answer) -> None:
    figure = drawn(crowded)
    (axes,) = figure.axes
    front, budget = axes.lines
    assert front.get_drawstyle() == "steps-post"
    assert len(front.get_xdata()) == sum(row.pareto for row in crowded.candidates)
    assert set(budget.get_xdata()) == {77.0}
    legend = [text.get_text().partition(" (")[0] for text in figure.legends[0].get_texts()]
    points = ["dominated", "front", "on the front, fits", "on the front, does not fit", "chosen"]
    assert legend == [*points, "budget 77.0 GiB"]
    label, at_point = [text.get_text() for text in axes.texts if text.get_fontweight() == "bold"]
    assert at_point == "1"
    assert label.startswith("1  full:block:11")
    ends = [text.xy[0] for text in axes.texts if isinstance(text, Annotation) and text.arrow_patch]
    assert set(ends) == {1}, "lines to labels begin at the axes' edge, next to the front"
    assert any("VPP 10" in text.get_text() for text in axes.texts)


def test_labels_are_spread_no_more_than_they_must_be() -> None:
    assert spread([9.0, 5.0, 1.0], [1.0] * 3, 10.0) == [9.0, 5.0, 1.0]
    assert spread([9.9, 9.8, 1.0], [1.0] * 3, 10.0) == [9.5, 8.5, 1.0]
    assert spread([0.2, 0.1], [1.0, 2.0], 10.0) == [2.5, 1.0]
    assert spread([5.0, 5.0], [1.0] * 2, 2.0) == [1.5, 0.5]
