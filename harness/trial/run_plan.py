"""What a run is: the trials of its settings, in the advisor's order. Data only."""

import hashlib
import os
import re
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from harness.trial.result import TrialResult, TrialStatus
from harness.trial.trial import Trial, Workload, layout_name


class PlannedSetting(Struct, frozen=True, kw_only=True):
    """One setting of a run: its trial of repeat 0, and why it is not run, if it is not. rank: place
    in the advisor's order among the settings of this run, 1 first; None where the setting is
    skipped, or unknown to the advisor. label: what it is called in progress beyond its setting."""

    trial: Trial
    rank: int | None = None
    skip: str = ""
    label: str = ""

    @property
    def spec(self) -> str:
        """The setting as the advisor spells it."""
        return self.trial.workload.recompute

    def trials(self) -> tuple[Trial, ...]:
        """One trial a repeat; a skipped setting has one. Only the first may be pruned."""
        count = 1 if self.skip else self.trial.measurement.repeats
        again = replace(self.trial, limit_seconds=None)
        return (self.trial, *(replace(again, repeat=repeat) for repeat in range(1, count)))

    def repeated(self, count: int) -> "PlannedSetting":
        """The same, with `count` processes."""
        measurement = replace(self.trial.measurement, repeats=count)
        return replace(self, trial=replace(self.trial, measurement=measurement))


class RunPlan(Struct, frozen=True, kw_only=True):
    """Everything that `harness run` will do. device_name: the GPU's type, or ``cpu``. assumptions:
    what the plan says about itself. ended: why a sweep, whose plan grows, is over; else empty.
    tied: the leading trials of a sweep that the noise does not tell apart."""

    experiment: str
    device_name: str
    settings: tuple[PlannedSetting, ...]
    assumptions: tuple[str, ...] = ()
    ended: str = ""
    tied: tuple[str, ...] = ()

    @property
    def default_name(self) -> str:
        """Folder name that the same command in the same environment always gives: experiment,
        device, settings, variables that change times or memory, and what backend `command` runs."""
        trials = [setting.trial for setting in self.settings]
        words = sorted(trial.workload.key() for trial in trials)
        words += sorted({trial.command.template for trial in trials if trial.command})
        words += sorted({text for trial in trials for text in trial.variables})
        digest = hashlib.sha256(" ".join(words).encode()).hexdigest()[:6]
        device = self.settings[0].trial.workload.device if self.settings else "none"
        path = os.path.basename(os.path.abspath(self.experiment))  # of a model, less its suffix
        return f"{re.sub(r'[.](json|ya?ml)$', '', path)}-{device}-{digest}"

    def name_of(self, workload: Workload) -> str:
        """A setting in a table, with its micro batch and layout where they differ in the plan."""
        workloads = [setting.trial.workload for setting in self.settings]
        words = [workload.recompute]
        if len({one.micro_batch_size for one in workloads}) > 1:
            words.append(f"mbs {workload.micro_batch_size}")
        if len({one.layout for one in workloads}) > 1:
            words.append(layout_name(workload.layout))
        return ", ".join(words)

    def trials(self) -> Iterator[tuple[PlannedSetting, Trial]]:
        """All trials as they run: repeats are interleaved, so that drift favours no setting."""
        for repeat in range(max((len(setting.trials()) for setting in self.settings), default=0)):
            for setting in self.settings:
                if repeat < len(setting.trials()):
                    yield setting, setting.trials()[repeat]


def joined_plan(first: RunPlan, second: RunPlan) -> RunPlan:
    """Settings of both, those of `first` in front; one that is in both has the more repeats."""
    settings = {setting.trial.workload.key(): setting for setting in first.settings}
    for setting in second.settings:
        known = settings.get(setting.trial.workload.key(), setting)
        more = max((known, setting), key=lambda one: one.trial.measurement.repeats)
        settings[setting.trial.workload.key()] = more
    return replace(second, settings=tuple(settings.values()))


def same_question(asked: Trial, answered: Trial, result: TrialResult) -> bool:
    """Whether `result` of `answered` is also the answer to `asked`. The prediction and the number
    of repeats do not change a measurement; the time limit matters where it was hit."""
    same_time = asked.measurement.timeout_seconds == answered.measurement.timeout_seconds
    return same_trial(asked, answered) and (same_time or result.status is not TrialStatus.TIMEOUT)


def same_trial(asked: Trial, other: Trial) -> bool:
    """Whether `other` measures what is asked, if it does so in time."""
    own = asked.measurement
    alike = replace(other.measurement, repeats=own.repeats, timeout_seconds=own.timeout_seconds)
    return (
        asked.workload == other.workload
        and asked.command == other.command
        and asked.variables == other.variables
        and asked.repeat == other.repeat
        and asked.stages == other.stages
        and own == alike
    )
