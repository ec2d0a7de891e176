"""What recompute would win that is chosen for each pipeline stage by itself."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import inf

from advisor.answer.evaluation import Evaluation
from advisor.base.units import ranges
from advisor.frameworks.part_types import SettingGroup
from advisor.plan.recompute_plan import Setting
from advisor.search.best_first import BestFirst
from advisor.search.optimum.best_split import Split
from advisor.search.optimum.branches import Branch, problem_of
from advisor.search.optimum.stage_table import Choice, StageTable, worth_it

_LEAST_WIN = 0.0005
"""Less is 0.0 % on a page."""


def per_stage(branches: Sequence[Branch], best: Evaluation | None) -> tuple[str, ...]:
    """One line on settings and a split chosen stage by stage, held against the `best` of one
    setting; none where there is no pipeline."""
    if not branches or branches[0].table.num_stages == 1:
        return ()
    seconds = best.step_time_seconds if best else inf
    found, table = None, branches[0].table
    for branch in branches:
        split = fastest_per_stage(branch, found.seconds if found else seconds)
        if split is not None:
            found, table = split, branch.table
    cannot = branches[0].decisions.one_for_all
    if found is None or found.seconds > seconds * (1 - _LEAST_WIN):
        return (f"recompute chosen for each pipeline stage would gain nothing ({cannot})",)
    wins = "make the job fit"
    if best:
        wins = f"save {(1 - found.seconds / seconds) * 100:.1f} % of the step time"
    words = f"would {wins}: {_words(table, found)}; {cannot}"
    return (f"recompute chosen for each pipeline stage {words}",)


def fastest_per_stage(branch: Branch, below: float) -> Split | None:
    """The fastest, each stage with the fastest of the settings with which it fits: first of what
    stages may take at best, until all that is chosen is known to fit."""
    if not branch.may_take(below):
        return None
    stages = _Stages(branch, below)
    while True:
        split = problem_of(branch.table, stages.choices()).best(lambda *_: True, below)
        if split is None:
            return None
        settled = [stages.settles(stage, choice) for stage, choice in enumerate(split.choices)]
        if all(settled):
            return split


class _Stages:
    """The settings of a branch, for each stage and what it may hold: of each the fastest that is
    not known to be refused."""

    def __init__(self, branch: Branch, below: float) -> None:
        self._table = branch.table
        self._most = self._table.own.time.most_microbatch_seconds(below)
        self._groups = [g for g in branch.decisions.groups if branch.table_of(g) is branch.table]
        self._rows: dict[tuple[Setting, int], list[Choice]] = {}
        self._first: dict[tuple[int, int], Choice | None] = {}
        self._left: dict[tuple[int, int], Iterator[Choice]] = {}
        for stage, held in enumerate(self._at_best(branch, below)):
            self._first |= {(stage, choice.number): choice for choice in held}

    def choices(self) -> tuple[tuple[Choice, ...], ...]:
        """Of each stage, for everything that it may hold."""
        found: list[list[Choice]] = [[] for _ in range(self._table.num_stages)]
        for (stage, _), choice in self._first.items():
            if choice is not None:
                found[stage].append(choice)
        return tuple(map(tuple, found))

    def settles(self, stage: int, choice: Choice) -> bool:
        """Whether the stage fits with it; else the next setting takes its place."""
        place = stage, choice.number
        if place in self._left and self._table.fits(stage, choice):
            return True
        self._first[place] = next(self._left.setdefault(place, self._fastest(*place)), None)
        return False

    def _at_best(self, branch: Branch, below: float) -> tuple[tuple[Choice, ...], ...]:
        """What each stage may hold, with the fastest of all settings, whether it fits or not."""
        fastest: list[dict[int, Choice]] = [{} for _ in range(self._table.num_stages)]
        for group in self._groups:
            for its, held in zip(fastest, branch.fastest(group, below), strict=True):
                for choice in held:
                    known = its.setdefault(choice.number, choice)
                    if choice.part.microbatch < known.part.microbatch:
                        its[choice.number] = choice
        every = [tuple(held.values()) for held in fastest]
        return worth_it(every, self._table.splits.num_layers)

    def _fastest(self, stage: int, number: int) -> Iterator[Choice]:
        """In the order of their times; of a group the others after its fastest, of a group in it
        the smallest alone: what is won with it is won at least."""
        waiting = BestFirst[tuple[Choice, SettingGroup | None]](lambda s: s <= self._most)

        def wait(setting: Setting, group: SettingGroup | None = None) -> None:
            choice = self._choice(setting, stage, number)
            waiting.add(choice.part.microbatch, (choice, group))

        for group in self._groups:
            wait(group.fastest, group)
        for _, (choice, its) in waiting:
            legal = its is None or choice.setting in its.settings
            if legal and self._table.fits_unless_simulated(stage, choice):
                yield choice  # whoever asks for another one knows that it does not fit
            smallest = its and self._choice(its.smallest, stage, number)
            if its and smallest and self._table.may_fit(stage, smallest):
                for member in its.members:
                    setting = member.smallest if isinstance(member, SettingGroup) else member
                    if setting != choice.setting:
                        wait(setting)

    def _choice(self, setting: Setting, stage: int, number: int) -> Choice:
        if (setting, number) not in self._rows:
            self._rows[setting, number] = self._table.row(setting, number)
        return self._rows[setting, number][stage]


def _words(table: StageTable, split: Split) -> str:
    """``none on stages 2-7, selective:mlp on 0-1``, and how layers are split where they moved."""
    numbered = sorted(enumerate(split.choices), key=lambda one: one[1].setting.spec)
    parts = []
    for spec, alike in groupby(numbered, key=lambda one: one[1].setting.spec):
        stages = [stage for stage, _ in alike]
        parts.append(f"{spec} on {'stages' if len(stages) > 1 else 'stage'} {ranges(stages)}")
    counts = tuple(
        table.splits.choices[stage][choice.number] for stage, choice in enumerate(split.choices)
    )
    if counts != table.splits.own_counts:
        parts.append(f"layers {', '.join(str(sum(held)) for held in counts)}")
    return "; ".join(parts) + f"; micro batch {table.job.config.micro_batch_size}"
