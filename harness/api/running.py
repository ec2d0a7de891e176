"""`harness.run` and `harness.rehearse`: plan, run, and results with their types."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from advisor.base.errors import UserError, require
from advisor.base.fields import convert
from harness.api.overrides import Overrides, hydra_overrides, plain_overrides
from harness.backends import lone_ranks
from harness.execution.launch import make_runner
from harness.execution.launchers.local import LocalLauncher
from harness.execution.progress import Progress, say
from harness.execution.runner import UNMEASURED, Runner, exit_code
from harness.execution.signals import stops_as_usual
from harness.planner.planning import check_request, machine_of, make_plan
from harness.planner.run_request import compose
from harness.rehearsal.trials import parse_asked, rehearsal_plan
from harness.report.tracking import TrackerName, parse_trackers
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.store import RunFolder
from harness.trial.trial import RunPlan

REHEARSAL: Final = (sys.executable, "-m", "harness.rehearsal")


class PlannedRun(Struct, frozen=True, kw_only=True):
    """A run before it begins: its trials with what is predicted, where it goes, and who runs them;
    the runner takes statuses: trials that have one are run again. track: who gets the results."""

    plan: RunPlan
    folder: RunFolder
    runner: Callable[[frozenset[TrialStatus]], Runner]
    track: tuple[TrackerName, ...] = ()


class RunOutcome(Struct, frozen=True, kw_only=True):
    """A run: its folder, the plan with each trial's prediction, and the results by trial name in
    the order in which they ran (empty after a dry run)."""

    folder: Path
    plan: RunPlan
    results: Mapping[str, TrialResult]

    @property
    def finished(self) -> bool:
        """Whether every trial has its final result; on a cluster some may still be queued."""
        return len(self.results) == sum(1 for _ in self.plan.trials())

    @property
    def ok(self) -> bool:
        """Whether it is finished, no trial failed, and at least one was measured."""
        return self.finished and exit_code(result.status for result in self.results.values()) == 0

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per trial that has a result, measured and predicted: the columns of the
        report's trials.csv. Sizes are bytes, times seconds."""
        from harness.report.export import trial_rows
        from harness.report.facts import load_facts

        return trial_rows(load_facts(self.folder)) if self.results else []

    def to_dataframe(self) -> Any:
        """`rows` as a pandas.DataFrame; UserError if pandas is not installed."""
        return require("pandas", "to_dataframe", "report").DataFrame(self.rows())


def run(
    overrides: Overrides = (),
    *,
    dry_run: bool = False,
    retry: bool | str | Iterable[str] = False,
    report: bool = True,
    config_dir: str | Path | None = None,
    **keywords: object,
) -> RunOutcome:
    """Run and measure each setting in a new process, as `harness run` does.

    Args:
        overrides: ``["measure.steps=5", …]`` as on the command line, or ``{"measure.steps": 5}``.
        dry_run: only plan and predict; run and write nothing.
        retry: run trials without a measurement again; or only those of a status (``"unstable"``).
        report: write `report` into the run's folder, once every trial has its result.
        config_dir: searched before ./configs and the packaged configuration.
        keywords: the same keys, groups as mappings: ``experiment="llama3_8b_1xh200"``,
            ``recompute={"settings": ["none", "full:block:4"]}``, ``job={"seq_length": 2048}``,
            ``measure={"repeats": 5}``, ``device="cpu"``, ``runs="runs"``, ``name="mine"``,
            ``track=["mlflow"]``.

    Times in results are seconds, sizes bytes. Progress goes to stderr. A trial that fails is a
    result with a status; UserError where the request is wrong, OSError where a result cannot be
    written. The same call goes on where it was stopped, and runs nothing twice.
    """
    planned = plan_run(hydra_overrides(overrides, keywords), _path(config_dir), dry_run=dry_run)
    outcome = _outcome(planned, dry_run, retry)
    if not dry_run:
        hand_over(outcome.folder, planned.track, report=report and outcome.finished)
    return outcome


