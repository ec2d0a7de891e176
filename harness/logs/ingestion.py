"""Logs that lie somewhere as results of the harness: of which workload they are, and where they go.
A workload that is wholly known (``experiment=``, ``like=``) gives a run's folder, with plan and
predictions; one that only the log tells of gives one folder with a result.json for each log."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.documents import read_text
from advisor.base.errors import UserError
from advisor.base.units import parse_gpus
from harness.logs import records, trial_result, workload
from harness.logs.parse import ParsedLog, parse_logs
from harness.planner.device import Machine
from harness.planner.planning import make_plan
from harness.planner.run_request import RecomputeChoice, RunConfig
from harness.trial import files, store
from harness.trial.result import TrialResult
from harness.trial.trial import Backend, Device, MeasurementPlan, PlannedSetting, RunPlan, Trial

EXPERIMENT: Final = "ingested"
"""Of the plan that is made of logs."""
_LOGS: Final = "logs.txt"
"""Whose results a folder holds: the full path of each log, a line each."""


class Source(Struct, frozen=True, kw_only=True):
    """The log of one run: its name, and its files."""

    name: str
    paths: tuple[Path, ...]


class LogIdentity(Struct, frozen=True, kw_only=True):
    """Of which workload the logs are. preset: whether `config` names a job preset; like: a result
    of the same workload. Without either, what the log tells."""

    config: RunConfig
    preset: bool = False
    like: TrialResult | None = None
    device: Device = Device.CUDA

    @property
    def gpus(self) -> str | None:
        """COUNTxTYPE as it is given, else the preset's."""
        own = self.config.experiment.get("gpus") if self.preset else None
        return self.config.gpus or (str(own) if own else None)

    @property
    def environment(self) -> dict[str, Any]:
        """What is known of the machine."""
        if self.device is Device.CPU:
            return {}
        if self.gpus is not None:
            return {"gpus": [{"name": parse_gpus(self.gpus)[1]}]}
        return {"gpus": self.like.environment.get("gpus", [])} if self.like else {}


class Ingested(Struct, frozen=True, kw_only=True):
    """One log and what it gave. setting: its trial, where the workload is wholly known."""

    source: Source
    parsed: ParsedLog
    result: TrialResult
    setting: PlannedSetting | None = None


def ingest(
    sources: Sequence[Source],
    framework: records.LogFramework | None,
    identity: LogIdentity,
    accept_incomplete: bool = False,
) -> tuple[Ingested, ...]:
    """A result for every log; UserError where a file cannot be read or no setting is told."""
    plan = identity.config.measure
    least = plan.max_warmup_steps + plan.steps
    logs = [parse_logs(source.paths, framework, least) for source in sources]
    settings = _repeats([_setting(log, identity) for log in logs], plan)
    found = []
    for source, log, setting in zip(sources, logs, settings, strict=True):
        latest = max(path.stat().st_mtime for path in source.paths)  # when it was written
        question = trial_result.LoggedRun(
            name=setting.trial.name if setting else source.name,
            trial=store.plain(setting.trial) if setting else _partial(source, log, identity),
            plan=plan,
            started_at=datetime.fromtimestamp(latest, UTC).isoformat(timespec="seconds"),
            device=identity.device,
            environment=identity.environment,
            accept_incomplete=accept_incomplete,
        )
        result = trial_result.result_of(log, question)
        found.append(Ingested(source=source, parsed=log, result=result, setting=setting))
    return tuple(found)


