"""Branch and bound over micro batches, settings and splits of the layers, for `--search optimum`;
and over all that a framework can be asked for on a few jobs, after a search of layouts, without
settings that send activations to the host.

What is looked at next is what may be fastest, by bounds that nothing undercuts, until that is a
point that fits. Of a group of settings the bound is that of its fastest member, and it goes when
its smallest one does not fit. Of a setting it is the best split, first whatever it holds, then of
what stages may hold by what they keep at least, then by all that their passes need; last comes the
best split itself, the allocator of its stages simulated where that is not clear.
"""

from collections.abc import Collection, Iterable, Iterator
from enum import IntEnum
from functools import cached_property
from itertools import islice
from math import inf
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.evaluation import Evaluation
from advisor.base.errors import divisors, if_legal
from advisor.base.units import many
from advisor.frameworks.part_types import Decisions, SettingGroup
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.layout import EVEN
from advisor.job.pipeline_split import most_layers_of_chunk
from advisor.plan.recompute_plan import Setting
from advisor.search.best_first import BestFirst
from advisor.search.evaluate import Evaluator, is_legal
from advisor.search.optimum.best_split import ROUNDING, Split, SplitProblem
from advisor.search.optimum.stage_table import Choice, StageSplits, StageTable, worth_it


class Branch(Struct, frozen=True, dict=True):
    """The settings of one job over everything that its stages may hold; `fixed` has the
    job's own split alone."""

    table: StageTable
    fixed: StageTable
    decisions: Decisions

    @property
    def num_points(self) -> int:
        """Settings times the splits that they are legal with."""
        groups = self.decisions.groups
        return sum(len(one.settings) * self.table_of(one).splits.number for one in groups)

    def may_take(self, seconds: float) -> bool:
        """Whether any setting may take less, whatever the stages hold."""
        return any(self.bound(group, seconds) < seconds for group in self.decisions.groups)

    def bound(self, group: SettingGroup, below: float) -> float:
        """No setting of the group takes less; right where that is less than `below`."""
        return problem_of(self.table_of(group), self.fastest(group, below)).bound

    def fastest(self, group: SettingGroup, below: float) -> tuple[tuple[Choice, ...], ...]:
        """What stages may hold under the fastest setting of a group, in a step below so many
        seconds: all that they may hold under any other."""
        key = group.fastest, group.any_split, below
        if key not in self._fastest:
            table = self.table_of(group)
            most = table.own.time.most_microbatch_seconds(below)
            choices = table.choices(group.fastest, most_seconds=most)
            self._fastest[key] = worth_it(choices, table.splits.num_layers)
        return self._fastest[key]

    @cached_property
    def _fastest(self) -> dict[tuple[Setting, bool, float], tuple[tuple[Choice, ...], ...]]:
        return {}

    def table_of(self, group: SettingGroup) -> StageTable:
        """The table of what the group's settings are legal with."""
        return self.table if group.any_split else self.fixed


def problem_of(table: StageTable, choices: tuple[tuple[Choice, ...], ...]) -> SplitProblem:
    """The split of the table's layers over stages that have these choices."""
    return SplitProblem(choices, table.splits.num_layers, table.own.time.combined)


class FoundPoint(Struct, frozen=True, kw_only=True):
    """The first point that fits, None where none does; how many were evaluated whole; bound: no
    point that fits takes less. stopped: by Ctrl-C, with a point that fits if one was at hand."""

    evaluation: Evaluation | None
    evaluated: int
    bound: float
    stopped: bool = False


class _Level(IntEnum):
    """How much of a setting its bound knows."""

    TIME = 0
    KEPT = 1
    PASSES = 2
    SPLIT = 3


class _Node(Struct, frozen=True, kw_only=True):
    """Something whose points all take at least the bound that it waits with."""

    branch: Branch
    table: StageTable
    group: SettingGroup
    setting: Setting | None = None
    level: _Level = _Level.TIME
    choices: tuple[tuple[Choice, ...], ...] = ()
    split: Split | None = None


