"""What each pipeline stage may hold of the layers, how a layout says it, and what a setting comes
to on every stage, for everything that the stage may hold.

The model is a run of like layers, with others before and after it (dense layers before those of
experts, say): these stay on the chunks that hold them, and only those of the run move. Memory of
a stage and its seconds do not depend on what the other stages hold: a split is one choice of
each stage, and nothing of it is worked out twice.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.evaluation import CLEAR, clear
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.layout import EVEN
from advisor.job.pipeline_split import ModelChunk, Stages, pipeline_stages
from advisor.models.layer_kind import LayerKind, Role
from advisor.plan.recompute_plan import Setting
from advisor.search.evaluate import Evaluator
from advisor.time.job_time import StagePart

Counts = tuple[int, ...]
"""Layers of each chunk of one stage."""

Place = tuple[int, int]
"""Stage and number of a chunk on it."""


class StageSplits:
    """Every split that is searched, as what each stage may hold.

    choices: of every stage, layers of its chunks, by their sum. A split takes one of each stage,
    all layers together; a chunk that holds none in the job's own split never does, every other one
    at least one. The layers of a stage that move are dealt evenly to its chunks, those left over to
    the first or to the last ones, or as in the job's own split.
    moves: whether layers may move at all; else the job's own split is the only one.
    """

    def __init__(self, job: Job, *, moves: bool) -> None:
        self._job = job
        self.own: Stages = pipeline_stages(job.model, job.layout)
        self.own_counts = tuple(tuple(chunk.num_layers for chunk in held) for held in self.own)
        self._pp = len(self.own)
        self._order = [(stage, k) for k in range(len(self.own[0])) for stage in range(self._pp)]
        before, self._alike, after = _longest_run(job.model.layer_kinds)
        self._first = self._staying(self._order, before)
        self._last = self._staying(self._order[::-1], after)
        self.moves = moves and self._pp > 1
        self.choices = tuple(tuple(self._choices(stage)) for stage in range(self._pp))

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return self._job.model.num_layers

    @cached_property
    def number(self) -> int:
        """How many splits there are."""
        ways = {0: 1}
        for choices in self.choices:
            longer: dict[int, int] = {}
            for layers, count in ways.items():
                for choice in choices:
                    total = layers + sum(choice)
                    if total <= self.num_layers:
                        longer[total] = longer.get(total, 0) + count
            ways = longer
        return ways.get(self.num_layers, 0)

    def own_choices(self) -> tuple[int, ...]:
        """The job's own split, as an index into the choices of each stage."""
        return tuple(
            choices.index(own) for choices, own in zip(self.choices, self.own_counts, strict=True)
        )

    def row(self, number: int) -> Stages:
        """What the stages hold where each takes its choice of that number, or its last: no split of
        the model, but every stage as in one."""
        return tuple(
            self._held(stage, choices[min(number, len(choices) - 1)])
            for stage, choices in enumerate(self.choices)
        )

    def job(self, chosen: tuple[int, ...]) -> Job:
        """The job with one choice of each stage."""
        counts = tuple(self.choices[stage][choice] for stage, choice in enumerate(chosen))
        if counts == self.own_counts:
            return self._job
        text = "" if len({n for held in counts for n in held}) == 1 else self._text(counts)
        fields = {**EVEN, "pipeline_model_parallel_layout": text}
        return replace(self._job, layout=replace(self._job.layout, **fields))

    def _staying(self, order: list[Place], layers: tuple[LayerKind, ...]) -> dict[Place, int]:
        """How many of `layers`, an end of the model, stay on which chunks."""
        found, left = {}, len(layers)
        for stage, index in order:
            if not left:
                break
            found[stage, index] = min(left, self.own_counts[stage][index])
            left -= found[stage, index]
        return found

    def _range(self, stage: int) -> tuple[Counts, tuple[bool, ...]]:
        """Fewest layers of each chunk, and whether more may come: not between those that stay."""
        least, grows = [], []
        # chunks in which the layers of an end of the model give way to the run
        ends = {place for staying in (self._first, self._last) for place in list(staying)[-1:]}
        for index, count in enumerate(self.own_counts[stage]):
            place = stage, index
            fixed = self._first.get(place, 0) + self._last.get(place, 0)
            least.append(max(1, fixed) if count else 0)
            grows.append(bool(count) and (place in ends or not fixed))
        return tuple(least), tuple(grows)

    def _choices(self, stage: int) -> list[Counts]:
        if not self.moves:
            return [self.own_counts[stage]]
        least, grows = self._range(stage)
        others = sum(sum(self._range(k)[0]) for k in range(self._pp) if k != stage)
        found = {self.own_counts[stage]}
        most = self.num_layers - others if any(grows) else sum(least)
        for layers in range(sum(least), most + 1):
            found |= set(_dealt(layers, least, grows))
        return sorted(found, key=lambda counts: (sum(counts), counts))

    def _held(self, stage: int, counts: Counts) -> tuple[ModelChunk, ...]:
        chunks = []
        for index, (count, own) in enumerate(zip(counts, self.own[stage], strict=True)):
            first, last = self._first.get((stage, index), 0), self._last.get((stage, index), 0)
            before, after = own.layers[:first], own.layers[own.num_layers - last : own.num_layers]
            between = (self._alike,) * (count - first - last)
            others = own.layers[own.num_layers :]
            chunks.append(replace(own, layers=(*before, *between, *after, *others)))
        return tuple(chunks)

    def _text(self, counts: tuple[Counts, ...]) -> str:
        """The pipeline_model_parallel_layout, repeats written short."""
        first, *middle, last = [
            _letters(counts[stage][index], self.own[stage][index]) for stage, index in self._order
        ]
        runs = [(chunk, len(list(run))) for chunk, run in groupby(middle)]
        between = "".join(f"({c}|)*{n}" if n > 1 and c else f"{c}|" * n for c, n in runs)
        return f"{first}|{between}{last}"


