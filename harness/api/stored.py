"""`harness.load_run`, `harness.update_goldens`: what lies in folders, without running anything."""

from collections.abc import Sequence
from pathlib import Path

from harness.api.comparing import Results, loaded_of
from harness.api.running import RunOutcome
from harness.judge.update import FOLDER, plan_update, write


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
