"""What a report rests on: the plan of a run, its results, and their comparison with goldens."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.base.fields import read_record
from advisor.base.grouping import grouped
from advisor.hardware.catalogue import load_gpu
from advisor.hardware.gpu import Gpu
from harness.base.collections import known
from harness.judge.comparison import Comparison, compare
from harness.judge.golden import Golden
from harness.judge.identity import MeasuredPlace, place_of
from harness.judge.metrics import PEAKS
from harness.judge.predicted import SettingOutcome, outcomes
from harness.judge.results import Loaded, load_results, reproduction_command
from harness.judge.stats import iqr
from harness.judge.trial_rows import CompareOptions
from harness.trial.result import MemoryPeak, TrialResult, most
from harness.trial.store import RunFolder
from harness.trial.trial import Device, PlannedSetting, RunPlan, Trial, world_size


class Numbers(Struct, frozen=True, kw_only=True):
    """One process, or the median of several; of memory the most. None where it is not known.
    step_spread: IQR of the steps over their median. joules_per_token: of one GPU, as NVML read it.
    model_tflops_per_gpu: Megatron's model FLOPs; hardware_tflops_per_gpu: also what is computed
    again; mfu, hfu: these over the dense peak. Peaks are those of the fullest rank."""

    step_time_seconds: float | None = None
    step_spread: float | None = None
    tokens_per_second_per_gpu: float | None = None
    joules_per_token: float | None = None
    model_tflops_per_gpu: float | None = None
    hardware_tflops_per_gpu: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    peak_allocated_bytes: int | None = None
    peak_active_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_nvml_used_bytes: int | None = None

    def peak_bytes(self, which: str) -> int | None:
        """The peak called ``allocated``, ``active``, ``reserved`` or ``nvml_used``."""
        found: int | None = getattr(self, f"peak_{which}_bytes")
        return found


def numbers_of(result: TrialResult, gpu: Gpu | None) -> Numbers:
    """Of one trial, whether it was measured or not."""
    memory = peaks(result.memory)
    seconds = result.times.seconds if result.times else ()
    if not seconds:
        return memory
    workload, step = result.trial["workload"], median(seconds)
    per_gpu = 1 / (step * world_size(workload))
    tokens = workload["seq_length"] * workload["global_batch_size"]
    peak = gpu.peak_flops(Precision(workload["precision"])) if gpu else None
    model, hardware = (
        getattr(result.flops, name) * per_gpu if result.flops else None
        for name in ("model", "hardware")
    )
    return replace(
        memory,
        step_time_seconds=step,
        step_spread=iqr(seconds) / step,
        tokens_per_second_per_gpu=tokens * per_gpu,
        joules_per_token=_over(result.load.power_watts if result.load else None, tokens * per_gpu),
        model_tflops_per_gpu=_over(model, 1e12),
        hardware_tflops_per_gpu=_over(hardware, 1e12),
        mfu=_over(model, peak),
        hfu=_over(hardware, peak),
    )


def peaks(ranks: Sequence[MemoryPeak]) -> Numbers:
    """The four peaks, each of the rank that has most."""
    return Numbers(**{name: most(ranks, field) for name, field in PEAKS.items()})


def over_repeats(processes: Sequence[Numbers]) -> Numbers:
    """Median over processes; of memory the most."""
    names = Numbers.__struct_fields__
    values = {name: known(getattr(one, name) for one in processes) for name in names}
    join = {name: max if name.endswith("_bytes") else median for name in names}
    return Numbers(**{name: join[name](own) for name, own in values.items() if own})


def _over(value: float | None, unit: float | None) -> float | None:
    return None if value is None or unit is None else value / unit


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
        return any(one.trial.workload.device is Device.CPU for one in self.plan.settings)

    @property
    def tokens_unit(self) -> str:
        """What throughput is counted in."""
        return "tokens/s" if self.on_cpu else "tokens/s/GPU"

    @property
    def peak(self) -> str:
        """Which peak decides what fits: reserved where every trial has one, else allocated."""
        sizes = [rank.reserved for result in self.results.values() for rank in result.memory]
        return "allocated" if None in sizes or not sizes else "reserved"

    @property
    def gpu(self) -> Gpu | None:
        """Datasheet of the GPU it ran on; None on a CPU, and for a type that is not described."""
        try:
            return None if self.on_cpu else load_gpu(self.plan.device_name)
        except UserError:
            return None

    @property
    def place(self) -> MeasuredPlace | None:
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

    def results_of(self, setting: PlannedSetting) -> tuple[TrialResult, ...]:
        """Results of all repeats of a setting."""
        return tuple(known(self.results.get(trial.name) for trial in setting.trials()))

    def numbers(self, setting: PlannedSetting) -> Numbers:
        """Over all repeats of a setting."""
        return over_repeats([numbers_of(one, self.gpu) for one in self.results_of(setting)])

    def command(self, trial: Trial) -> str:
        """What runs a trial again."""
        return reproduction_command(self.plan.experiment, trial)


def load_facts(
    path: Path, goldens: Sequence[Golden] | None = None, options: CompareOptions | None = None
) -> Facts:
    """The facts of a run's folder, or of any folder of results; UserError where it holds none.
    goldens: what the results are judged by; None where nobody asked for a verdict."""
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
        relation = "its workload is known only from its log, and only in part"
        hint = "run harness ingest LOG experiment=NAME, which states the job"
        raise UserError("RUN", result.name, relation, hint)
    return read_record(Trial, result.trial, f"{result.name}: trial")


_NOT_PLANNED: Final = "these results were neither planned by harness run nor ranked by the advisor"


def _plan_of(path: Path, loaded: Loaded) -> RunPlan:
    """The plan that results without one would have had: their settings, in their order."""
    trials = grouped((trial.workload.key(), trial) for trial in map(_trial, loaded.results))
    places = [place_of(result).gpus for result in loaded.results]
    return RunPlan(
        experiment=path.resolve().name,
        device_name=max(places, key=lambda name: "?" not in name).rpartition("x")[2],
        settings=tuple(PlannedSetting(trial=same[0]) for same in trials.values()),
        assumptions=(_NOT_PLANNED,),
    )
