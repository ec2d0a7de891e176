"""Results from folders of runs, of trials, or single files; the command that runs a trial again."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import Any

from msgspec import Struct

from advisor.base.documents import read_json
from advisor.base.errors import UserError
from advisor.base.record import as_dict
from advisor.base.units import parse_gpus
from advisor.models.presets import load_model
from advisor.request.recipes import Experiment, experiment_names, named_experiment
from harness.judge.identity import workload_key
from harness.trial.result import Evidence, Phase, TrialResult, TrialStatus
from harness.trial.store import RunFolder, TrialFolder, decode_result
from harness.trial.trial import BATCH, Backend, Trial


class Loaded(Struct, frozen=True, kw_only=True):
    """Results; commands: workload key -> what runs it again, where its run is known."""

    results: tuple[TrialResult, ...]
    commands: dict[str, str]


def load_results(paths: list[Path]) -> Loaded:
    """All results below `paths`; UserError where a path holds none, or one cannot be read. A trial
    of a run's plan without a final result was interrupted: it is there with status no_data, for
    nothing that was planned may vanish from a comparison."""
    loaded = [_run(path) if RunFolder(path).has_plan() else _others(path) for path in paths]
    commands = {key: words for one in loaded for key, words in one.commands.items()}
    return Loaded(results=tuple(r for one in loaded for r in one.results), commands=commands)


def _run(path: Path) -> Loaded:
    folder = RunFolder(path)
    plan = folder.plan()
    results, commands = [], {}
    for setting, trial in plan.trials():
        found = folder.trial(trial.name).result()
        results.append(found or _unfinished(folder.trial(trial.name), trial))
        if trial.command is not None or trial.workload.backend is not Backend.COMMAND:
            # else it came from a log, and nobody here can run it again
            key = workload_key(as_dict(setting.trial.workload))
            commands[key] = reproduction_command(plan.experiment, trial)
    return Loaded(results=tuple(results), commands=commands)


def _unfinished(folder: TrialFolder, trial: Trial) -> TrialResult:
    """A planned trial without a result: not begun, at work, or killed with its runner."""
    begun = (folder.path / "trial.json").exists()
    broken = folder.broken_result()
    what = "started but has no result: interrupted" if begun else "has not been run"
    if broken:
        what = f"result.json cannot be read: {broken.field.rpartition(': ')[2]} {broken.relation}"
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
    files = sorted(path.rglob("result.json")) if path.is_dir() else [path]
    if not files:
        raise UserError("RESULTS", str(path), "must hold a run or a result.json")
    return Loaded(results=tuple(_read(file) for file in files), commands={})


def _read(path: Path) -> TrialResult:
    try:
        result = decode_result(path)
    except UserError as error:
        if "schema_version" in error.field and "sessions" in read_json(path):
            raise UserError("RESULTS", str(path), "is a golden, not a result") from None
        raise
    if not isinstance(result.trial.get("workload"), dict):
        raise UserError(f"{path}: trial.workload", "(none)", "is missing")
    return result


_OWN = Path(__file__).parents[1] / "configs"


def reproduction_command(experiment: str, trial: Trial) -> str:
    """`harness run` with the setting of `trial` alone, in its environment, with what it changes in
    its preset (an experiment that is no file here is taken as it stands), into its own folder."""
    preset = None
    with suppress(UserError):
        preset = named_experiment(experiment, _OWN)
    table = preset is not None and experiment not in experiment_names(_OWN)
    words = [
        f"{'recipe' if table else 'experiment'}={experiment}",
        *(_changes(preset, trial) if preset else ()),
        f"recompute.settings=[{quoted_setting(trial.workload.recompute)}]",
        f"measure.repeats={trial.measurement.repeats}",
        f"device={trial.workload.device}",
        f"name=again-{trial.workload.key()}",
    ]
    if trial.command is not None:
        words += [
            f"backend={trial.workload.backend}",
            f"framework={trial.command.framework}",
            f"command={trial.command.template}",
        ]
    variables = [f"{name}={quote(value)}" for name, value in trial.environment.items()]
    return " ".join([*variables, "harness run", *map(quote, words)])


def quoted_setting(spec: str) -> str:
    """A setting as one item of a Hydra list: commas and equals signs need quotes."""
    return f'"{spec}"' if set(spec) & set(",=+") else spec


def _changes(preset: Experiment, trial: Trial) -> Iterator[str]:
    """Overrides of a preset's values; data parallelism follows from the number of GPUs."""
    workload, model = trial.workload, preset.configure(load_model(preset.model))
    yield from _overrides("model", workload.model, model)
    yield from _overrides("layout", workload.layout, preset.layout)
    count, gpu = parse_gpus(preset.gpus)
    if workload.layout.world_size != count:
        yield f"gpus={workload.layout.world_size}x{gpu}"
    yield from _overrides("job", workload, preset.config, BATCH)


def _overrides(group: str, now: Any, before: Any, names: Sequence[str] = ()) -> Iterator[str]:
    for name in names or now.__struct_fields__:
        value = getattr(now, name)
        if value != getattr(before, name) and name not in ("name", "data_parallel_size"):
            yield f"{group}.{name}={_shown(value)}"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(_shown(item) for item in value)}]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value.value if isinstance(value, StrEnum) else value)