class PointSearch:
    """The search itself. below: seconds of a point that is known to fit; nothing slower is looked
    for. steps: after so many it ends."""

    def __init__(
        self,
        branches: list[Branch],
        calibration: Calibration,
        below: float,
        steps: int | None = None,
    ) -> None:
        self._branches, self._calibration = branches, calibration
        self._below, self._steps = below, steps
        self._evaluated, self._unsure = 0, inf
        self._waiting = BestFirst[_Node](lambda bound: bound < below)
        self._last: tuple[float, _Node] | None = None

    def run(self) -> FoundPoint:
        """The first point in the order of their times that fits."""
        try:
            evaluation = self._first()
        except KeyboardInterrupt:
            return self._so_far()
        bound = min(evaluation.step_time_seconds if evaluation else self._below, self._unsure)
        return FoundPoint(evaluation=evaluation, evaluated=self._evaluated, bound=bound)

    def _first(self) -> Evaluation | None:
        for branch in self._branches:
            for group in branch.decisions.groups:
                node = _Node(branch=branch, table=branch.table_of(group), group=group)
                self._waiting.add(branch.bound(group, self._below), node)
        for bound, node in islice(self._waiting, self._steps):
            self._last = bound, node
            if node.split is None:
                for seconds, child in self._children(node):
                    self._waiting.add(seconds, child)
            elif found := self._settled(node, node.split):
                return found
        return None

    def _so_far(self) -> FoundPoint:
        """The first of the splits that wait, whose stages fit each by itself; what was not looked
        at takes at least as long as what was looked at last."""
        evaluation, bound = None, 0.0
        if self._last is not None:
            bound = min(self._last[0], self._unsure)
            waiting = (node for _, node in (self._last, *self._waiting))
            settled = (self._settled(node, node.split) for node in waiting if node.split)
            evaluation = next(filter(None, settled), None)
        found = FoundPoint(evaluation=evaluation, evaluated=self._evaluated, bound=bound)
        return replace(found, stopped=True)

    def _children(self, node: _Node) -> Iterator[tuple[float, _Node]]:
        if node.setting is None:
            yield from self._members(node)
        elif node.level < _Level.PASSES:
            yield self._narrowed(node, _Level(node.level + 1))
        else:
            if split := problem_of(node.table, node.choices).best(node.table.fits, self._below):
                yield split.seconds, replace(node, level=_Level.SPLIT, split=split)

    def _members(self, node: _Node) -> Iterator[tuple[float, _Node]]:
        """The settings and groups of a group, if its smallest may fit at all."""
        group = node.group
        if len(group.members) > 1:
            smallest = self._may_fit(node.table, self._choices(node, group.smallest), _Level.KEPT)
            if problem_of(node.table, smallest).bound == inf:
                return
        for member in group.members:
            if isinstance(member, SettingGroup):
                yield node.branch.bound(member, self._below), replace(node, group=member)
            else:
                choices = self._choices(node, member)
                alone = replace(node, setting=member, choices=choices)
                yield problem_of(node.table, choices).bound, alone

    def _choices(self, node: _Node, setting: Setting) -> tuple[tuple[Choice, ...], ...]:
        fastest = node.branch.fastest(node.group, self._below)
        most = node.table.own.time.most_microbatch_seconds(self._below)
        return node.table.choices_among(setting, fastest, most_seconds=most)

    def _narrowed(self, node: _Node, level: _Level) -> tuple[float, _Node]:
        choices = self._may_fit(node.table, node.choices, level)
        bound = problem_of(node.table, choices).bound
        return bound, replace(node, level=level, choices=choices)

    def _may_fit(
        self, table: StageTable, choices: tuple[tuple[Choice, ...], ...], level: _Level
    ) -> tuple[tuple[Choice, ...], ...]:
        ask = table.may_fit if level is _Level.KEPT else table.fits_unless_simulated
        return tuple(
            tuple(choice for choice in held if ask(stage, choice))
            for stage, held in enumerate(choices)
        )

    def _settled(self, node: _Node, split: Split) -> Evaluation | None:
        """The whole evaluation of a split; where that says that it does not fit,
        the next best one waits."""
        table = node.table
        job = table.splits.job(tuple(choice.number for choice in split.choices))
        setting = split.choices[0].setting
        if not is_legal(setting, job):
            self._unsure = min(self._unsure, split.seconds)
            return None
        evaluator = Evaluator(job, self._calibration)
        found = evaluator.evaluate(setting).simulated
        self._evaluated += 1
        if found.fits:
            return found
        self._refuse(table, split, evaluator)
        again = replace(node, level=_Level.PASSES, split=None)
        self._waiting.add(split.seconds * (1 - ROUNDING), again)
        return None

    def _refuse(self, table: StageTable, split: Split, evaluator: Evaluator) -> None:
        """Stages whose own simulation says that they do not fit are not chosen again; where none
        says so, the worst is not, and from there on the proof has a gap."""
        budget = evaluator.budget_bytes
        details = evaluator.stage_details(split.choices[0].setting, simulated=True)
        likely = [one.reserved.fit_probability(budget) for one in details]
        worst = likely.index(min(likely))
        choice = split.choices[worst]
        simulated = evaluator.stage_detail(choice.setting, worst, simulated=True)
        if simulated.reserved.fit_probability(budget) > min(likely) * (1 + ROUNDING):
            self._unsure = min(self._unsure, split.seconds)
        table.refuse(worst, choice)


