"""The explorer in a real browser: it draws what the advisor says, for everybody, offline."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

pytest.importorskip("selenium")
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from advisor.answer.answer import Answer, Basis
from advisor.api.answering import answer_to
from advisor.base.units import GIB, percent
from advisor.explorer.explorer_data import explorer_page
from advisor.explorer.nearby import Grid, grid
from advisor.explorer.step_numbers import UNIT
from advisor.report.setting_flags import all_flags, all_job_flags
from advisor.request.request import Request, SearchScope
from advisor.search.ranking import order
from advisor.step.predicted_step import training_step
from advisor.step.timeline import live_memory, timeline
from scripts.write_docs.explorer_questions import QUESTIONS
from tests.advisor.jobs import batches, parallel
from tests.browsers import FLAGS, NAMES, installed
from tests.harness.simulated import SimulatedDevice

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
REQUEST = Request(
    model="llama3_8b",
    gpus="8xH100",
    **batches(8192, 2, 32),
    **parallel(tp=2, pp=2, vpp=2),
    quick=True,
)
OTHERS = {
    "experts": Request(model="qwen3_30b_a3b", gpus="16xH100", quick=True),
    "search": Request(model="mixtral_8x7b", gpus="8xH100", search=SearchScope.LAYOUT),
    "one_gpu": Request(model="llama3_8b", gpus="1xH200", quick=True),
    "phases": Request(
        model="qwen3_8b",
        gpus="8xH100",
        framework="huggingface",
        overrides=(
            *("rl.algorithm=ppo", "rl.engine=vllm", "rl.gpu_memory_utilization=0.4"),
            *("rl.sleep_level=1", "rl.reference=host", "rl.critic_on_gpu=false"),
        ),
        quick=True,
    ),
}
OTHERS["samples"] = Request(
    model="llama3_8b",
    gpus="8xA100-80GB",
    framework="fsdp2",
    lengths="p50=900,p99=9000,max=32768",
    max_tokens_per_gpu=8192,
    global_batch_size=16,
    recompute=("full",),
    quick=True,
)
OTHERS["images"] = Request(
    model="qwen2.5_vl_7b",
    gpus="8xH100",
    framework="huggingface",
    **batches(4096, 2, 16),
    overrides=("samples.image_tokens=2048", "samples.images=2", "tuning.adapter=lora"),
    quick=True,
)
PAGES = ("dense", "experts", "search")
DESKTOP, PHONE = 1440, 390


class Shown(Struct, frozen=True):
    """The page in the browser, and what it was made of."""

    driver: Any
    url: str
    answer: Answer
    grid: Grid

    def open(self, fragment: str = "", *, width: int = DESKTOP, dark: bool = False) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get("about:blank")
        self.driver.get(self.url + fragment)
        self.wait("return document.documentElement.dataset.ready === 'yes'")

    def wait(self, script: str) -> None:
        WebDriverWait(self.driver, 30).until(lambda driver: driver.execute_script(script))

    def run(self, script: str, *arguments: Any) -> Any:
        """What the page's own functions give; D is its data, `rows` its rows."""
        code = f"""
        const done = arguments[arguments.length - 1], given = [...arguments];
        unpacked(document.getElementById("data").textContent).then(D => {{
          const rows = rowsOf(D), axes = axisValues(D);
          done(JSON.stringify((() => {{ {script} }})()));
        }}).catch(error => done(JSON.stringify(String(error))));"""
        return json.loads(self.driver.execute_async_script(code, *arguments))

    def script(self, name: str) -> Any:
        """What a file of this folder returns."""
        return self.driver.execute_script((HERE / name).read_text(encoding="utf-8"))

    def text(self, selector: str) -> str:
        return self.driver.find_element(By.CSS_SELECTOR, selector).text

    def texts(self, selector: str) -> list[str]:
        return [one.text for one in self.driver.find_elements(By.CSS_SELECTOR, selector)]

    def click(self, selector: str) -> None:
        self.driver.execute_script("document.querySelector(arguments[0]).click()", selector)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    browser, program = installed(NAMES, "Chromium"), installed(("chromedriver",), "chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(options, webdriver.ChromeService(program))
    folder, answer = tmp_path_factory.mktemp("explorer"), answer_to(REQUEST)
    yield Shown(driver, _page(folder, "dense", REQUEST), answer, grid(answer, REQUEST))
    driver.quit()


@pytest.fixture(scope="module")
def pages(shown: Shown, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shown]:
    """The dense job's page and those of OTHERS, in one browser."""
    folder = tmp_path_factory.mktemp("pages")
    urls = {name: _page(folder, name, request) for name, request in OTHERS.items()}
    return {"dense": shown, **{name: replace(shown, url=url) for name, url in urls.items()}}


def _page(folder: Path, name: str, request: Request) -> str:
    page = folder / f"{name}.html"
    page.write_text(explorer_page(answer_to(request), request, "advise …"), encoding="utf-8")
    return page.as_uri()


def test_it_loads_nothing_and_complains_of_nothing(shown: Shown) -> None:
    shown.driver.get_log("browser")
    shown.open()
    loaded = shown.driver.execute_script(
        "return performance.getEntriesByType('resource').map(one => one.name)"
    )
    assert loaded == []
    assert shown.driver.get_log("browser") == []


def test_what_others_write_into_it_does_not_run(shown: Shown, tmp_path: Path) -> None:
    """Scripts and styles of the page alone have their hashes in its policy; what is under the
    pointer is placed by a script, which may."""
    text = Path(shown.url.removeprefix("file://")).read_text(encoding="utf-8")
    assert "unsafe" not in text.partition("<title>")[0]
    page = tmp_path / "job.html"
    bad = "<script>document.title = 'bad'</script><style>body {visibility: hidden}</style>"
    page.write_text(text.replace("</body>", f"{bad}</body>"), encoding="utf-8")
    other = replace(shown, url=page.as_uri())
    other.open()
    assert "bad" not in other.driver.title
    assert other.text("header h1")
    refused = [one["message"] for one in other.driver.get_log("browser")]
    assert len(refused) == 2
    assert all("Content Security Policy" in message for message in refused)
    shown.open()
    place = "getComputedStyle(document.querySelector('.tip')).left"
    shown.driver.execute_script(
        "document.querySelector('[data-tip]').dispatchEvent(new PointerEvent('pointermove',"
        "{bubbles: true, clientX: 100, clientY: 100}))"
    )
    shown.wait(f"return document.querySelector('.tip') && {place} === '114px'")
    assert shown.driver.get_log("browser") == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("page", [*PAGES, "phases", "samples", "images"])
def test_everybody_can_read_it(pages: dict[str, Shown], page: str, width: int, dark: bool) -> None:
    shown = pages[page]
    shown.open("#with=full:uniform:1" if page == "dense" else "", width=width, dark=dark)
    assert shown.script("legible.js") == []
    shown.script("axe-core/axe.min.js")
    found = shown.driver.execute_async_script(
        "const done = arguments[0]; axe.run(document).then(seen => done(seen.violations.map("
        "one => [one.id, one.help, one.nodes.slice(0, 3).map(node => node.html)])))"
    )
    assert found == []


def test_a_search_opens_on_all_layouts_and_the_verdicts_row(pages: dict[str, Shown]) -> None:
    shown, answer = pages["search"], answer_to(OTHERS["search"])
    shown.open()
    assert shown.text(".presets [aria-pressed=true]") == "All layouts"
    best = answer.candidates[0].evaluation
    assert f"fits: {best.peak_reserved_bytes / 2**30:.1f} of " in shown.text(".verdict")
    assert shown.texts("tr[aria-selected=true] td.layouts") == ["as it is"]
    assert shown.text("th.layouts").startswith("changes from ")
    shown.click(".presets button")
    shown.wait("return !document.querySelector('th.layouts')")


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_labels_of_the_plot_touch_nothing(pages: dict[str, Shown], page: str, width: int) -> None:
    pages[page].open(width=width)
    pages[page].click(".presets button + button")
    pages[page].wait("return document.querySelectorAll('th.layouts').length === 1")
    assert pages[page].script("touching_labels.js") == []


def test_columns_sort_and_rows_that_do_not_fit_go(shown: Shown) -> None:
    shown.open("#budget=40")
    assert len(shown.texts("tr.over")) > 0
    title = shown.driver.find_element(By.XPATH, "//th[contains(., 'peak')]/button")
    title.send_keys(Keys.ENTER)
    shown.wait("return document.querySelector('th[aria-sort=ascending]') !== null")
    peaks = [float(text.lstrip("~")) for text in shown.texts(".rows tbody td:nth-child(2)")]
    assert peaks == sorted(peaks)
    title.click()
    assert shown.text("th[aria-sort=descending]").startswith("peak")
    assert "sort=-peak" in shown.driver.execute_script("return location.hash")
    shown.click("#only")
    shown.wait("return document.querySelectorAll('tr.over').length === 0")


def test_the_link_is_copied_from_a_file(shown: Shown) -> None:
    shown.open("#set=full:uniform:1")
    stub = "document.execCommand = () => { window.copied = document.activeElement.value; }"
    shown.driver.execute_script(f"navigator.clipboard.writeText = null; {stub}")
    shown.click(".top .copy")
    shown.wait(f"return window.copied === {f'{shown.url}#set=full:uniform:1'!r}")


def test_arrow_keys_visit_the_parts_of_a_picture(shown: Shown) -> None:
    shown.open()
    for heading in ("h-memory", "h-stages", "h-time", "h-layer"):
        card = f"[aria-labelledby={heading}]"
        shown.driver.find_element(By.CSS_SELECTOR, f"{card} svg").send_keys(Keys.ARROW_RIGHT)
        first = f"document.querySelector('{card} svg [data-tip]').dataset.tip"
        shown.wait(f"return document.querySelector('{card} [role=status]').innerText === {first}")


def test_one_gpu_is_asked_about_no_layout(pages: dict[str, Shown]) -> None:
    pages["one_gpu"].open()
    assert not re.search("harding|Tensor par|ll layouts|ther layout", pages["one_gpu"].text("body"))


def test_its_rows_are_those_of_the_answer(shown: Shown) -> None:
    shown.open()
    says = shown.run(
        "return ranked(D, rows.filter(row => row.job === 0), D.budget).map("
        "({row, p}) => [row.spec, row.reserved, row.seconds, p])"
    )
    ours = [row for job, rows in shown.grid.jobs[:1] for row in sorted(rows, key=order)]
    assert [row[0] for row in says] == [row.setting.spec for row in ours]
    for (_, reserved, seconds, likely), row in zip(says, ours, strict=True):
        assert abs(reserved * UNIT - row.peak_reserved_bytes) <= UNIT / 2
        assert seconds == pytest.approx(row.step_time_seconds, abs=8 * 0.5e-6)  # eight parts
        # z has three digits, and its distribution function an error of 1.5e-7
        assert likely == pytest.approx(row.fit_probability, abs=2.1e-4)


def test_its_step_is_that_of_the_advisor(shown: Shown) -> None:
    shown.open()
    says = shown.run(
        "return rows.filter(row => row.job === 0).map(row => { const step = stepOf(D, row);"
        "return [row.spec, step.stages, step.memory.map(one => one.peak)]; })"
    )
    ours = {row.setting.spec: row for row in shown.grid.jobs[0][1]}
    assert len(says) == len(ours) >= 10
    for spec, stages, peaks in says:
        step = training_step(ours[spec])
        folded = timeline(step)
        for number, (passes, peak) in enumerate(zip(stages, peaks, strict=True)):
            live = live_memory(step, number)
            # each pass adds one number that is rounded to half a unit, or to half a microsecond
            # for each of its five parts
            slack = len(passes) / 2
            assert abs(peak * UNIT - live.peak) <= slack * UNIT
            for one, other in zip(passes, folded.stages[number], strict=True):
                assert (one["backward"], one["chunk"], one["microbatch"]) == other[:3]
                assert one["end"] == pytest.approx(other.end, abs=5 * 0.5e-6 * 2 * len(passes))


def test_a_link_shows_the_same_again(shown: Shown) -> None:
    shown.open()
    select = shown.driver.find_element(By.ID, "axis-TP")
    select.send_keys("1")
    shown.wait("return location.hash.includes('TP=1')")
    shown.click("tbody tr:last-child button.row")
    shown.wait("return location.hash.includes('set=')")
    said, fragment = shown.text(".verdict"), shown.driver.execute_script("return location.hash")
    shown.open(fragment)
    assert shown.text(".verdict") == said
    assert shown.driver.execute_script("return location.hash") == fragment
    shown.open("#TP=3&set=nonsense@1/2&budget=x&kind=none2")
    assert "fits" in shown.text(".verdict"), "a link that says nothing known is left aside"


def test_a_link_in_the_same_tab_starts_anew(shown: Shown) -> None:
    shown.open("#set=full:uniform:1&budget=60")
    shown.driver.execute_script("location.hash = 'set=selective:mlp'")
    shown.wait("return document.querySelector('.verdict').innerText.startsWith('selective:mlp')")
    assert "79.1 GiB" in shown.text(".verdict")


def test_the_step_can_be_zoomed_without_end(shown: Shown) -> None:
    shown.open()
    picture = shown.driver.find_element(By.CSS_SELECTOR, "canvas.step")
    picture.send_keys("+" * 60)
    picture.send_keys("-" * 60)
    assert shown.driver.execute_script("return 1 + 1") == 2


def test_keys_move_in_the_table_and_along_the_front(shown: Shown) -> None:
    shown.open()
    first, second = shown.texts("button.row")[:2]
    shown.driver.find_element(By.CSS_SELECTOR, "button.row").send_keys(Keys.ARROW_DOWN)
    shown.wait("return document.activeElement.matches('button.row[aria-pressed=true]')")
    assert shown.texts("button.row[aria-pressed=true]") == [second] != [first]
    plot = shown.driver.find_element(By.CSS_SELECTOR, ".plot svg")
    plot.send_keys(Keys.ARROW_LEFT)
    smaller = shown.text(".verdict")
    plot.send_keys(Keys.ARROW_LEFT)
    assert shown.text(".verdict") != smaller


def test_the_budget_decides_what_fits(shown: Shown) -> None:
    shown.open("#budget=25")
    assert "25.0 GiB" in shown.text(".verdict")
    assert "No row that matches the controls fits" in shown.text(".verdict")
    shown.driver.execute_script(
        "const slider = document.getElementById('budget'); slider.value = slider.max;"
        "slider.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    shown.wait("return document.querySelector('.verdict b.good') !== null")


def test_a_phase_has_a_tab_with_its_parts(pages: dict[str, Shown]) -> None:
    """The tab of the highest phase is open; bars, parts and their sum are those of the answer."""
    shown = pages["phases"]
    shown.open()
    best = answer_to(OTHERS["phases"]).leading
    assert best is not None
    phases = best.evaluation.phases
    assert shown.texts("[aria-label=Phase] [role=tab]") == [phase.name for phase in phases]
    highest = max(phases, key=lambda phase: phase.peak_reserved_bytes)
    assert shown.text("[aria-label=Phase] [aria-selected=true]") == highest.name
    for number, phase in enumerate(phases):
        shown.click(f"#phase-{number}")
        shown.wait(f"return document.querySelector('#phase-{number}').ariaSelected === 'true'")
        parts = [size for size in phase.memory_bytes.parts.values() if size]
        figures = shown.texts("#phase-panel text:last-child")
        assert figures == [f"{size / GIB:.1f}" for size in parts]
        total, likely = phase.peak_reserved_bytes / GIB, percent(phase.fit_probability)
        assert f"{total:.1f} GiB reserved, {likely} likely" in shown.text("#phase-panel .note")
    shown.driver.find_element(By.ID, f"phase-{len(phases) - 1}").send_keys(Keys.ARROW_RIGHT)
    shown.wait("return document.activeElement.id === 'phase-0'")
    assert shown.text("[aria-label=Phase] [aria-selected=true]") == phases[0].name


def test_samples_adapters_and_images_are_said(pages: dict[str, Shown]) -> None:
    """In the head as on the page; tokens per second are those of samples, without padding."""
    shown, best = pages["samples"], answer_to(OTHERS["samples"]).leading
    assert best is not None
    shown.open()
    head = shown.text("header")
    assert "packs of 8192 tokens per GPU" in head
    assert f"{best.evaluation.tokens_per_second_per_gpu:,.0f} tokens/s per GPU" in head
    assert "has one, and half of the runs meet it by" in shown.text("[aria-labelledby=h-samples]")
    assert shown.texts("[aria-labelledby=h-samples] tbody th")[3] == "412"
    pages["images"].open()
    head = pages["images"].text("header")
    assert "2048 tokens of 2 images" in head
    assert "LoRA rank 16 on all linear layers: " in head
    assert "all weights" in pages["images"].text("[aria-labelledby=h-rank]")


def test_flags_are_those_of_the_advisor(shown: Shown) -> None:
    shown.open("#set=full:uniform:1")
    row = next(one for one in shown.grid.jobs[0][1] if one.setting.spec == "full:uniform:1")
    for number, (name, flags) in enumerate(all_flags(row).items()):
        shown.click(f"#tab-{number}")
        shown.wait(f"return document.querySelector('#tab-{number}').ariaSelected === 'true'")
        pasted = shown.text("#flags-panel pre").replace(" \\\n", " ").split()
        words = f"{all_job_flags(row)[name]} {flags}".split()
        assert pasted[-len(words) :] == words
    lines = shown.texts(".card pre")[-1].splitlines()
    assert lines[0].startswith("harness run ")
    assert lines[-1] == "harness compare runs/$RUN"


def test_a_row_that_was_run_is_marked(shown: Shown, tmp_path: Path) -> None:
    ran = shown.answer.candidates[1].evaluation
    SimulatedDevice().run([ran], tmp_path / "runs")
    request = replace(REQUEST, calibration=(tmp_path / "runs",))
    answer = answer_to(request)
    (row,) = (one for one in answer.candidates if one.basis is Basis.MEASURED)
    page = tmp_path / "job.html"
    page.write_text(explorer_page(answer, request, "advise …"), encoding="utf-8")
    other = replace(shown, url=page.as_uri())
    other.open(f"#set={row.evaluation.setting.spec}")
    assert other.texts("tr[aria-selected=true] .measured") == other.texts(".measured")
    assert other.texts(".measured")[0] in row.note
    assert f"{other.text('.measured')}; predicted: " in other.text("header")
    shown.open()
    assert shown.texts(".measured") == []


def test_without_a_script_the_answer_stands_there(shown: Shown) -> None:
    off = "Emulation.setScriptExecutionDisabled"
    shown.driver.execute_cdp_cmd(off, {"value": True})
    try:
        shown.driver.get("about:blank")
        shown.driver.get(shown.url)
        table, flags = shown.text("#static table"), shown.texts("#static pre")
    finally:
        shown.driver.execute_cdp_cmd(off, {"value": False})
    best, (*frameworks, environment) = shown.answer.candidates[0].evaluation, flags
    layouts, settings = all_job_flags(best), all_flags(best)
    assert frameworks == [f"{layouts[name]} {settings[name]}".strip() for name in layouts]
    assert environment == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert "1 none" in table
    assert "selective:mlp" in table


def test_it_can_be_printed(shown: Shown) -> None:
    shown.open()
    printed = shown.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert printed["data"].startswith("JVBERi0"), "%PDF- in base64"


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one.name)
def test_a_newcomers_question_is_answered_within_two_clicks(pages, page, question) -> None:
    shown = pages[page]
    shown.open()
    assert len(question.clicks) <= 2
    for click in question.clicks:
        button = shown.driver.find_element(By.XPATH, click)
        shown.driver.execute_script("arguments[0].click()", button)
    where = f"[aria-labelledby={question.answer}]" if question.answer else "header"
    shown.wait(f"return document.querySelector('{where}').innerText.includes({question.says!r})")
    text = (ROOT / "docs/explorer.md").read_text(encoding="utf-8")
    assert f"](explorer/{question.name}.png)" in text
