"""`harness.compare`: results against goldens."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.judge.comparison import Comparison
from harness.judge.comparison import compare as judged
from harness.judge.results import Loaded, load_results
from harness.judge.trial_rows import Options
from harness.judge.update import FOLDER, load_goldens
from harness.trial.result import TrialResult

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
    options = Options(
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
