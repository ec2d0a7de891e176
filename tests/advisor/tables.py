"""Cases of a test in a YAML file next to it."""

from pathlib import Path
from typing import Any

import yaml


def tables(test_file: str) -> dict[str, list[Any]]:
    """The tables of NAME.yaml of a test file NAME.py, by the name of the test that they are for."""
    found: dict[str, list[Any]] = yaml.safe_load(
        Path(test_file).with_suffix(".yaml").read_text(encoding="utf-8")
    )
    return found