def _letters(count: int, own: ModelChunk) -> str:
    predicting = sum(kind.role is Role.MULTI_TOKEN_PREDICTION for kind in own.layers)
    layers = "t" * count if count < 4 else f"t*{count}"
    return f"{'E' * own.embedding}{layers}{'m' * predicting}{'L' * own.head}"


def _dealt(layers: int, least: Counts, grows: tuple[bool, ...]) -> Iterator[Counts]:
    """`layers` over chunks of which some may hold more than the `least`, as evenly as can be, those
    left over on the first or on the last."""
    open_chunks = [index for index, more in enumerate(grows) if more]
    for turn in (open_chunks, open_chunks[::-1]):
        counts = list(least)
        for _ in range(layers - sum(least)):
            counts[min(turn, key=counts.__getitem__)] += 1
        yield tuple(counts)


def _longest_run(
    kinds: tuple[LayerKind, ...],
) -> tuple[tuple[LayerKind, ...], LayerKind, tuple[LayerKind, ...]]:
    """The longest run of like layers: those before it, one of it, those after it."""
    runs, start = [], 0
    for kind, alike in groupby(kinds):
        length = len(list(alike))
        runs.append((length, start, kind))
        start += length
    length, start, kind = max(runs, key=lambda run: run[0])
    return kinds[:start], kind, kinds[start + length :]


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
        evaluator = self._evaluator(number)
        parts = evaluator.time.parts(evaluator.plans(setting))
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
            least = evaluator.memory.at_least(evaluator.plans(choice.setting))
            budget = evaluator.budget_bytes
            self._may_fit[key] = [one.fit_probability(budget) > 1 - CLEAR for one in least]
        return self._may_fit[key][stage]

    def fits_unless_simulated(self, stage: int, choice: Choice) -> bool:
        """Whether the stage may fit with all that its passes need, its allocator not simulated."""
        if not self.may_fit(stage, choice):
            return False
        key = choice.setting, choice.number
        if key not in self._fits:
            self._fits[key] = self._evaluator(choice.number).may_fit(choice.setting)
        return self._fits[key][stage]

    def fits(self, stage: int, choice: Choice) -> bool:
        """Whether the stage fits: with its allocator simulated where that is not clear."""
        if not self.fits_unless_simulated(stage, choice):
            return False
        key = choice.setting, choice.number, stage
        if key not in self._settled:
            evaluator = self._evaluator(choice.number)
            certainty = evaluator.job.config.certainty
            detail = evaluator.stage_detail(choice.setting, stage)
            if detail.reserved.fit_probability(evaluator.budget_bytes) < clear(certainty):
                detail = evaluator.stage_detail(choice.setting, stage, simulated=True)
            likely = detail.reserved.fit_probability(evaluator.budget_bytes)
            self._settled[key] = likely >= certainty
        return self._settled[key]

    def refuse(self, stage: int, choice: Choice) -> None:
        """From now on the stage does not fit: a simulation has said so."""
        self._settled[choice.setting, choice.number, stage] = False

    def _evaluator(self, row: int) -> Evaluator:
        if row not in self._evaluators:
            self._evaluators[row] = Evaluator(self.job, self._calibration, self.splits.row(row))
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
