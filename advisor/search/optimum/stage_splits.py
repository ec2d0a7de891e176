"""What each pipeline stage may hold of the layers, and how a layout says it.

The model is a run of like layers, with others before and behind it (dense layers before those of
experts, say): these stay on the chunks that hold them, and only those of the run move.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import groupby

from msgspec.structs import replace

from advisor.job.job import Job
from advisor.job.layout import EVEN
from advisor.job.pipeline_split import ModelChunk, Stages, pipeline_stages
from advisor.models.layer_kind import LayerKind, Role

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
        self.own_counts = tuple(_counts(held) for held in self.own)
        self._pp = len(self.own)
        self._order = [
            (stage, index) for index in range(len(self.own[0])) for stage in range(self._pp)
        ]
        before, self._alike, behind = _longest_run(job.model.layer_kinds)
        self._first = self._staying(self._order, before)
        self._last = self._staying(self._order[::-1], behind)
        self.moves = moves and self._pp > 1
        self.choices: tuple[tuple[Counts, ...], ...] = tuple(
            tuple(self._choices(stage)) for stage in range(self._pp)
        )

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
        for index, count in enumerate(self.own_counts[stage]):
            place = stage, index
            fixed = self._first.get(place, 0) + self._last.get(place, 0)
            inner = place in (_inner(self._first), _inner(self._last)) or not fixed
            least.append(max(1, fixed) if count else 0)
            grows.append(bool(count) and inner)
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
            before, behind = own.layers[:first], own.layers[own.num_layers - last : own.num_layers]
            between = (self._alike,) * (count - first - last)
            beside = own.layers[own.num_layers :]
            chunks.append(replace(own, layers=(*before, *between, *behind, *beside)))
        return tuple(chunks)

    def _text(self, counts: tuple[Counts, ...]) -> str:
        """The pipeline_model_parallel_layout, repeats written short."""
        chunks = [
            _letters(counts[stage][index], self.own[stage][index]) for stage, index in self._order
        ]
        first, *middle, last = chunks
        runs = [(chunk, len(list(run))) for chunk, run in groupby(middle)]
        between = "".join(f"({c}|)*{n}" if n > 1 and c else f"{c}|" * n for c, n in runs)
        return f"{first}|{between}{last}"


def _counts(held: tuple[ModelChunk, ...]) -> Counts:
    return tuple(chunk.num_layers for chunk in held)


def _letters(count: int, own: ModelChunk) -> str:
    predicting = sum(kind.role is Role.MULTI_TOKEN_PREDICTION for kind in own.layers)
    layers = "t" * count if count < 4 else f"t*{count}"
    return f"{'E' * own.embedding}{layers}{'m' * predicting}{'L' * own.head}"


def _inner(staying: dict[Place, int]) -> Place | None:
    """The chunk in which the layers of an end of the model give way to the run."""
    return list(staying)[-1] if staying else None


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
    """The longest run of like layers: those before it, one of it, those behind it."""
    runs, start = [], 0
    for kind, alike in groupby(kinds):
        length = len(list(alike))
        runs.append((length, start, kind))
        start += length
    length, start, kind = max(runs, key=lambda run: run[0])
    return kinds[:start], kind, kinds[start + length :]
