"""The parts of a comparison: one row for each metric of each trial, or for a trial as a whole."""

from msgspec import Struct

from advisor.base.units import human_bytes
from harness.judge.identity import Difference
from harness.judge.stats import Interval, Repeats
from harness.judge.verdict import Verdict
from harness.trial.result import TrialResult


class Row(Struct, frozen=True, kw_only=True):
    """One line of a comparison.

    label, workload_key: whose. metric: empty where the row is about the trial as a whole. golden,
    new: medians in the metric's unit. change: new / golden - 1; interval: where it lies with 95 %
    confidence. limit: the change at which it is a regression, signed. shown: golden and new as
    text. notes: what to know of the numbers. two_sided: the limit holds in both directions.
    cpu_time: the numbers are times of a CPU.
    """

    label: str
    workload_key: str
    verdict: Verdict
    metric: str = ""
    golden: float | None = None
    new: float | None = None
    change: float | None = None
    interval: Interval | None = None
    limit: float | None = None
    two_sided: bool = False
    cpu_time: bool = False
    shown: tuple[str, str] = ("", "")
    reason: str = ""
    repeats: Repeats | None = None
    notes: tuple[str, ...] = ()

    @property
    def identifier(self) -> str:
        """Name of the row in other tools: label and metric."""
        return f"{self.label} {self.metric}".strip()


class EnvironmentChange(Struct, frozen=True, kw_only=True):
    """What is not as it was when the golden of a trial was taken.

    unrecorded: what the golden does not say about its environment.
    """

    label: str
    differences: tuple[Difference, ...] = ()
    unrecorded: tuple[str, ...] = ()


def describe(result: TrialResult) -> str:
    """Evidence of a trial that is not ok: phase, rank, how far over, last words."""
    evidence = result.evidence
    if evidence is None:
        return ""
    where = f" in {evidence.phase}" + ("" if evidence.rank is None else f" on rank {evidence.rank}")
    over = f", {human_bytes(evidence.over_bytes)} over" if evidence.over_bytes else ""
    words = " ".join(evidence.message.split())
    return f"{where}{over}: {words}" if words else where + over
