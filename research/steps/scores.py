"""How right the advisor is on every published row, and on the choices that they leave.

python -m research.steps.scores                 families, decisions, the worst rows
python -m research.steps.scores --rows 500      more of the rows
python -m research.steps.scores simumax_b200    one table alone
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, median

from msgspec import Struct
from scipy.stats import spearmanr

from advisor.frameworks.registry import default_framework
from advisor.hardware.calibration import Calibration, load_calibration
from advisor.search.step_time_band import step_time_error
from research.kernels.least_squares import Errors
from research.rows import SOURCES
from research.rows.row import PUBLISHED
from research.rows.targets import Kind, Target, predict

LEAST_CHANGE = 0.02
"""Measured changes up to this are noise (a repeat within a source is good to 5 %, two rows of one
run to less)."""
_DESCRIPTION = "Predict every published row: errors by family, and time lost by wrong choices."


class Scored(Struct, frozen=True):
    """A target with what is predicted for it, and the band around that."""

    target: Target
    predicted: float
    band: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.target.seconds - 1

    @property
    def is_inside(self) -> bool:
        """Whether the measured time lies in the band."""
        return abs(self.target.seconds / self.predicted - 1) <= self.band


class Alternative(Struct, frozen=True):
    """One way to run a job: rows that are predicted alike, and the median of what was measured."""

    name: str
    measured: float
    predicted: float


class Choice(Struct, frozen=True):
    """Alternatives of one job, the fastest measured first."""

    name: str
    alternatives: tuple[Alternative, ...]

    @property
    def regret(self) -> float:
        """What the alternative predicted to be the fastest costs over the fastest; of several that
        are predicted alike, their mean."""
        least = min(one.predicted for one in self.alternatives)
        chosen = fmean(one.measured for one in self.alternatives if one.predicted == least)
        return chosen / self.alternatives[0].measured - 1

    @property
    def rank_correlation(self) -> float:
        """Spearman's, of three alternatives or more; 0 where either does not vary."""
        measured = [one.measured for one in self.alternatives]
        predicted = [one.predicted for one in self.alternatives]
        if len(set(measured)) == 1 or len(set(predicted)) == 1:
            return 0.0
        return float(spearmanr(measured, predicted).statistic)


class Change(Struct, frozen=True):
    """Two alternatives whose measured times differ by more than noise."""

    first: Alternative
    second: Alternative

    @property
    def measured(self) -> float:
        """Second over first, less one."""
        return self.second.measured / self.first.measured - 1

    @property
    def predicted(self) -> float:
        """The same, predicted."""
        return self.second.predicted / self.first.predicted - 1

    @property
    def is_right(self) -> bool:
        """Whether the prediction goes the same way."""
        return self.measured * self.predicted > 0


def score(targets: Iterable[Target], calibration: Calibration | None = None) -> Iterator[Scored]:
    """Every target predicted once, under its GPU's calibration if no other is given."""
    for target in targets:
        its = calibration or load_calibration(target.job.gpu)
        yield Scored(target, predict(target, its), step_time_error(target.job, its))


def family(target: Target) -> Hashable:
    """Rows whose errors are reported together: table, model, GPU, precision and framework."""
    job = target.job
    framework = job.config.framework or default_framework(None)
    return target.table, job.model.name, _gpu(target), str(job.config.precision), framework


def question(target: Target) -> Hashable:
    """Targets with one question are alternatives: the same model on as many of the same GPUs, with
    the same batch of the same tokens in the same precision."""
    return (*_work(target), str(target.job.config.precision))


def _work(target: Target) -> tuple[Hashable, ...]:
    job = target.job
    config, depth = job.config, job.model.num_layers
    batch = config.seq_length, config.global_batch_size, config.mean_packed_length
    what = target.table, target.quantity, job.model.name, depth
    return (*what, _gpu(target), job.num_gpus, *batch)


def _gpu(target: Target) -> str:
    return target.job.gpu.name


def choices(scored: Iterable[Scored]) -> tuple[Choice, ...]:
    """Jobs that were measured in two ways or more."""
    groups = _alternatives(scored, question)
    return tuple(
        Choice(f"{len(ways)} ways: {ways[0].name}", tuple(ways)) for ways in groups if len(ways) > 1
    )


def changes(scored: Iterable[Scored]) -> tuple[Change, ...]:
    """Pairs of alternatives, precisions compared as well, that differ by more than noise."""
    pairs = (pair for ways in _alternatives(scored, _work) for pair in combinations(ways, 2))
    found = (Change(first, second) for first, second in pairs)
    return tuple(change for change in found if abs(change.measured) > LEAST_CHANGE)


def _alternatives(
    scored: Iterable[Scored], key: Callable[[Target], Hashable]
) -> Iterator[list[Alternative]]:
    """By `key`; rows of one setting in several releases that are predicted alike are one way."""
    groups: dict[Hashable, dict[Hashable, list[Scored]]] = defaultdict(lambda: defaultdict(list))
    for one in scored:
        target = one.target
        if not target.comparable:
            continue
        way = target.family, target.setting, round(one.predicted, 9)
        groups[key(target)][way].append(one)
    for ways in groups.values():
        made = [
            Alternative(
                rows[0].target.name,
                median(row.target.seconds for row in rows),
                rows[0].predicted,
            )
            for rows in ways.values()
        ]
        yield sorted(made, key=lambda one: one.measured)