def plan_run(
    overrides: tuple[str, ...], config_dir: Path | None, *, dry_run: bool = False
) -> PlannedRun:
    """The run that the overrides mean, for any machine if it is dry; UserError if wrong."""
    config = compose(overrides, config_dir)
    check_request(config)
    plan = make_plan(config, machine_of(config, dry_run=dry_run))
    folder = run_folder(config.runs, config.name or plan.default_name)
    total = sum(1 for _ in plan.trials())
    return PlannedRun(
        plan=plan,
        folder=folder,
        runner=lambda retry: make_runner(config.launcher, folder, plan, Progress(total), retry),
        track=parse_trackers(config.track, "track"),
    )


def rehearse(
    overrides: Overrides = (),
    *,
    dry_run: bool = False,
    retry: bool | str | Iterable[str] = False,
    config_dir: str | Path | None = None,
    **keywords: object,
) -> RunOutcome:
    """Run one rank of each pipeline stage on one device, as `harness rehearse` does.

    overrides, dry_run, retry, config_dir: as for `run`. keywords: ``model="llama3_70b"``,
    ``gpus="32xH100"``, ``layout="tp4_pp4_vpp5"``, ``recompute=["none", "selective:mlp"]``,
    ``stage=0``, ``device="fake"``, ``steps=3``, ``job={"seq_length": 8192}``, ``runs``, ``name``.
    UserError if the request is wrong or Megatron Core is not installed.
    """
    planned = plan_rehearsal(plain_overrides(overrides, keywords), _path(config_dir))
    return _outcome(planned, dry_run, retry)


def plan_rehearsal(overrides: tuple[str, ...], config_dir: Path | None) -> PlannedRun:
    """The rehearsal that the overrides mean; UserError where they are wrong. Its runner: UserError
    where Megatron Core is not installed."""
    asked = parse_asked(overrides, config_dir)
    plan = rehearsal_plan(asked)
    folder = run_folder(asked.runs, asked.name or plan.default_name)

    def runner(retry: frozenset[TrialStatus]) -> Runner:
        lone_ranks.require()
        return Runner(
            folder=folder,
            plan=plan,
            progress=Progress(len(plan.settings)),
            launcher=lambda _: LocalLauncher(REHEARSAL),
            retry=retry,
        )

    return PlannedRun(plan=plan, folder=folder, runner=runner)


def _outcome(planned: PlannedRun, dry_run: bool, retry: bool | str | Iterable[str]) -> RunOutcome:
    results: dict[str, TrialResult] = {}
    if not dry_run:
        with stops_as_usual():
            results = planned.runner(statuses_of(retry)).run()
    return RunOutcome(folder=planned.folder.path, plan=planned.plan, results=results)


def hand_over(
    folder: Path, trackers: tuple[TrackerName, ...], command: str = "run", *, report: bool = False
) -> None:
    """The report, and what `track=` asks for, of a run or a sweep, which stands in any case."""
    if report:
        from harness.report.write import report_run

        report_run(folder, partial(say, command=command))
    if trackers:
        from harness.report.tracking import track_and_say

        track_and_say(folder, trackers, partial(say, command=command))


def run_folder(runs: str, name: str) -> RunFolder:
    """The folder of a run called `name` below `runs`; UserError where it is no plain name."""
    if os.path.basename(name) != name or name in (".", ".."):
        raise UserError("name", name, "must be a folder name without a path")
    return RunFolder(Path(runs) / name)


def statuses_of(retry: bool | str | Iterable[str]) -> frozenset[TrialStatus]:
    """Statuses that are run again: none, those without a measurement, or those named; UserError
    for one that is not known."""
    if isinstance(retry, bool):
        return UNMEASURED if retry else frozenset()
    names = (retry,) if isinstance(retry, str) else retry
    return frozenset(convert(one, TrialStatus, "", "--retry") for one in names)


def _path(folder: str | Path | None) -> Path | None:
    return None if folder is None else Path(folder)
