"""A real headless Chromium, asked what it makes of a page. Needs no driver and no network."""

import html
import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.browsers import NAMES, installed

_TIMEOUT_SECONDS = 60
_QUESTIONS = """
<script>
addEventListener("load", () => {
  const root = document.documentElement, box = e => e.getBoundingClientRect();
  const loaded = performance.getEntriesByType("resource").map(e => e.name);
  const answer = {
    width: innerWidth, scroll: root.scrollWidth, loaded,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    ground: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.body).color,
    headings: [...document.querySelectorAll("h1, h2")].map(e => e.textContent),
    images: [...document.querySelectorAll("figure svg")].filter(e => box(e).width)
      .map(e => [box(e).width, box(e).height]),
    wide: [...document.querySelectorAll("main > *, section > p, section > h2, figure")]
      .filter(e => box(e).right > innerWidth + 0.5).map(e => e.tagName),
    font: Math.min(...[...document.querySelectorAll("p, td, th, pre, figcaption")]
      .map(e => parseFloat(getComputedStyle(e).fontSize))),
  };
  const out = document.createElement("pre");
  out.id = "answer";
  out.textContent = JSON.stringify(answer);
  document.body.append(out);
});
</script>
"""


class Chromium(Struct, frozen=True):
    """The browser's program and a folder for what it writes."""

    program: str
    folder: Path

    def ask(self, page: Path, width: int, *flags: str) -> dict[str, Any]:
        """What it shows of `page` in a window of `width` CSS pixels. The window has no frame, and
        an iframe gives exactly the width that is asked for: a headless window may be no narrower
        than 500 pixels."""
        text = page.read_text(encoding="utf-8")
        policy = r'<meta http-equiv="Content-Security-Policy"[^>]*>'  # it forbids our question
        inner = re.sub(policy, "", text).replace("</body>", f"{_QUESTIONS}</body>")
        outer = self.folder / f"{page.stem}-{width}.html"
        outer.write_text(
            f'<body style="margin:0"><iframe id="f" style="border:0;width:{width}px;height:900px"'
            f' srcdoc="{html.escape(inner)}"></iframe><script>addEventListener("load", () => '
            'setTimeout(() => document.body.append(Object.assign(document.createElement("pre"), '
            '{id: "copied", textContent: document.getElementById("f").contentDocument'
            '.getElementById("answer").textContent})), 50));</script></body>',
            encoding="utf-8",
        )
        shown = self._run(["--dump-dom", "--virtual-time-budget=5000", *flags], outer)
        found = re.search(r'<pre id="copied">(.*?)</pre>', shown, re.DOTALL)
        assert found, shown[-2000:]
        answer: dict[str, Any] = json.loads(html.unescape(found[1]))
        return answer

    def screenshot(self, page: Path, target: Path, width: int, height: int, *flags: str) -> None:
        """A picture of the page."""
        size = f"--window-size={width},{height}"
        self._run([f"--screenshot={target}", size, "--hide-scrollbars", *flags], page)

    def _run(self, flags: Sequence[str], page: Path) -> str:
        done = subprocess.run(
            [
                self.program,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                f"--user-data-dir={self.folder / 'profile'}",
                *flags,
                page.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
            env=os.environ | {"HOME": str(self.folder)},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout


def find_chromium(folder: Path) -> Chromium:
    """The browser; skips where there is none, and fails where CI says that there must be one."""
    return Chromium(installed(NAMES, "Chromium"), folder)
