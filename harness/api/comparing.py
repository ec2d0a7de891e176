"""`harness.compare`, `.load_run`, `.update_goldens`, `.json_schema`: results are judged."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from advisor.base.json_schema import json_schema as schema_of
from harness.judge.comparison import Comparison
from harness.judge.comparison import compare as judged
from harness.judge.golden import FOLDER, load_goldens
from harness.judge.golden_update import plan_update, write
from harness.judge.results import Loaded, load_results
from harness.judge.trial_rows import CompareOptions
from harness.trial.result import TrialResult

if TYPE_CHECKING:
    from harness.api.running import RunOutcome

Results = str | Path | TrialResult


def compare(
    results: Results | Sequence[Results],
    *,
    golden: str | Path | Sequence[str | Path] = FOLDER,
    limits: Mapping[str, float] | None = None,
    allow_env_change: bool = False,
    allow_unmatched: bool = False,
    exact_loss: bool = False,
    strict: bool = False,
) -> Comparison:
    """Compare results with goldens, worst first, as `harness compare` does; `Comparison.exit_code`
    is the verdict.

    Args:
        results: folders of runs, result.json files, or results themselves (`run(…).results`).
        golden: files or folders of goldens; a folder that is not there holds none.
        limits: relative limit of a metric, ``{"step_time_seconds": 0.03}``.
        allow_env_change: compare across environments.
        allow_unmatched: trials or goldens without the other do not decide.
        exact_loss: losses must be equal bit by bit.
        strict: a stale golden fails.

    UserError where a path holds no results, or a golden cannot be read.
    """
    loaded = loaded_of(results)
    options = CompareOptions(
        allow_env_change=allow_env_change,
        strict=strict,
        allow_unmatched=allow_unmatched,
        exact_loss=exact_loss,
        limits=tuple((limits or {}).items()),
    )
    paths = [golden] if isinstance(golden, str | Path) else golden
    there = [path for path in map(Path, paths) if path.exists() or path.suffix == ".json"]
    return judged(loaded.results, list(load_goldens(there).values()), options, loaded.commands)


def loaded_of(results: Results | Sequence[Results]) -> Loaded:
    """Results of the paths, and those that are given as such."""
    several = [results] if isinstance(results, Results) else list(results)
    loaded = load_results([Path(one) for one in several if not isinstance(one, TrialResult)])
    given = (one for one in several if isinstance(one, TrialResult))
    return Loaded(results=(*loaded.results, *given), commands=loaded.commands)


_LOSS: Final = {
    "type": "array",
    "items": {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]},
}


def load_run(folder: str | Path) -> "RunOutcome":
    """Load a finished run from its folder. Needs no GPU and no torch.

    Args:
        folder: the folder of `harness run`, or any folder of result.json files. The plan of results
            that `harness run` did not plan has their settings and predictions.

    UserError if the folder holds no result, or a trial twice.
    """
    from harness.api.running import RunOutcome
    from harness.report.facts import load_facts

    facts = load_facts(Path(folder))
    return RunOutcome(folder=facts.path, plan=facts.plan, results=facts.results)


def update_goldens(
    results: Results | Sequence[Results],
    *,
    reason: str,
    to: str | Path = FOLDER,
    append: bool = False,
) -> tuple[Path, ...]:
    """Make or replace the goldens of `results`, as `harness golden update` does. Returns their
    files.

    Args:
        results: folders of runs, result.json files, or results themselves.
        reason: why the baseline changes; it is kept in the file.
        to: the folder of goldens.
        append: sessions are added to the golden; else it is replaced.

    UserError if the repeats of a workload cannot be a baseline: all must be ok, or all out of
    memory.
    """
    changes = plan_update(loaded_of(results).results, reason, Path(to), append=append)
    write(changes)
    return tuple(change.path for change in changes)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a trial's result.json; the same text is shipped as
    harness/api/result.schema.json. A loss that is no number is text, as in Megatron's own files."""
    return schema_of(TrialResult, title="result.json, schema_version 1", instead={"loss": _LOSS})
