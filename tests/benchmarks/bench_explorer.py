"""How large the explorer's page is, and how quick: its first paint, and a control in Chromium.

Run by `make bench`; figures are printed: pytest -s shows them. Nothing is asserted: a machine
may be busy. Milliseconds of a control last until the picture that it changes has been painted.
"""

import statistics
from pathlib import Path

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
    page.write_text(explorer_page(answer_to(request), request, "advise …"), encoding="utf-8")
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
    print(
        f"\n{case}: {rows} rows, {size:.2f} MB, first paint {painted:.0f} ms, drawn {ready:.0f} ms"
    )
    for name, found in times.items():
        print(f"  {name}: median {statistics.median(found):.0f} ms, most {max(found):.0f} ms")
