"""The browser that the tests of pages use: a real headless Chromium."""

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
)


def installed(names: tuple[str, ...], package: str) -> str:
    """The program of one of the names; skips where there is none, and fails where CI says that
    there must be one."""
    program = next((found for name in names if (found := shutil.which(name))), None)
    if program is None:
        words = f"no {package} here; .ci/install-system-packages installs it"
        if os.environ.get("CI") == "true":
            pytest.fail(words)
        pytest.skip(words)
    return program
