"""What to change in the file that `--from` read: the setting that it has, and the best one."""

from collections.abc import Iterator
from typing import Final

from advisor.answer.answer import Answer, RankedEvaluation
from advisor.frameworks.registry import adapter_of
from advisor.reading.read_configuration import ReadConfiguration
from advisor.report.blocks import Block, Text, beside, group

_MARGIN: Final = 11


def changes(advice: Answer, read: ReadConfiguration) -> Block:
    """Where the setting stands now, with its rank, and the flags of the first row in its place."""
    rows: list[tuple[str, Block]] = [("file", Text(_now(advice, read)))]
    if advice.candidates:
        rows.append(("", Text(_instead(advice.candidates[0], read))))
    if read.untaken:
        rows.append(("not taken", Text(_untaken(read))))
    return group(Text(""), beside(rows, margin=_MARGIN))


def _now(advice: Answer, read: ReadConfiguration) -> str:
    if read.recompute is None:
        return f"{read.place.file} sets no recompute"
    setting = adapter_of(advice.job.config.framework).parse(read.recompute).promoted
    same = [c for c in advice.candidates if c.evaluation.setting.promoted == setting]
    rank = f", row {same[0].rank}" if same else ", which is not ranked"
    return f"{read.place.file} has {read.recompute}{rank}{''.join(_lines(read))}"


def _lines(read: ReadConfiguration) -> Iterator[str]:
    """The options that say it, with their lines."""
    for number, given in enumerate(sorted(read.recompute_at, key=lambda given: given.place)):
        before = ": " if number == 0 else ", "
        yield f"{before}{given.written} in line {given.place.line}"


def _untaken(read: ReadConfiguration) -> str:
    """Options of the file that the prediction does without."""
    words = (f"{g.written} {g.value} in line {g.place.line}" for g in read.untaken)
    return ", ".join(words)


def _instead(best: RankedEvaluation, read: ReadConfiguration) -> str:
    evaluation = best.evaluation
    if evaluation.setting.spec == read.recompute:
        return "which is row 1: nothing to change"
    flags = adapter_of(evaluation.job.config.framework).setting_flags(
        evaluation.setting, evaluation.job
    )
    if not flags:
        return "row 1 needs none of them: drop them"
    return f"row 1 instead: {flags}"
