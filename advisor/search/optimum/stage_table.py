"""What a setting comes to on every stage, for everything that the stage may hold.

Memory of a stage and its seconds do not depend on what the other stages hold: a split is one choice
of each stage, and nothing of it is worked out twice.
"""

from collections.abc import Sequence
from functools import cached_property
from math import inf

from msgspec import Struct

from advisor.answer.evaluation import CLEAR, LIKELY
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.plan.recompute_plan import Setting
from advisor.search.evaluate import Evaluator
from advisor.search.optimum.stage_splits import StageSplits
from advisor.time.job_time import StagePart

_ROWS_OF_A_NUMBER = 5
"""Of so many rows in a row some have all ways of holding one number of layers, of which there are
three: see StageSplits.choices. One layer more takes longer, each way."""


class Choice(Struct, frozen=True):
    """One of the things that a stage may hold, under a setting: its number among the stage's
    choices, its layers, and its seconds."""

    number: int
    layers: int
    part: StagePart
    setting: Setting


class StageTable:
    """All stages of one job with everything that they may hold."""

    def __init__(self, job: Job, calibration: Calibration, splits: StageSplits) -> None:
        self.job, self.splits, self._calibration = job, splits, calibration
        self._evaluators: dict[int, Evaluator] = {}
        self._fits: dict[tuple[Setting, int], list[bool]] = {}
        self._may_fit: dict[tuple[Setting, int], list[bool]] = {}
        self._settled: dict[tuple[Setting, int, int], bool] = {}
        self.num_rows = max(len(choices) for choices in splits.choices)
        self._own_rows = frozenset(splits.own_choices())

    @cached_property
    def own(self) -> Evaluator:
        """Of the job as it is."""
        return Evaluator(self.job, self._calibration)

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        return len(self.splits.choices)

    def choices(
        self, setting: Setting, *, most_seconds: float = inf
    ) -> tuple[tuple[Choice, ...], ...]:
        """Of every stage, what it may hold and what that takes, `most_seconds` of a microbatch at
        most. Once stages take more whatever way they hold a number of layers, no more layers are
        looked at; the job's own split is in any case."""
        found: list[list[Choice]] = [[] for _ in range(self.num_stages)]
        over = 0
        for number in range(self.num_rows):
            if over >= _ROWS_OF_A_NUMBER and number not in self._own_rows:
                continue
            over += 1
            for stage, choice in enumerate(self.row(setting, number)):
                if choice.number == number and choice.part.microbatch <= most_seconds:
                    found[stage].append(choice)
                    over = 0
        return tuple(map(tuple, found))

    def choices_among(
        self, setting: Setting, others: Sequence[Sequence[Choice]], *, most_seconds: float
    ) -> tuple[tuple[Choice, ...], ...]:
        """The same, of what `others` hold alone: of a setting that takes no less."""
        wanted = [{choice.number for choice in held} for held in others]
        found: list[list[Choice]] = [[] for _ in wanted]
        for number in sorted(set().union(*wanted)):
            for stage, choice in enumerate(self.row(setting, number)):
                if number in wanted[stage] and choice.part.microbatch <= most_seconds:
                    found[stage].append(choice)
        return tuple(map(tuple, found))

    def row(self, setting: Setting, number: int) -> list[Choice]:
        """Of every stage its choice of that number, or its last."""
        parts = self._evaluator(number).parts(setting)
        numbers = (min(number, len(held) - 1) for held in self.splits.choices)
        return [
            Choice(its, sum(held[its]), part, setting)
            for its, held, part in zip(numbers, self.splits.choices, parts, strict=True)
        ]

    def may_fit(self, stage: int, choice: Choice) -> bool:
        """Whether what is kept in the stage at least may fit."""
        key = choice.setting, choice.number
        if key not in self._may_fit:
            evaluator = self._evaluator(choice.number)
            least = evaluator.least_reserved(choice.setting)
            budget = evaluator.budget_bytes
            self._may_fit[key] = [one.fit_probability(budget) > 1 - CLEAR for one in least]
        return self._may_fit[key][stage]

    def fits_unless_replayed(self, stage: int, choice: Choice) -> bool:
        """Whether the stage may fit with all that its passes need, its allocator not replayed."""
        if not self.may_fit(stage, choice):
            return False
        key = choice.setting, choice.number
        if key not in self._fits:
            self._fits[key] = self._evaluator(choice.number).may_fit(choice.setting)
        return self._fits[key][stage]

    def fits(self, stage: int, choice: Choice) -> bool:
        """Whether the stage fits: with its allocator replayed where that is not clear."""
        if not self.fits_unless_replayed(stage, choice):
            return False
        key = choice.setting, choice.number, stage
        if key not in self._settled:
            evaluator = self._evaluator(choice.number)
            detail = evaluator.stage_detail(choice.setting, stage)
            if detail.reserved.fit_probability(evaluator.budget_bytes) < CLEAR:
                detail = evaluator.stage_detail(choice.setting, stage, replayed=True)
            self._settled[key] = detail.reserved.fit_probability(evaluator.budget_bytes) >= LIKELY
        return self._settled[key]

    def refuse(self, stage: int, choice: Choice) -> None:
        """From now on the stage does not fit: a replay has said so."""
        self._settled[choice.setting, choice.number, stage] = False

    def _evaluator(self, row: int) -> Evaluator:
        if row not in self._evaluators:
            stages = self.splits.row(row)
            self._evaluators[row] = Evaluator(self.job, self._calibration, stages)
        return self._evaluators[row]


def worth_it(
    choices: Sequence[Sequence[Choice]], num_layers: int
) -> tuple[tuple[Choice, ...], ...]:
    """`choices` without those of so few layers that the other stages cannot hold the rest."""
    most = [max((choice.layers for choice in held), default=0) for held in choices]
    left = num_layers - sum(most)
    return tuple(
        tuple(choice for choice in held if choice.layers >= left + most[stage])
        for stage, held in enumerate(choices)
    )
