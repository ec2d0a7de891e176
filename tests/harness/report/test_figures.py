"""Pictures are of the numbers, legible, and the same for the same run."""

from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from advisor.base.units import unit_of
from advisor.report.figures.kit import INK, NARROW, REPLAY, WIDE, embedded
from harness.report.evidence import find_calibration
from harness.report.facts import Facts
from harness.report.figures import PlottedSetting, bars, best_of, points, step_timelines
from harness.report.predicted_figure import panels
from harness.trial.result import Phase, TrialStatus

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex

from harness.report import figures
from harness.report.figures import _drawings, draw_all

NAMES = ["memory_and_time", "memory_and_throughput", "predicted_and_measured"]
NAMES += ["memory_by_component", "timeline"]


def point(number: int, memory: int, seconds: float) -> PlottedSetting:
    return PlottedSetting(number, f"s{number}", memory, seconds, 1 / seconds)


def painted(facts: Facts, name: str, width: float = WIDE) -> Any:
    """The figure, painted and laid out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heights, paint = next((h, p) for n, _, h, p in _drawings(facts) if n == name)
    height = heights.wide if width == WIDE else heights.narrow
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    paint(figure)
    figure.canvas.draw()
    return figure


def test_a_run_on_a_gpu_has_all_five(gpu_facts: Facts, tmp_path: Path, monkeypatch) -> None:
    pictures = draw_all(gpu_facts, tmp_path / "figures")
    assert [picture.name for picture in pictures] == NAMES
    for picture in pictures:
        for suffix in ("svg", "png"):
            assert (tmp_path / "figures" / f"{picture.name}.{suffix}").stat().st_size > 5_000
        for svg in (picture.svg, picture.narrow_svg):
            ElementTree.fromstring(svg)
            assert "http" not in svg.replace("http://www.w3.org/", "")
            assert INK not in svg
            assert "currentColor" in svg
    monkeypatch.setattr(figures, "_drawings", lambda facts: [*_drawings(facts)][-2:])
    again = draw_all(gpu_facts, tmp_path / "again")
    assert [picture.svg for picture in again] == [picture.svg for picture in pictures[-2:]]


def test_on_a_cpu_no_component_is_predicted(cpu_facts: Facts) -> None:
    drawn = {name: caption for name, caption, _, _ in _drawings(cpu_facts)}
    assert list(drawn) == [name for name in NAMES if name != "memory_by_component"]
    assert all("CPU times" in caption for caption in drawn.values())


def test_a_run_that_measured_nothing_has_the_prediction_alone(gpu_facts: Facts) -> None:
    failed = {
        n: replace(r, times=None, memory=(), timeline=()) for n, r in gpu_facts.results.items()
    }
    facts = replace(gpu_facts, results=failed)
    assert [name for name, *_ in _drawings(facts)] == ["memory_by_component"]


def test_the_front_is_by_memory() -> None:
    one, two, three = point(1, 10, 1.0), point(2, 5, 2.0), point(3, 10, 2.0)
    pruned = replace(point(4, 1, 3.0), pruned=True)
    assert best_of([one, two, three, pruned]) == [two, one]


def test_a_pruned_setting_is_marked_as_such_and_may_be_all_there_is(gpu_facts: Facts) -> None:
    times = [replace(one, status=TrialStatus.PRUNED) for one in gpu_facts.results.values()]
    facts = replace(gpu_facts, results=dict(zip(gpu_facts.results, times, strict=True)))
    (axes,) = painted(facts, "memory_and_time").axes
    drawn = {one.get_label(): len(one.get_offsets()) for one in axes.collections}
    assert drawn == {"pruned": 3}


def test_points_are_numbered_by_rank_as_in_tables(gpu_facts: Facts) -> None:
    """4 to 7 have no times; 3 is unstable, and measured. A sweep runs them in another order."""
    assert [one.number for one in points(gpu_facts)] == [1, 2, 3]
    ranks = (4, None, 2, *(None for _ in gpu_facts.plan.settings[3:]))
    settings = zip(gpu_facts.plan.settings, ranks, strict=True)
    swept = tuple(replace(one, rank=rank) for one, rank in settings)
    found = points(replace(gpu_facts, plan=replace(gpu_facts.plan, settings=swept)))
    assert [one.number for one in found] == [4, 5, 2]


def test_a_time_that_is_not_to_be_trusted_is_ringed(gpu_facts: Facts) -> None:
    assert [one.number for one in points(gpu_facts) if not one.stable] == [3]
    (axes,) = painted(gpu_facts, "memory_and_time").axes
    (ring,) = [drawn for drawn in axes.collections if drawn.get_label() == "unstable"]
    assert [y for _, y in ring.get_offsets()] == [points(gpu_facts)[2].seconds * 1e3]


def test_panels_have_the_band_of_whom_they_name(gpu_facts: Facts) -> None:
    kept, peak, time = panels(gpu_facts)
    assert (kept.unit, peak.unit, time.unit) == ("GiB", "GiB", "ms")
    fitted = find_calibration("h100")
    assert (kept.band, peak.band, time.band) == (0.02, 0.02, fitted.step_time_error)
    (pairs,) = time.groups.values()
    assert len(pairs) == 3
    measured, predicted = pairs[0]
    assert measured / predicted == pytest.approx(1.05)  # invented so


def test_what_was_measured_is_drawn_over_what_was_predicted(gpu_facts: Facts) -> None:
    """Of every setting: components end at the predicted peak, marks lie at the measured ones."""
    shown = bars(gpu_facts)
    known = [one for one in gpu_facts.plan.settings if one.trial.prediction is not None]
    assert [bar.name for bar in shown] == [one.spec for one in known]
    (axes,) = painted(gpu_facts, "memory_by_component").axes
    drawn = [axes.patches[part * len(shown)] for part in range(6)]  # of the first setting
    for before, after in pairwise(drawn):
        assert before.get_x() + before.get_width() == pytest.approx(after.get_x())
    end = drawn[-1].get_x() + drawn[-1].get_width()
    assert end == pytest.approx(shown[0].components.total / 2**30)
    prediction = known[0].trial.prediction
    assert shown[0].components.total == prediction.peak_reserved_bytes
    marks = {str(one.get_label()): one for one in axes.collections}
    measured = shown[0].measured.peak_allocated_bytes
    (first, *_) = marks["measured: allocated"].get_offsets()
    assert tuple(first) == pytest.approx((measured / 2**30, 0))
    assert set(marks) >= {"measured: reserved", "measured: used (NVML)"}
    over = min(one.get_zorder() for one in axes.collections)
    assert over > max(one.get_zorder() for one in axes.patches)


def test_names_stand_next_to_their_points(gpu_facts: Facts) -> None:
    figure = painted(gpu_facts, "memory_and_time")
    labels = figure.axes[0].texts
    assert [text.get_text() for text in labels] == [one.name for one in points(gpu_facts)]
    boxes = [text.get_window_extent() for text in labels]
    assert not any(one.overlaps(two) for one, two in combinations(boxes, 2))


def test_timelines_show_their_phases(gpu_facts: Facts, cpu_facts: Facts) -> None:
    assert [one.name for one in step_timelines(gpu_facts)] == [
        s.spec for s in gpu_facts.plan.settings[:3]
    ]
    figure = painted(cpu_facts, "timeline")
    assert len(figure.axes) == 3
    assert "CPU time" in figure.axes[-1].get_xlabel()
    (legend,) = figure.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == ["forward", "backward", "optimizer", "measured"]
    spans = [patch.get_extents() for patch in figure.axes[0].patches]
    assert len(spans) == 3
    for before, after in pairwise(spans):
        assert before.x1 == pytest.approx(after.x0, abs=1.0)  # a pixel


def test_a_replay_has_its_own_colour_in_a_step(cpu_facts: Facts) -> None:
    name, first = next(iter(cpu_facts.results.items()))
    phases = [Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD, Phase.REPLAY, Phase.REPLAY]
    line = tuple(replace(p, phase=q) for p, q in zip(first.timeline, phases, strict=False))
    results = cpu_facts.results | {name: replace(first, timeline=line)}
    figure = painted(replace(cpu_facts, results=results), "timeline")
    (legend,) = figure.legends
    assert REPLAY.name in [text.get_text() for text in legend.get_texts()]
    colours = {to_hex(patch.get_facecolor()).upper() for patch in figure.axes[0].patches}
    assert REPLAY.colour in colours


def words_of(figure: Any) -> list[Any]:
    """Boxes of all titles, labels, ticks and legends, in pixels."""
    texts = [text for legend in figure.legends for text in legend.get_texts()]
    for axes in figure.axes:
        texts += [axes._left_title, axes.xaxis.label, axes.yaxis.label]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            texts += [
                tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high
            ]
    renderer = figure.canvas.get_renderer()
    return [t.get_window_extent(renderer) for t in texts if t.get_visible() and t.get_text()]


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("name", NAMES)
def test_no_text_is_clipped_or_lies_on_another(gpu_facts: Facts, name: str, width: float) -> None:
    figure = painted(gpu_facts, name, width)
    boxes = words_of(figure)
    assert len(boxes) > 8
    assert min(box.x0 for box in boxes) >= -1
    assert min(box.y0 for box in boxes) >= -1
    assert max(box.x1 for box in boxes) <= figure.bbox.x1 + 1
    assert max(box.y1 for box in boxes) <= figure.bbox.y1 + 1
    for number, box in enumerate(boxes):
        inner = box.padded(-2)  # pixels: a box has room for descenders that no letter may need
        assert not any(inner.overlaps(other) for other in boxes[number + 1 :])


def test_units() -> None:
    assert unit_of([2**28]) == (2**20, "MiB")
    assert unit_of([1, 2**29]) == (2**30, "GiB")
    assert unit_of([]) == (2**20, "MiB")


def test_a_picture_in_a_page_has_ids_of_its_own() -> None:
    svg = (
        '<?xml version="1.0"?>\n<svg width="460pt" height="280pt" viewBox="0 0 460 280">'
        f'<path id="a" fill="{INK}"/><use href="#a" clip-path="url(#b)"/></svg>\n'
    )
    assert embedded(svg, "x") == (
        '<svg viewBox="0 0 460 280"><path id="x-a" fill="currentColor"/>'
        '<use href="#x-a" clip-path="url(#x-b)"/></svg>'
    )
