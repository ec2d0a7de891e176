"""What a report rests on: the plan of a run, its results, and their comparison with goldens."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from advisor.base.errors import UserError
from advisor.base.fields import read_record
from advisor.hardware.catalogue import load_gpu
from advisor.hardware.gpu import Gpu
from harness.judge.comparison import Comparison, compare
from harness.judge.golden import Golden
from harness.judge.identity import Place, place_of
from harness.judge.predicted import SettingOutcome, outcomes
from harness.judge.results import Loaded, load_results, reproduction_command
from harness.judge.trial_rows import Options
from harness.trial.result import TrialResult
from harness.trial.run_plan import PlannedSetting, RunPlan
from harness.trial.store import RunFolder
from harness.trial.trial import Device, Trial


class Facts(Struct, frozen=True, kw_only=True):
    """Everything that is known of a run. results: every trial planned, by name, in the order of the
    plan; one that was not finished has status no_data. judged: whether goldens were given."""

    path: Path
    plan: RunPlan
    results: dict[str, TrialResult]
    comparison: Comparison
    judged: bool

    @property
    def found(self) -> tuple[SettingOutcome, ...]:
        """What became of every setting."""
        return outcomes(self.plan, self.results)

    @property
    def on_cpu(self) -> bool:
        """Whether times are those of a CPU, which say nothing about a GPU."""
        devices = {setting.trial.workload.device for setting in self.plan.settings}
        return Device.CPU in devices

    @property
    def tokens_unit(self) -> str:
        """What throughput is counted in."""
        return "tokens/s" if self.on_cpu else "tokens/s/GPU"

    @property
    def peak(self) -> str:
        """Which peak decides what fits: reserved where every measured trial has one (on a GPU that
        we measured), else allocated."""
        ranks = [rank for result in self.results.values() for rank in result.memory]
        known = bool(ranks) and all(rank.reserved is not None for rank in ranks)
        return "reserved" if known else "allocated"

    @property
    def gpu(self) -> Gpu | None:
        """Datasheet of the GPU it ran on; None on a CPU, and for a type that is not described."""
        try:
            return None if self.on_cpu else load_gpu(self.plan.device_name)
        except UserError:
            return None

    @property
    def place(self) -> Place | None:
        """Where it ran, by the first process that left a fingerprint."""
        return next((place_of(one) for one in self.results.values() if one.environment), None)

    def name_of(self, setting: PlannedSetting) -> str:
        """What a setting is called in tables and pictures."""
        return self.plan.name_of(setting.trial.workload)

    @property
    def names(self) -> dict[str, str]:
        """What the setting of every result is called."""
        planned = {trial.name: self.name_of(setting) for setting, trial in self.plan.trials()}
        spelt = {name: one.trial["workload"]["recompute"] for name, one in self.results.items()}
        return spelt | planned

    def of(self, setting: PlannedSetting) -> tuple[TrialResult, ...]:
        """Results of all repeats of a setting."""
        names = (trial.name for trial in setting.trials())
        return tuple(self.results[name] for name in names if name in self.results)

    def command(self, trial: Trial) -> str:
        """What runs a trial again."""
        return reproduction_command(self.plan.experiment, trial)


def load_facts(
    path: Path, goldens: Sequence[Golden] | None = None, options: Options | None = None
) -> Facts:
    """The facts of a run's folder, or of any folder of results; UserError where it holds none.

    goldens: what the results are judged by; None where nobody asked for a verdict.
    """
    loaded = load_results([path])
    folder = RunFolder(path)
    plan = folder.plan() if folder.has_plan() else _plan_of(path, loaded)
    if not plan.settings:
        raise UserError("RUN", str(path), "holds no setting", "nothing was planned")
    results = {_trial(result).name: result for result in loaded.results}
    if len(results) < len(loaded.results):
        raise UserError("RUN", str(path), "holds a trial twice", "name the folder of one run")
    return Facts(
        path=path,
        plan=plan,
        results=results,
        comparison=compare(loaded.results, goldens or (), options, loaded.commands),
        judged=goldens is not None,
    )


def _trial(result: TrialResult) -> Trial:
    """The trial that a result is of. Its name is made anew: fields that its workload did not have
    when it was measured have their defaults. UserError for a log's that is known in part only."""
    if "source" in result.environment and "precision" not in result.trial["workload"]:
        raise UserError(
            "RUN",
            result.name,
            "its workload is known only from its log, and only in part",
            "run harness ingest LOG experiment=NAME, which states the job",
        )
    return read_record(Trial, result.trial, f"{result.name}: trial")


def _plan_of(path: Path, loaded: Loaded) -> RunPlan:
    """The plan that results without one would have had: their settings, in their order."""
    first: dict[str, Trial] = {}
    for trial in map(_trial, loaded.results):
        first.setdefault(trial.workload.key(), trial)
    places = [place_of(result).gpus for result in loaded.results]
    return RunPlan(
        experiment=path.resolve().name,
        device_name=max(places, key=lambda name: "?" not in name).rpartition("x")[2],
        settings=tuple(PlannedSetting(trial=trial) for trial in first.values()),
        assumptions=(
            "these results were neither planned by harness run nor ranked by the advisor",
        ),
    )
