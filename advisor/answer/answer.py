"""The whole answer to one request: evaluations ranked, what was refused, and what else helps."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from advisor.answer.evaluation import Evaluation
from advisor.hardware.calibration import Provenance
from advisor.job.job import Job
from advisor.plan.recompute_plan import Setting

SAME_TIME = 0.0005
"""Step times that differ by a smaller share are the same."""


class Verification(Struct, frozen=True, kw_only=True):
    """Peak allocated bytes of one stage as Megatron Core itself needs them on fake tensors, next to
    the prediction of the same: `differences` says in what the rehearsed job is another one.

    explanation: the component that a difference above 2 % comes from. refused: why this candidate
    was not rehearsed.
    """

    stage: int
    predicted_bytes: int | None = None
    rehearsed_bytes: int | None = None
    explanation: str = ""
    differences: str = ""
    refused: str = ""


class Basis(StrEnum):
    """What a row rests on: a run of just this setting of this job, runs of jobs like it, or the
    calibration alone."""

    MEASURED = "measured"
    LEARNED = "learned"
    SHIPPED = "shipped"


class Measured(Struct, frozen=True, kw_only=True):
    """What was measured where just this setting of this job was run, by so many trials: the median
    step and the highest peaks; null where nobody says. ran_out: of memory."""

    trials: int
    step_time_seconds: float | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    ran_out: bool = False


class RankedEvaluation(Struct, frozen=True, kw_only=True):
    """An evaluation with its place: 1 is best.

    dominated_by: rank of a row on the Pareto front that needs no more memory and no more time; None
    on the front itself. same_as: rank of the first row that runs alike: its peak in tenths of a GiB
    and, except SAME_TIME, its step time. folded: a page does without the row, because of these
    two or as it is between others of a ladder. notes: in a few words what the setting buys, or that
    it buys nothing. preset: the setting that the job's preset ships with. verification: where
    --verify asked for it. basis, measured: where --calibration names runs.
    """

    rank: int
    evaluation: Evaluation
    dominated_by: int | None = None
    same_as: int | None = None
    folded: bool = False
    notes: tuple[str, ...] = ()
    preset: bool = False
    verification: Verification | None = None
    basis: Basis = Basis.SHIPPED
    measured: Measured | None = None

    @property
    def pareto(self) -> bool:
        """Whether no other needs less of memory or time and no more of the other."""
        return self.dominated_by is None

    @property
    def note(self) -> str:
        """All that is said of it."""
        return "; ".join(self.notes)


class Toss(Struct, frozen=True, kw_only=True):
    """Two rows of which nobody can say which is the faster: why, and the command that measures
    both. beside: with which other options it runs them, or why there is no command."""

    ranks: tuple[int, int]
    why: str
    command: str = ""
    beside: str = ""


class Rejection(Struct, frozen=True, kw_only=True):
    """A setting that the framework refuses or that cannot act, and why."""

    setting: Setting
    rule: str
    reason: str
    fix: str
    source: str


class Remedy(Struct, frozen=True, kw_only=True):
    """A change outside recompute: effect against the best setting as asked, in bytes and seconds
    (negative is less). fit_probability: with the change."""

    change: str
    effect_bytes: int
    effect_seconds: float
    why: str
    fit_probability: float = 1.0


class LongestUntil(Struct, frozen=True):
    """The longest row of all ranks until a step, with even odds that none is longer: its tokens,
    the peak of a rank that has it, and how likely that fits."""

    step: int
    tokens: int
    peak_reserved_bytes: int
    fit_probability: float


class SampleNote(Struct, frozen=True, kw_only=True):
    """Microbatches of samples of several lengths: rows of tokens, padded.

    mean_length, longest: tokens of a sample. rows: of a microbatch. capacity: tokens that a row of
    several samples has room for, 0 where it holds one. worst_tokens: of the longest row that may
    come, of which the answer's peak is; mean_tokens: of the rows that its time is of.
    microbatches: of a rank in a step. padding: share of computed tokens that are of no sample.
    imbalance: what the slowest rank has more than the mean one, as a share of that. until: the
    longest row until some steps; empty where each step may have the worst.
    most_tokens_that_fit: of a row; null where the worst one fits, 0 where none does.
    share_of_steps_that_run_out: how likely a step has a longer one.
    even_odds_by_step: half of the runs have met one by then; null where the first likely has one.
    """

    mean_length: float
    longest: int
    rows: int
    capacity: int
    worst_tokens: int
    mean_tokens: int
    microbatches: int
    padding: float
    imbalance: float
    until: tuple[LongestUntil, ...] = ()
    most_tokens_that_fit: int | None = None
    share_of_steps_that_run_out: float = 0.0
    even_odds_by_step: int | None = None


class LearnedTerm(Struct, frozen=True, kw_only=True):
    """By how much measured runs move a part of the predictions, as a share of it: mean, standard
    deviation, and that before any run."""

    mean: float
    sigma: float
    shipped_sigma: float


class LearnedNote(Struct, frozen=True, kw_only=True):
    """What was learned from measured runs, for jobs like the answer's.

    sources: their folders. trials: how many were used; left_out: why others were not, with their
    number. within: the jobs that it holds for, in words, and step_time and memory by term; empty
    where it holds for no row. outside: why it does not for the job of the answer; empty where it
    does. scatter: how many times as far step times and allocated bytes lie off one calibration as
    its standard deviations say, by which those are widened; 1 where runs agree.
    """

    sources: tuple[str, ...]
    trials: int
    left_out: tuple[str, ...] = ()
    within: str = ""
    outside: str = ""
    step_time: dict[str, LearnedTerm] = field(default_factory=dict)
    memory: dict[str, LearnedTerm] = field(default_factory=dict)
    scatter: dict[str, float] = field(default_factory=dict)


class CalibrationNote(Struct, frozen=True, kw_only=True):
    """Which calibration stands after the times. known_error: what published runs like the job say
    of its predictions, where all of them lie on one side; else empty. learned: from the runs of
    --calibration."""

    name: str
    provenance: Provenance
    summary: str
    known_error: str = ""
    learned: LearnedNote | None = None


class OptimumRow(Struct, frozen=True, kw_only=True):
    """The candidate that is the optimum: its rank, and its setting as `--recompute` takes it."""

    rank: int
    spec: str


class Optimum(Struct, frozen=True, kw_only=True):
    """What `--search optimum` has found and proven, by the model's times and bytes.

    best: None where nothing in the space fits. bound_seconds: no point of the space that fits takes
    less; None where none fits, or the search was stopped before it had one. gap: step time of the
    best over that bound, less one; 0 where the best is proven to be the optimum, None where there
    is no bound. gain: share by which it takes less than the best of the menu,
    None where none of the menu fits. space: its decisions, a line each. num_points: how many points
    it has, None where they are not counted. evaluated and excluded_by_bound: how many of them were
    looked at, and how many a proven bound left out. beyond: what the framework cannot say, and what
    it would win, a line each.
    """

    best: OptimumRow | None
    bound_seconds: float | None
    gap: float | None
    gain: float | None
    space: tuple[str, ...]
    num_points: int | None
    evaluated: int
    excluded_by_bound: int
    beyond: tuple[str, ...] = ()


class FastestFound(Struct, frozen=True, kw_only=True):
    """The fastest row near the job as typed, where it wins: `changes` has what its job has and the
    job as typed has not, ``GROUP.FIELD`` -> value.

    gain: share of the step time that it saves against the fastest row that fits as typed; None
    where nothing fits as typed. rests_on: what of it few published runs show, in words, empty where
    that is nothing; without: the best row that does without it.
    """

    candidate: RankedEvaluation
    changes: Mapping[str, Any]
    gain: float | None = None
    rests_on: tuple[str, ...] = ()
    without: RankedEvaluation | None = None


class SearchNote(Struct, frozen=True, kw_only=True):
    """How far a search went: settings that were evaluated, and those that a bound excludes; seconds
    that no layout can undercut, None where no bound is known; whole: nothing is left to search."""

    evaluated: int
    excluded_by_bound: int = 0
    least_possible_seconds: float | None = None
    whole: bool = False


class Answer(Struct, frozen=True, kw_only=True):
    """The whole answer to one request; `assumptions` are the choices the advisor made itself.

    recipe: the published one that the job builds on; recipe_framework: whose it is, where that is
    known; recipe_differs: in what it is for another job, a line each. origin: where each value of
    the job comes from, ``GROUP.FIELD`` -> ``given``, ``recipe NAME``, ``default of FRAMEWORK
    RELEASE``, ``assumed: WHY`` or ``searched``. differences: what the job has next to the layout
    that the usual answer to the request has not, and next to the precision that it would not have
    in 16 bits. usual: the job of that answer, where a search ranks others next to it; searched: a
    search has chosen the layout; beside_degrees: what a request gives to have the usual job with
    degrees that are given, ``GROUP.FIELD`` -> value, where they leave its recipe after; stopped:
    it was stopped, and its rows are the best so far. toss: two rows to measure before one is
    chosen. optimum: the proof, where `--search optimum` asked for it. fastest_found: the fastest of
    the jobs near the one that was typed, where it wins; search: how far was searched, if at all.
    """

    job: Job
    assumptions: tuple[str, ...]
    calibration: CalibrationNote
    evaluated: int
    candidates: tuple[RankedEvaluation, ...]
    rejected: tuple[Rejection, ...]
    remedies: tuple[Remedy, ...]
    recipe: str = ""
    recipe_framework: str | None = None
    recipe_differs: tuple[str, ...] = ()
    origin: Mapping[str, str] = field(default_factory=dict)
    differences: tuple[str, ...] = ()
    toss: Toss | None = None
    optimum: Optimum | None = None
    usual: Job | None = None
    beside_degrees: Mapping[str, Any] = field(default_factory=dict)
    searched: bool = False
    stopped: bool = False
    fastest_found: FastestFound | None = None
    search: SearchNote | None = None

    @property
    def fits(self) -> bool:
        """Whether any candidate fits."""
        return any(candidate.evaluation.fits for candidate in self.candidates)

    @property
    def chosen(self) -> RankedEvaluation | None:
        """The best candidate that fits, else the best one; None where nothing could be
        evaluated."""
        fitting = (c for c in self.candidates if c.evaluation.fits)
        return next(fitting, self.candidates[0] if self.candidates else None)

    @property
    def leading(self) -> RankedEvaluation | None:
        """The row that the first sentence names, whose flags are printed: the fastest found where
        that wins, else the choice of the job as typed."""
        return self.fastest_found.candidate if self.fastest_found else self.chosen


class MemoryLine(Struct, frozen=True, kw_only=True):
    """One line of `--explain`: bytes of one named tensor or term on the worst rank.

    `count` copies of `unit_bytes` each (layers x microbatches in flight, say); `shape` is empty
    for terms that are no tensor.
    """

    component: str
    name: str
    shape: str
    unit_bytes: int
    count: float
    source: str

    @property
    def num_bytes(self) -> int:
        """Bytes of all copies."""
        return round(self.unit_bytes * self.count)


class TimeLine(Struct, frozen=True):
    """One line of `--explain`: seconds of one step spent on one operator in one phase."""

    phase: str
    operator: str
    seconds: float
    bound_by: str