def branches(job: Job, calibration: Calibration, given: Collection[str] = ()) -> list[Branch]:
    """One for each micro batch of `job`; `given` fields of it (``GROUP.FIELD``) stay. None where
    the framework has its menu alone."""
    found = []
    moves = _moves_layers(job, given)
    decisions = parts_of(job.config.framework).optimum.decisions(job)
    if decisions is None:
        return []
    for one in each_micro_batch(job, free="job.micro_batch_size" not in given):
        table = StageTable(one, calibration, StageSplits(one, moves=moves))
        fixed = table
        if table.splits.moves:
            fixed = StageTable(one, calibration, StageSplits(one, moves=False))
        found.append(Branch(table, fixed, decisions))
    return found


def space(found: list[Branch]) -> tuple[str, ...]:
    """The decisions, a line each; none without branches."""
    if not found:
        return ()
    batches = sorted(branch.table.job.config.micro_batch_size for branch in found)
    splits = found[0].table.splits
    lines = [found[0].decisions.space, f"micro batch {', '.join(map(str, batches))}"]
    if splits.number > 1:
        layers = f"{splits.num_layers} layers over {len(splits.choices)} stages"
        lines.append(f"{many(splits.number)} splits of {layers}")
    return tuple(lines)


def _moves_layers(job: Job, given: Collection[str]) -> bool:
    """Whether the release reads a text of every chunk, and nobody has said how to split."""
    free = not any(f"layout.{name}" in given for name in EVEN)
    pattern = job.model.hybrid_layer_pattern is not None
    splits = parts_of(job.config.framework).jobs.splits(job.config)
    return free and not pattern and splits.by_text


def each_micro_batch(job: Job, *, free: bool) -> Iterator[Job]:
    """The job, and those with every other micro batch that divides its batch, if that is `free`."""
    yield job
    if not free or job.config.samples.token_budget is not None:
        return
    config, settings = job.config, parts_of(job.config.framework).settings
    for size in divisors(config.global_batch_size // job.layout.data_parallel_size):
        if size == config.micro_batch_size:
            continue
        other = if_legal(replace, job, config=replace(config, micro_batch_size=size))
        if other is not None and not settings.check_job(other):
            yield other


def fastest_beyond_the_menu(
    jobs: Iterable[Job], calibration: Calibration, below: float
) -> FoundPoint:
    """The fastest that fits and takes less than `below` seconds; nothing where nothing is soon
    found, or where the menu is all. Jobs with as many layers in a chunk are looked at with the same
    settings.
    """
    branches: list[Branch] = []
    known: dict[int, Decisions | None] = {}
    for job in dict.fromkeys(jobs):
        layers = most_layers_of_chunk(job.model, job.layout)
        if layers not in known:
            known[layers] = parts_of(job.config.framework).optimum.decisions(job)
        decisions = known[layers]
        if decisions is not None:
            table = StageTable(job, calibration, StageSplits(job, moves=False))
            branches.append(Branch(table, table, decisions))
    return PointSearch(branches, calibration, below, _STEPS).run()


_STEPS: Final = 500
"""Of a search beyond the menu, some seconds."""
