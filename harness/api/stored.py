"""`harness.load_run`, `.update_goldens`, `.json_schema`: what lies in folders; nothing is run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from advisor.base.json_schema import json_schema as schema_of
from harness.api.comparing import Results, loaded_of
from harness.api.running import RunOutcome
from harness.judge.update import FOLDER, plan_update, write
from harness.trial.result import TrialResult

_LOSS: Final = {
    "type": "array",
    "items": {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]},
}


def load_run(folder: str | Path) -> RunOutcome:
    """Load a finished run from its folder. Needs no GPU and no torch.

    Args:
        folder: the folder of `harness run`, or any folder of result.json files. The plan of results
            that `harness run` did not plan has their settings and predictions.

    UserError if the folder holds no result, or a trial twice.
    """
    from harness.report.facts import load_facts

    facts = load_facts(Path(folder))
    return RunOutcome(folder=facts.path, plan=facts.plan, results=facts.results)


def update_goldens(
    results: Results | Sequence[Results], *, reason: str, to: str | Path = FOLDER
) -> tuple[Path, ...]:
    """Make or replace the goldens of `results`, as `harness golden update` does. Returns their
    files.

    Args:
        results: folders of runs, result.json files, or results themselves.
        reason: why the baseline changes; it is kept in the file.
        to: the folder of goldens.

    UserError if the repeats of a workload cannot be a baseline: all must be ok, or all out of
    memory.
    """
    changes = plan_update(loaded_of(results).results, reason, Path(to))
    write(changes)
    return tuple(change.path for change in changes)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a trial's result.json; the same text is shipped as
    harness/api/result.schema.json. A loss that is no number is text, as in Megatron's own files."""
    return schema_of(TrialResult, title="result.json, schema_version 1", instead={"loss": _LOSS})
