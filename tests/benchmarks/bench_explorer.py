"""How large the explorer's page is, and how quick: its making in CPU seconds, its first paint, and
a control in Chromium.

Run by `make bench`; figures are printed: pytest -s shows them. Nothing is asserted: a machine
may be busy. Milliseconds of a control last until the picture that it changes has been painted.
"""

import statistics
from pathlib import Path
from time import process_time

import pytest
from selenium import webdriver

from advisor.api.answering import answer_to
from advisor.explorer.explorer_data import explorer_page
from advisor.request.request import Request, SearchScope
from tests.browsers import FLAGS, NAMES, installed

CASES = {
    "llama3_70b on 32 H100": Request(model="llama3_70b", gpus="32xH100"),
    "the same, --search layout": Request(
        model="llama3_70b", gpus="32xH100", search=SearchScope.LAYOUT
    ),
    "mixtral_8x7b on 64 H100, --search layout": Request(
        model="mixtral_8x7b", gpus="64xH100", search=SearchScope.LAYOUT
    ),
    "qwen3_235b_a22b on 256 H100, --search layout": Request(
        model="qwen3_235b_a22b", gpus="256xH100", search=SearchScope.LAYOUT
    ),
    "deepseek_v3 on 1024 H100, --search layout": Request(
        model="deepseek_v3", gpus="1024xH100", search=SearchScope.LAYOUT
    ),
}
_CONTROL = """
const done = arguments[arguments.length - 1], [id, values] = arguments, found = [];
const control = document.getElementById(id);
const next = () => {
  if (!values.length) return done(found);
  const begin = performance.now();
  control.value = values.shift();
  control.dispatchEvent(new Event(id === "budget" ? "input" : "change", { bubbles: true }));
  requestAnimationFrame(() => setTimeout(() => { found.push(performance.now() - begin); next(); }));
};
next();
"""


@pytest.mark.parametrize("case", CASES)
def test_page(case: str, tmp_path: Path) -> None:
    request = CASES[case]
    page = tmp_path / "job.html"
    begin = process_time()
    answer = answer_to(request)
    answered = process_time()
    page.write_text(explorer_page(answer, request, "advise …"), encoding="utf-8")
    written = process_time()
    options = webdriver.ChromeOptions()
    options.binary_location = installed(NAMES, "Chromium")
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(
        options, webdriver.ChromeService(installed(("chromedriver",), "chromedriver"))
    )
    driver.set_window_size(1440, 1000)
    driver.get("about:blank")
    driver.get(page.as_uri())
    painted, ready, rows = driver.execute_async_script(
        "const done = arguments[0]; const wait = () => document.documentElement.dataset.ready"
        " ? unpacked(document.getElementById('data').textContent).then(D => done(["
        "performance.getEntriesByType('paint').find(one => one.name === 'first-contentful-paint')"
        "?.startTime, performance.now(), D.rows.job.length]))"
        " : setTimeout(wait, 5); wait();"
    )
    driver.find_element("css selector", ".presets button + button").click()
    card = int(driver.find_element("id", "budget").get_attribute("max") or 0)
    steps = [str(card * share // 100 // 16 * 16) for share in range(60, 100, 3)]
    times = {"budget": driver.execute_async_script(_CONTROL, "budget", steps)}
    kinds = driver.execute_script(
        "return [...document.getElementById('kind').options].map(one => one.value)"
    )
    times["recompute"] = driver.execute_async_script(_CONTROL, "kind", kinds * 3)
    driver.quit()
    size = page.stat().st_size / 1e6
    made = f"answer {answered - begin:.1f} s, page {written - answered:.1f} s"
    shown = f"first paint {painted:.0f} ms, drawn {ready:.0f} ms"
    print(f"\n{case}: {made}, {rows} rows, {size:.2f} MB, {shown}")
    for name, found in times.items():
        print(f"  {name}: median {statistics.median(found):.0f} ms, most {max(found):.0f} ms")
