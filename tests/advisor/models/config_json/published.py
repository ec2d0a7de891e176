"""config.json of published models with the values of the public files, and how tests read one."""

import json
from pathlib import Path
from typing import Any

from advisor.models.config_json.importer import load_config_json
from advisor.models.spec import ModelSpec

PUBLISHED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("published.json").read_text()
)


def write(folder: Path, values: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return path


def load(folder: Path, values: object, **changes: Any) -> ModelSpec:
    return load_config_json(write(folder, values | changes if isinstance(values, dict) else values))
