"""The documentation builds as a site without a warning, and its links lead somewhere."""

import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import advisor
import harness
from tests.browsers import FLAGS, NAMES, installed
from tests.docs.blocks import PAGES, ROOT

application = pytest.importorskip("sphinx.application")

pytestmark = pytest.mark.filterwarnings(
    "ignore::PendingDeprecationWarning", "ignore::DeprecationWarning"
)
AXE = ROOT / "tests/advisor/explorer/axe-core/axe.min.js"
LINK = re.compile(r"\]\(([^)\s]+)\)")
INDEX = (ROOT / "docs/index.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it; an unknown page or anchor is a warning."""
    folder, warnings = tmp_path_factory.mktemp("site"), StringIO()
    build = application.Sphinx(
        srcdir=ROOT / "docs",
        confdir=ROOT / "docs",
        outdir=folder,
        doctreedir=folder / ".doctrees",
        buildername="html",
        status=None,
        warning=warnings,
    )
    build.build(force_all=True)
    assert not warnings.getvalue()
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    made = {path.stem for path in site.glob("*.html")}
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= made


def test_the_index_says_in_a_line_what_each_page_answers() -> None:
    lines = re.findall(r"^- \[.+\]\((\w+)\.md\): .+\?$", INDEX, re.MULTILINE)
    assert sorted(lines) == sorted({page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"})


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"""<(?:script|img|link)[^>]*(?:src|href)=["'](?:https?:)?//""")
    for page in site.glob("*.html"):
        assert not loaded.search(page.read_text(encoding="utf-8")), page.name


def test_drawings_are_part_of_the_page(site: Path) -> None:
    for page, title in (("recompute", "layer of Llama 3 70B"), ("choose", "fastest that fits")):
        text = (site / f"{page}.html").read_text(encoding="utf-8")
        assert re.search(rf'<svg[^>]*aria-label="[^"]*{title}', text)


def test_the_api_page_has_every_public_name() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    headings = {name for line in re.findall(r"(?m)^###? (.+)$", text) for name in line.split(", ")}
    for package in (advisor, harness):
        assert set(package.__all__) - {"__version__"} <= headings


@pytest.fixture(scope="module")
def phone() -> Iterator[Any]:
    """A browser as wide as a phone."""
    webdriver = pytest.importorskip("selenium.webdriver")
    browser, program = installed(NAMES, "Chromium"), installed(("chromedriver",), "chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in FLAGS:
        options.add_argument(flag)
    size = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    with webdriver.Chrome(options, webdriver.ChromeService(program)) as driver:
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        yield driver


def test_what_scrolls_on_a_phone_is_reached_by_keyboard(site: Path, phone: Any) -> None:
    rules = ["scrollable-region-focusable", "aria-allowed-role", "region", "label"]
    for page, scheme in (("options", "light"), ("accuracy", "dark")):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        phone.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        phone.get((site / f"{page}.html").as_uri())
        phone.execute_script(AXE.read_text(encoding="utf-8"))
        found = phone.execute_async_script(
            "axe.run({runOnly: arguments[0]}).then(seen => arguments[1]("
            "seen.violations.map(one => [one.id, one.nodes[0].html])))",
            rules,
        )
        assert found == []
        regions = phone.find_elements("css selector", "[tabindex='0'][role=region]")
        names = [one.get_attribute("aria-label") for one in regions]
        assert len(set(names)) == len(names) > 1


@pytest.mark.parametrize(
    ("page", "words", "kept", "left"),
    [
        ("options", "MoE offload", "moe_paged_stash", "tp_comm_overlap"),
        ("rules", "deepspeed cpu_offload", "offload_optimizer.stage", "layout.cp_comm_type"),
        ("megatron_rules", "query groups", "query_groups_match_tp", "sequence_parallel_needs_tp"),
    ],
)
def test_a_list_shows_the_entries_with_all_words(
    site: Path, phone: Any, page: str, words: str, kept: str, left: str
) -> None:
    """By keyboard, and by the link that the filter makes."""

    def text() -> str:
        return str(phone.find_element("tag name", "article").text)

    def tab() -> str:
        phone.switch_to.active_element.send_keys("\ue004")
        return str(phone.switch_to.active_element.get_attribute("id"))

    phone.get((site / f"{page}.html").as_uri())
    whole = text()
    assert left in whole
    phone.find_element("css selector", ".skip-to-content").send_keys("\ue007")
    assert any(tab() == "filter" for _ in range(9))
    phone.switch_to.active_element.send_keys(words)
    found = text()
    assert kept in found
    assert left not in found
    assert f" of {re.findall('[0-9]+ entries', whole)[0]}" in found
    phone.get(phone.current_url)
    assert text() == found
    phone.find_element("id", "filter").send_keys("\ue00c")
    assert text() == whole


def _links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            yield page, target


def test_links_outside_are_addresses() -> None:
    """Syntax alone: no test asks the network."""
    for page, target in _links():
        if "://" in target:
            parts = urlsplit(target)
            assert parts.scheme == "https", (page, target)
            assert "." in parts.netloc, (page, target)


def test_links_inside_lead_to_files() -> None:
    """Also of the README, which is no page of the site; anchors are Sphinx's to check."""
    for page, target in _links():
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), (page, target)


def test_the_readme_shows_rows_of_the_accuracy_page() -> None:
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8").splitlines()
    section = README.partition("## Accuracy")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert len(rows) > 10
    assert set(rows) <= set(page)
