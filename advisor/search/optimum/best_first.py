"""Branch and bound over micro batches, settings and splits: what is looked at next is what may be
fastest, by bounds that nothing undercuts, until that is a point that fits.

Of a group of settings the bound is that of its fastest member, and it goes when its smallest one
does not fit. Of a setting it is the best split, first whatever it holds, then of what stages may
hold by what they keep at least, then by all that their passes need; last comes the best split
itself, the allocator of its stages simulated where that is not clear.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import cached_property
from heapq import heappop, heappush
from itertools import count
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.evaluation import Evaluation
from advisor.frameworks.part_types import Decisions, SettingGroup
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.plan.recompute_plan import Setting
from advisor.search.evaluate import Evaluator
from advisor.search.optimum.best_split import ROUNDING, Split, SplitProblem
from advisor.search.optimum.stage_table import Choice, StageTable, worth_it


class Branch(Struct, frozen=True, dict=True):
    """The settings of one job over everything that its stages may hold; `fixed` has the
    job's own split alone."""

    table: StageTable
    fixed: StageTable
    decisions: Decisions

    @property
    def num_points(self) -> int:
        """Settings times the splits that they are legal with."""
        return sum(
            len(group.settings) * (self.of(group).splits.number) for group in self.decisions.groups
        )

    def may_take(self, seconds: float) -> bool:
        """Whether any setting may take less, whatever the stages hold."""
        return any(self.bound(group, seconds) < seconds for group in self.decisions.groups)

    def bound(self, group: SettingGroup, below: float) -> float:
        """No setting of the group takes less; right where that is less than `below`."""
        return problem_of(self.of(group), self.fastest(group, below)).bound

    def fastest(self, group: SettingGroup, below: float) -> tuple[tuple[Choice, ...], ...]:
        """What stages may hold under the fastest setting of a group, in a step below so many
        seconds: all that they may hold under any other."""
        key = group.fastest, group.any_split, below
        if key not in self._fastest:
            table = self.of(group)
            most = table.own.most_microbatch_seconds(below)
            choices = table.choices(group.fastest, most_seconds=most)
            self._fastest[key] = worth_it(choices, table.splits.num_layers)
        return self._fastest[key]

    @cached_property
    def _fastest(self) -> dict[tuple[Setting, bool, float], tuple[tuple[Choice, ...], ...]]:
        return {}

    def of(self, group: SettingGroup) -> StageTable:
        """The table of what the group's settings are legal with."""
        return self.table if group.any_split else self.fixed


def problem_of(table: StageTable, choices: tuple[tuple[Choice, ...], ...]) -> SplitProblem:
    """The split of the table's layers over stages that have these choices."""
    return SplitProblem(choices, table.splits.num_layers, table.own.combined)


class Found(Struct, frozen=True, kw_only=True):
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


class BestFirst:
    """The search itself. below: seconds of a point that is known to fit; nothing slower is looked
    for. is_legal: asked of the one point that is to be the answer."""

    def __init__(
        self,
        branches: list[Branch],
        calibration: Calibration,
        is_legal: Callable[[Setting, Job], bool],
        below: float = inf,
    ) -> None:
        self._branches, self._calibration = branches, calibration
        self._is_legal, self._below = is_legal, below
        self._numbers, self._evaluated, self._unsure = count(), 0, inf
        self._heap: list[tuple[float, int, _Node]] = []
        self._last: tuple[float, int, _Node] | None = None

    def run(self) -> Found:
        """The first point in the order of their times that fits."""
        try:
            return self._found(self._first())
        except KeyboardInterrupt:
            return self._so_far()

    def _first(self) -> Evaluation | None:
        for branch in self._branches:
            for group in branch.decisions.groups:
                node = _Node(branch=branch, table=branch.of(group), group=group)
                self._wait(branch.bound(group, self._below), node)
        while self._heap:
            self._last = heappop(self._heap)
            node = self._last[2]
            if node.split is not None:
                found = self._settled(node, node.split)
                if found is not None:
                    return found
            else:
                for seconds, child in self._children(node):
                    self._wait(seconds, child)
        return None

    def _so_far(self) -> Found:
        """The first of the splits that wait, whose stages fit each by itself; what was not looked
        at takes at least as long as what was looked at last."""
        if self._last is None:
            return Found(evaluation=None, evaluated=0, bound=0.0, stopped=True)
        waiting = sorted([self._last, *self._heap], key=lambda one: one[:2])
        settled = (self._settled(node, node.split) for _, _, node in waiting if node.split)
        evaluation = next(filter(None, settled), None)
        bound = min(self._last[0], self._unsure)
        return Found(evaluation=evaluation, evaluated=self._evaluated, bound=bound, stopped=True)

    def _wait(self, bound: float, node: _Node) -> None:
        if bound < self._below:
            heappush(self._heap, (bound, next(self._numbers), node))

    def _found(self, evaluation: Evaluation | None) -> Found:
        seconds = evaluation.step_time_seconds if evaluation else self._below
        bound = min(seconds, self._unsure)
        return Found(evaluation=evaluation, evaluated=self._evaluated, bound=bound)

    def _children(self, node: _Node) -> Iterator[tuple[float, _Node]]:
        if node.setting is None:
            yield from self._members(node)
        elif node.level < _Level.PASSES:
            level = _Level(node.level + 1)
            yield self._narrowed(node, level)
        else:
            problem = problem_of(node.table, node.choices)
            if split := problem.best(node.table.fits, self._below):
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
        """Of a setting of the node's group."""
        fastest = node.branch.fastest(node.group, self._below)
        most = node.table.own.most_microbatch_seconds(self._below)
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
        """The whole evaluation of a split; where that says that it does not fit, or it is refused,
        the next best one waits."""
        table = node.table
        job = table.splits.job(tuple(choice.number for choice in split.choices))
        setting = split.choices[0].setting
        if not self._is_legal(setting, job):
            self._unsure = min(self._unsure, split.seconds)
            return None
        evaluator = Evaluator(job, self._calibration)
        found = evaluator.evaluate(setting).simulated
        self._evaluated += 1
        if found.fits:
            return found
        self._refuse(table, split, evaluator)
        again = replace(node, level=_Level.PASSES, split=None)
        heappush(self._heap, (split.seconds * (1 - ROUNDING), next(self._numbers), again))
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