def family_table(scored: Sequence[Scored]) -> list[str]:
    """Mean, worst, bias and share inside the band of every family, of all rows, and of the kinds of
    rows that are fitted on."""
    groups: dict[Hashable, list[Scored]] = defaultdict(list)
    for one in scored:
        groups[family(one.target)].append(one)
    width = max(len(_words(key)) for key in groups)
    lines = [f"{'family':<{width}} rows   mean  worst   bias  inside"]
    lines += [f"{_words(key):<{width}} {_errors(rows)}" for key, rows in sorted(groups.items())]
    whole = {
        "all": scored,
        **{f"all {words}": _of_kind(scored, kind) for kind, words in _KINDS.items()},
        "all fitted rows": [one for one in scored if not one.target.judged_only],
    }
    return [*lines, *(f"{name:<{width}} {_errors(rows)}" for name, rows in whole.items() if rows)]


_KINDS = {Kind.EXPERTS: "with experts", Kind.EAGER: "eager torch", Kind.DENSE: "dense"}


def _of_kind(scored: Sequence[Scored], kind: Kind) -> list[Scored]:
    """Rows of a class of jobs; none that is judged only."""
    return [one for one in scored if not one.target.judged_only and one.target.kind is kind]


def _words(key: Hashable) -> str:
    assert isinstance(key, tuple)
    return " ".join(str(part) for part in key)


def _errors(rows: Sequence[Scored]) -> str:
    found = Errors.of(row.error for row in rows)
    inside = fmean(row.is_inside for row in rows)
    figures = f"{found.mean:6.1%} {found.worst:+6.1%} {found.bias:+6.1%}"
    return f"{found.count:4} {figures} {inside:6.0%}"


def decision_table(scored: Sequence[Scored]) -> list[str]:
    """Regret and rank correlation of every choice, and changes whose sign is wrong."""
    made, moved = choices(scored), changes(scored)
    lines = ["choices: regret, rank correlation"]
    for choice in sorted(made, key=lambda one: -one.regret):
        many = len(choice.alternatives) > 2
        rank = f"{choice.rank_correlation:+5.2f}" if many else "     "
        lines.append(f"  {choice.regret:6.1%} {rank}  {choice.name}")
    wrong = [change for change in moved if not change.is_right]
    lines.append("changes with the wrong sign: measured, predicted")
    for change in sorted(wrong, key=lambda one: -abs(one.measured)):
        names = f"{change.first.name} -> {change.second.name}"
        lines.append(f"  {change.measured:+6.1%} {change.predicted:+6.1%}  {names}")
    if made:
        regrets = [choice.regret for choice in made]
        ranked = [one.rank_correlation for one in made if len(one.alternatives) > 2]
        lines.append(
            f"{len(made)} choices: regret mean {fmean(regrets):.1%}, worst {max(regrets):.1%}; "
            f"rank correlation {fmean(ranked) if ranked else 0:.2f} ({len(ranked)} choices)"
        )
    if moved:
        right = 1 - len(wrong) / len(moved)
        lines.append(
            f"{len(moved)} changes of more than {LEAST_CHANGE:.0%}: {right:.0%} have the right sign"
        )
    return lines


def row_table(scored: Sequence[Scored], most: int) -> list[str]:
    """The rows that are furthest off, the worst first."""
    ordered = sorted(scored, key=lambda one: -abs(one.error))[:most]
    return ["rows: error, measured, predicted"] + [
        f"  {one.error:+7.1%} {one.target.seconds:10.4f} {one.predicted:10.4f}  "
        f"{one.target.name}" + (" (not in the fit)" if one.target.judged_only else "")
        for one in ordered
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print it all."""
    parser = argparse.ArgumentParser(description=_DESCRIPTION)
    parser.add_argument("tables", nargs="*", help="tables of results/published (default: all)")
    parser.add_argument("--folder", type=Path, default=PUBLISHED, help="folder of the tables")
    parser.add_argument("--rows", type=int, default=40, help="number of worst rows to print")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.tables if name not in SOURCES]
    if unknown:
        print(f"unknown table {unknown[0]}: use one of {', '.join(SOURCES)}", file=sys.stderr)
        return 2
    names = options.tables or list(SOURCES)
    targets = [target for name in names for target in SOURCES[name](options.folder)]
    start = time.perf_counter()
    scored = list(score(targets))
    spent = (time.perf_counter() - start) / len(scored)
    for lines in (row_table(scored, options.rows), family_table(scored), decision_table(scored)):
        print("\n".join(lines), end="\n\n")
    print(f"{len(scored)} rows, {1000 * spent:.1f} ms per prediction")
    return 0


if __name__ == "__main__":
    sys.exit(main())
