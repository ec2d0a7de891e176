"""Writes the JSON Schemas that are shipped in the packages, from the types that they describe."""

import json
from pathlib import Path

import advisor
import harness

ROOT = Path(__file__).parents[1]
SCHEMAS = {
    ROOT / "advisor" / "api" / "advice.schema.json": advisor.json_schema,
    ROOT / "advisor" / "api" / "difference.schema.json": advisor.diff_schema,
    ROOT / "advisor" / "api" / "solution.schema.json": advisor.solution_schema,
    ROOT / "harness" / "api" / "result.schema.json": harness.json_schema,
}


def text(schema: dict[str, object]) -> str:
    """As the file holds it."""
    return json.dumps(schema, ensure_ascii=False, indent=2) + "\n"


if __name__ == "__main__":
    for path, schema in SCHEMAS.items():
        path.write_text(text(schema()), encoding="utf-8")
