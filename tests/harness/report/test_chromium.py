"""The page in a real browser: whole, readable on a phone, light and dark, and silent."""

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

sys.path.insert(0, str(Path(__file__).parent))
from chromium import Chromium, find_chromium

from harness.report.document import html
from harness.report.facts import load_facts
from harness.report.figures import draw_all
from harness.report.sections import make_document

DESKTOP, PHONE = 1280, 390
DARK = "--blink-settings=preferredColorScheme=0"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Chromium:
    return find_chromium(tmp_path_factory.mktemp("chromium"))


@pytest.fixture(scope="module")
def page(gpu_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    facts = load_facts(gpu_run, [])
    file = folder / "report.html"
    file.write_text(html(make_document(facts, draw_all(facts, folder))), encoding="utf-8")
    return file


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_it_is_whole_and_does_not_scroll_sideways(chromium, page, width) -> None:
    seen = chromium.ask(page, width)
    assert seen["width"] == width
    assert seen["scroll"] <= width
    assert seen["wide"] == []
    assert seen["loaded"] == [], "nothing is fetched, from nowhere"
    assert seen["headings"][0] == "llama3_8b_1xh200 on H200-SXM-141GB"
    assert {"Verdict", "Settings", "Predicted and measured", "Memory", "FLOPs", "Trust"} <= set(
        seen["headings"]
    )
    assert len(seen["images"]) == 5
    # the page except its margins and a scroll bar, at most 68 rem of 16 pixels: nothing is cut
    most = min(1088, width) - 32
    assert all(most - 16 <= wide <= most and high > wide / 5 for wide, high in seen["images"])
    assert seen["font"] >= 13


def test_dark_is_dark(chromium: Chromium, page: Path) -> None:
    def lightness(colour: str) -> float:
        return sum(map(int, re.findall(r"\d+", colour)[:3])) / 765

    light, dark = chromium.ask(page, DESKTOP), chromium.ask(page, DESKTOP, DARK)
    assert (light["dark"], dark["dark"]) == (False, True)
    assert lightness(light["ground"]) > 0.9 > 0.2 > lightness(light["ink"])
    assert lightness(dark["ground"]) < 0.2 < 0.8 < lightness(dark["ink"])


def test_it_can_be_printed_to_a_picture(chromium: Chromium, page: Path, tmp_path: Path) -> None:
    """The page itself, its content security policy in force, shows more than an empty ground."""
    chromium.screenshot(page, tmp_path / "page.png", DESKTOP, 2000)
    assert (tmp_path / "page.png").stat().st_size > 50_000


def test_a_page_that_is_wrong_would_be_seen(chromium: Chromium, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<html><body><main><h1>x</h1><p style="width:900px;font-size:9px">wide</p>'
        '<img src="http://nowhere.invalid/picture.png"></main></body></html>',
        encoding="utf-8",
    )
    seen = chromium.ask(bad, PHONE)
    assert seen["scroll"] > PHONE
    assert seen["loaded"] == ["http://nowhere.invalid/picture.png"]
    assert seen["font"] == 9
    assert seen["images"] == []
