"""config.json of published models with the values of the public files, and how tests read one."""

import json
from pathlib import Path
from typing import Any

from advisor.models.config_json.importer import load_config_json
from advisor.models.spec import ModelSpec

PUBLISHED, NEWER = (
    json.loads(Path(__file__).with_name(name).read_text())
    for name in ("published.json", "newer.json")
)
"""Those of presets, and of models of 2025 and 2026 without one."""


def write(folder: Path, values: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return path


def load(folder: Path, values: object, **changes: Any) -> ModelSpec:
    return load_config_json(write(folder, values | changes if isinstance(values, dict) else values))
