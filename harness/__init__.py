"""Runs recompute settings, measures them, and compares them with predictions and goldens.

    outcome = harness.run(experiment="tiny_cpu", measure={"steps": 5})
    harness.compare(list(outcome.results.values()), golden="results/golden").exit_code

The calls do what the commands of the same names do, and return typed results instead of exit
codes. Importing this loads nothing: each name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from advisor.base.errors import UserError
    from harness.api.calibrating import calibrate
    from harness.api.comparing import compare, json_schema, load_run, update_goldens
    from harness.api.ingesting import ingest
    from harness.api.running import RunOutcome, rehearse, run
    from harness.api.sweeping import SweepOutcome, sweep
    from harness.judge.comparison import Comparison
    from harness.trial.result import TrialResult, TrialStatus

    __version__: str

__all__ = [
    "Comparison",
    "RunOutcome",
    "SweepOutcome",
    "TrialResult",
    "TrialStatus",
    "UserError",
    "__version__",
    "calibrate",
    "compare",
    "ingest",
    "json_schema",
    "load_run",
    "rehearse",
    "run",
    "sweep",
    "update_goldens",
]

_MODULES: Final = {
    "Comparison": "harness.judge.comparison",
    "UserError": "advisor.base.errors",
    "calibrate": "harness.api.calibrating",
    "ingest": "harness.api.ingesting",
    **dict.fromkeys(("RunOutcome", "rehearse", "run"), "harness.api.running"),
    **dict.fromkeys(("SweepOutcome", "sweep"), "harness.api.sweeping"),
    **dict.fromkeys(("TrialResult", "TrialStatus"), "harness.trial.result"),
    **dict.fromkeys(("compare", "json_schema", "load_run"), "harness.api.comparing"),
    "update_goldens": "harness.api.comparing",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from advisor.base.distribution import installed_version

        return installed_version()
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