def write(found: Sequence[Ingested], run: store.RunFolder) -> None:
    """Keep the results in `run`; UserError where a run of ours is there, or another log's."""
    folder, measured_here = run.path, False
    with suppress(UserError):
        measured_here = run.plan().experiment != EXPERIMENT
    if measured_here:
        raise UserError("name", folder.name, "already holds a measured run", "give name=ANOTHER")
    _claim(folder, [str(path.resolve()) for one in found for path in one.source.paths])
    settings = {one.setting.trial.workload.key(): one.setting for one in found if one.setting}
    if settings:
        firsts = (replace(one, trial=replace(one.trial, repeat=0)) for one in settings.values())
        result = found[0].result
        names = [gpu["name"] for gpu in result.environment.get("gpus", []) if "name" in gpu]
        device = str(names[0] if names else result.trial["workload"]["device"])
        run.create(RunPlan(experiment=EXPERIMENT, device_name=device, settings=tuple(firsts)))
    for one in found:
        if one.setting is not None:
            trial = run.trial(one.setting.trial.name)
            trial.create(one.setting.trial)
            trial.write_result(one.result)
        else:
            (folder / one.source.name).mkdir(parents=True, exist_ok=True)
            files.write_atomic(folder / one.source.name / "result.json", store.encode(one.result))


def _claim(folder: Path, logs: Sequence[str]) -> None:
    """Say of which logs the results are; UserError where those of others are there."""
    owners = read_text(folder / _LOGS) if (folder / _LOGS).exists() else None
    if owners is None:
        folder.mkdir(parents=True, exist_ok=True)
        files.write_atomic(folder / _LOGS, "\n".join([*logs, ""]))
    elif set(logs) - set(owners.splitlines()):
        first = owners.partition("\n")[0]
        relation = f"holds results of another log ({first})"
        raise UserError("name", folder.name, relation, "give name=ANOTHER or runs=FOLDER")


def _setting(log: ParsedLog, identity: LogIdentity) -> PlannedSetting | None:
    """The log's trial with what is predicted of it; None where only the log tells the workload."""
    if identity.like is not None:
        try:
            trial = store.decode(Trial, json.dumps(identity.like.trial), identity.like.name)
        except UserError:  # its own workload is known in part only
            return None
        return PlannedSetting(trial=replace(trial, command=None))
    if not identity.preset:
        return None
    config = identity.config
    asked = config.recompute.settings
    if len(asked) > 1:
        relation = "must be one setting: a log has only one"
        hint = "ingest the logs of each setting separately"
        raise UserError("recompute.settings", ",".join(asked), relation, hint)
    spec = asked[0] if len(asked) == 1 else workload.stated_recompute(log.arguments)
    if spec is None:
        relation = "must be given: the log does not state its recompute setting"
        hint = (
            "give e.g. recompute.settings=[none], and ingest the logs of other settings separately"
        )
        raise UserError("recompute", ",".join(asked) or "(none)", relation, hint)
    one = replace(
        config, backend=Backend.COMMAND, command="", recompute=RecomputeChoice(settings=(spec,))
    )
    return replace(make_plan(one, _machine(identity)).settings[0], rank=None, skip="")


def _machine(identity: LogIdentity) -> Machine:
    if identity.device is Device.CPU or identity.gpus is None:
        return Machine(device=Device.CPU)
    count, name = parse_gpus(identity.gpus)
    return Machine(device=Device.CUDA, gpu_names=(name,) * count)


def _repeats(
    settings: Sequence[PlannedSetting | None], plan: MeasurementPlan
) -> list[PlannedSetting | None]:
    """Logs of one workload are its repeats, in their order."""
    counts = Counter(setting.trial.workload.key() for setting in settings if setting)
    done: Counter[str] = Counter()
    found: list[PlannedSetting | None] = []
    for setting in settings:
        if setting is not None:
            key = setting.trial.workload.key()
            measured = replace(plan, repeats=counts[key])
            trial = replace(setting.trial, measurement=measured, repeat=done[key])
            setting = replace(setting, trial=trial)
            done[key] += 1
        found.append(setting)
    return found


def _partial(source: Source, log: ParsedLog, identity: LogIdentity) -> dict[str, Any]:
    """A trial of which only a part is known."""
    if identity.like is not None:
        known = identity.like.trial
    else:
        device = {"device": identity.device.value}
        known = {"workload": workload.unknown_workload(log.arguments, source.name) | device}
    return {**known, "measurement": store.plain(identity.config.measure)}
