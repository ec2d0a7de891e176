"""Writes the JSON Schemas that are shipped in the packages, from the types that they describe."""

import json
from pathlib import Path

import advisor
import harness
from advisor.base.json_schema import json_schema
from advisor.report.lint_formats import Linted

ROOT = Path(__file__).parents[1]


def lint_schema() -> dict[str, object]:
    """Of what `advise lint --format json` prints."""
    return json_schema(Linted, title="advise lint --format json, schema_version 1")


SCHEMAS = {
    ROOT / "advisor" / "api" / "advice.schema.json": advisor.json_schema,
    ROOT / "advisor" / "api" / "difference.schema.json": advisor.diff_schema,
    ROOT / "advisor" / "report" / "lint.schema.json": lint_schema,
    ROOT / "harness" / "api" / "result.schema.json": harness.json_schema,
}


def text(schema: dict[str, object]) -> str:
    """As the file holds it."""
    return json.dumps(schema, ensure_ascii=False, indent=2) + "\n"


if __name__ == "__main__":
    for path, schema in SCHEMAS.items():
        path.write_text(text(schema()), encoding="utf-8")
