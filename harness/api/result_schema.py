"""`harness.json_schema`: what a result.json holds."""

from typing import Any, Final

from advisor.base.json_schema import json_schema as schema_of
from harness.trial.result import TrialResult

_LOSS: Final = {
    "type": "array",
    "items": {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]},
}


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a trial's result.json; the same text is shipped as
    harness/api/result.schema.json. A loss that is no number is text, as in Megatron's own files."""
    return schema_of(TrialResult, title="result.json, schema_version 1", instead={"loss": _LOSS})
