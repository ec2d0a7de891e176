#!/usr/bin/env python3
"""Takes the pictures of docs/explorer.md: a job's explorer in Chromium, after the clicks.

    python scripts/photograph_explorer.py

Needs the extra `dev`, chromium and chromedriver (.ci/install-system-packages).
"""

import base64
import io
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from advisor.cli.main import main as advise  # noqa: E402
from scripts.write_docs.explorer_questions import QUESTIONS  # noqa: E402
from tests.browsers import FLAGS, NAMES, installed  # noqa: E402

JOB = ("--model", "llama3_70b", "--gpus", "32xH100", "--seq-length", "8192")
PICTURES = ROOT / "docs/explorer"
_COLOURS = 96
_MARGIN = 8


def main() -> None:
    """Write every picture."""
    options = webdriver.ChromeOptions()
    options.binary_location = installed(NAMES, "Chromium")
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(
        options, webdriver.ChromeService(installed(("chromedriver",), "chromedriver"))
    )
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "job.html"
        os.chdir(folder)
        assert advise([*JOB, "--format", "html", "-o", page.name]) == 0
        for question in QUESTIONS:
            opened(driver, page.as_uri(), 1100)
            for click in question.clicks:
                button = driver.find_element(By.XPATH, click)
                driver.execute_script("arguments[0].click()", button)
            where = f"[aria-labelledby={question.answer}]" if question.answer else "header"
            photographed(driver, PICTURES / f"{question.name}.png", box(driver, where))
        opened(driver, page.as_uri(), 1440)
        first = {"x": 0, "y": 0, "width": 1440, "height": 1000}
        photographed(driver, PICTURES / "desktop.png", first)
        opened(driver, page.as_uri(), 390, dark=True)
        photographed(driver, PICTURES / "phone.png", {**first, "width": 390})
    driver.quit()


def opened(driver: Any, url: str, width: int, *, dark: bool = False) -> None:
    """The page as it is when it has been opened."""
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 600}
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get("about:blank")
    driver.get(url)
    ready = "return document.documentElement.dataset.ready === 'yes'"
    WebDriverWait(driver, 60).until(lambda page: page.execute_script(ready))


def box(driver: Any, selector: str) -> dict[str, float]:
    """Where an element stands on the page, with a margin."""
    found = driver.execute_script(
        "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
        "return [box.x + scrollX, box.y + scrollY, box.width, box.height]",
        selector,
    )
    x, y, width, height = found
    return {
        "x": max(0, x - _MARGIN),
        "y": max(0, y - _MARGIN),
        "width": width + 2 * _MARGIN,
        "height": height + 2 * _MARGIN,
    }


def photographed(driver: Any, path: Path, part: dict[str, float]) -> None:
    """A part of the page as a PNG of few colours."""
    shot = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": {**part, "scale": 1}}
    )
    picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    path.parent.mkdir(exist_ok=True)
    picture.quantize(_COLOURS).save(path, optimize=True)
    print(path.relative_to(ROOT), f"{path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
