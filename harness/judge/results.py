"""Results from where they lie: folders of runs, of trials, or single result.json files."""

from pathlib import Path
from typing import Final

from msgspec import Struct

from advisor.base.errors import UserError
from advisor.base.record import as_dict
from harness.judge.identity import workload_key
from harness.judge.reproduce import reproduction_command
from harness.trial.codec import decode_result
from harness.trial.result import Evidence, Phase, TrialResult, TrialStatus
from harness.trial.store import RunFolder, TrialFolder
from harness.trial.trial import Backend, Trial

_TRIAL: Final = "trial.json"


class Loaded(Struct, frozen=True, kw_only=True):
    """Results, and the command that runs each workload again where its run is known.

    commands: workload key -> command line.
    """

    results: tuple[TrialResult, ...]
    commands: dict[str, str]


def load_results(paths: list[Path]) -> Loaded:
    """All results below `paths`; UserError where a path holds none, or one cannot be read.

    A trial of a run's plan without a final result was interrupted: it is there with status
    no_data, for nothing that was planned may vanish from a comparison.
    """
    results: list[TrialResult] = []
    commands: dict[str, str] = {}
    for path in paths:
        loaded = _run(path) if RunFolder(path).has_plan() else _others(path)
        results += loaded.results
        commands |= loaded.commands
    return Loaded(results=tuple(results), commands=commands)


def _run(path: Path) -> Loaded:
    folder = RunFolder(path)
    plan = folder.plan()
    results, commands = [], {}
    for setting, trial in plan.trials():
        found = folder.trial(trial.name).result()
        results.append(found or _unfinished(folder.trial(trial.name), trial))
        if trial.command is not None or trial.workload.backend is not Backend.COMMAND:
            # else it came from a log, and nobody here can run it again
            commands[workload_key(as_dict(setting.trial.workload))] = reproduction_command(
                plan.experiment, trial
            )
    return Loaded(results=tuple(results), commands=commands)


def _unfinished(folder: TrialFolder, trial: Trial) -> TrialResult:
    """A planned trial without a result: not begun, at work, or killed with its runner."""
    begun = (folder.path / _TRIAL).exists()
    broken = folder.broken_result()
    what = (
        f"result.json cannot be read: {broken.field.rpartition(': ')[2]} {broken.relation}"
        if broken
        else ("started but has no result: interrupted" if begun else "has not been run")
    )
    state = folder.state() if begun else None
    return TrialResult(
        name=trial.name,
        status=TrialStatus.NO_DATA,
        trial=as_dict(trial),
        environment={},
        started_at="",
        wall_seconds=0.0,
        evidence=Evidence(phase=state.phase if state else Phase.START, message=what),
    )


def _others(path: Path) -> Loaded:
    """A result file, or every result.json below a folder."""
    files = sorted(path.rglob("result.json")) if path.is_dir() else [path]
    if not files:
        raise UserError("RESULTS", str(path), "must hold a run or a result.json")
    return Loaded(results=tuple(_read(file) for file in files), commands={})


def _read(path: Path) -> TrialResult:
    result = decode_result(path)
    if not isinstance(result.trial.get("workload"), dict):
        raise UserError(f"{path}: trial.workload", "(none)", "is missing")
    return result
