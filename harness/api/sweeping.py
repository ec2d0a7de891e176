"""`harness.sweep`: settings, micro batches and layouts searched by measurement."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from advisor.base.errors import UserError
from harness.api.overrides import Overrides, hydra_overrides
from harness.api.running import hand_over, run_folder, statuses_of
from harness.execution.runner import exit_code
from harness.execution.signals import stops_as_usual
from harness.planner.planning import device_name, machine_of
from harness.planner.run_request import RunConfig, compose_sweep
from harness.report.tracking import TrackerName, parse_trackers
from harness.sweeps import history, loop, priority, sweep_page
from harness.sweeps.space import Point, Space, make_space
from harness.trial import result, trial


class SweepOutcome(Struct, frozen=True, kw_only=True):
    """The results of a sweep.

    Attributes:
        points: all points, in the advisor's order.
        outcomes: results by point, in the order in which they were chosen; empty after a dry run.
        front: the Pareto front of step time and peak memory, the fastest first.
        tied: the leader and the points that the noise does not tell from it; empty where one leads.
        ended: why the sweep ended, in a sentence.
        settled: whether it ended because the fastest point is known.
    """

    folder: Path
    points: tuple[Point, ...]
    outcomes: Mapping[Point, history.Outcome]
    front: tuple[Point, ...]
    ok: bool
    tied: tuple[Point, ...] = ()
    ended: str = ""
    settled: bool = False


def sweep(
    overrides: Overrides = (),
    *,
    dry_run: bool = False,
    retry: bool | str | Iterable[str] = False,
    config_dir: str | Path | None = None,
    **keywords: object,
) -> SweepOutcome:
    """Find the fastest points by measuring, as `harness sweep` does.

    overrides, dry_run, retry, config_dir and keywords as for `harness.run`, and
    ``sweep={"trials": 30, "micro_batch_sizes": [1, 2]}``; a name, ``sweep="llama3_8b_1xh200"``, is
    a file of configs/sweep. Times are seconds, sizes bytes. UserError if the request is wrong.
    """
    folder = None if config_dir is None else Path(config_dir)
    given = hydra_overrides(overrides, keywords)
    work, track = plan_sweep(given, folder, statuses_of(retry), dry_run=dry_run)
    points = tuple(work.space.planned)
    if dry_run:
        return SweepOutcome(folder=work.folder.path, points=points, outcomes={}, front=(), ok=True)
    with stops_as_usual():
        ended = work.run()
    if work.folder.results():
        hand_over(work.folder.path, track, "sweep")
    return SweepOutcome(
        folder=work.folder.path,
        points=points,
        outcomes=work.outcomes,
        front=tuple(sweep_page.fastest_and_smallest(work.outcomes, work.space.budget_bytes)),
        ok=exit_code(work.statuses) == 0,
        tied=ended.tied,
        ended=ended.words,
        settled=ended.why is priority.Ending.SETTLED,
    )


def plan_sweep(
    overrides: tuple[str, ...],
    config_dir: Path | None,
    retry: frozenset[result.TrialStatus],
    *,
    dry_run: bool = False,
) -> tuple[loop.Sweep, tuple[TrackerName, ...]]:
    """The sweep that the overrides mean, and who gets its results; UserError if wrong."""
    config, options = compose_sweep(overrides, config_dir)
    if config.measure.repeats > 1:
        relation = "must be 1: a sweep itself repeats leaders whose times overlap"
        hint = "sweep.repeats limits how often"
        raise UserError("measure.repeats", config.measure.repeats, relation, hint)
    if config.backend is trial.Backend.COMMAND:
        relation = "cannot be swept: a command chooses layout and batch itself"
        hint = "use backend=native, or harness run backend=command"
        raise UserError("backend", config.backend, relation, hint)
    machine = machine_of(config, dry_run=dry_run)
    space = make_space(config, machine, options)
    plan = trial.RunPlan(
        experiment=config.experiment_name,
        device_name=device_name(space.target.job, machine.device),
        settings=(),
        assumptions=space.target.assumptions,
    )
    folder = run_folder(config.runs, config.name or _default_name(config, space))
    work = loop.Sweep(
        folder=folder,
        plan=plan,
        space=space,
        options=options,
        launcher=config.launcher,
        retry=retry,
    )
    return work, parse_trackers(config.track, "track")


def _default_name(config: RunConfig, space: Space) -> str:
    """One that the same space always gives."""
    keys = sorted(planned.trial.workload.key() for planned in space.planned.values())
    digest = hashlib.sha256(" ".join(keys).encode()).hexdigest()[:6]
    return f"{config.experiment_name}-sweep-{digest}"
