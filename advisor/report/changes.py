"""The file that `--from` read as plain data, and what to change in it."""

from operator import attrgetter
from typing import Final

from advisor.answer.advice import ReadFile, ReadOption, UnknownOption
from advisor.answer.answer import Answer, RankedEvaluation
from advisor.answer.evaluation import Evaluation
from advisor.base.fields import spelled
from advisor.base.rule import Finding
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job
from advisor.lint.left_out import left_out
from advisor.models.presets import load_preset
from advisor.plan.recompute_plan import recomputes
from advisor.reading.read_configuration import ReadConfiguration, ReadValue, UnknownValue
from advisor.report.blocks import Block, Text, group, labelled_rows
from advisor.report.header import layout_words
from advisor.report.job_changes import change_words
from advisor.report.setting_flags import copied_block
from advisor.request.origin import GROUPS

RECOMPUTE: Final = "recompute"


def read_file(job: Job, read: ReadConfiguration) -> ReadFile:
    """The options of a file in their order; `job` has the values that were assumed."""
    return ReadFile(
        file=read.place.file,
        line=read.place.line,
        recompute=read.recompute,
        recompute_options=tuple(map(_option, sorted(read.recompute_at, key=attrgetter("place")))),
        not_taken=tuple(map(_option, read.untaken)),
        not_known=tuple(_unknown(job, one) for one in read.unknown),
        refused=tuple(_refused(job, read, one) for one in read.refused),
    )


def _refused(job: Job, read: ReadConfiguration, found: Finding) -> str:
    """What lint says of an option, and whether the job has it all the same."""
    own = (path.partition(".")[2] for path, one in read.values.items() if one.place == found.place)
    idle = any(name in job.layout.idle_overlaps for name in own)
    how = "left out" if idle else "refused, but predicted"
    return f"line {found.place.line}: {found.reason}: {how}; {found.fix}"


def caveat(read: ReadConfiguration | None) -> str:
    """What the verdict does not hold of: a file that trains adapters. Empty where it holds."""
    if read is None or not read.partial_training:
        return ""
    its = (f"{x.written} {x.value} in line {x.place.line}" for x in read.partial_training)
    said = ", ".join(its)
    adapter = read.values.get("tuning.adapter")
    if adapter is not None and adapter.value != "none":
        return f"This answer is without what else decides which parameters are trained: {said}."
    return f"This answer is for full fine-tuning; adapters are not modelled: {said}."


def _option(given: ReadValue) -> ReadOption:
    value, place = given.value, given.place
    text = " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return ReadOption(option=given.written, value=text, file=place.file, line=place.line)


def _unknown(job: Job, one: UnknownValue) -> UnknownOption:
    part, _, name = one.path.partition(".")
    assumed = None if one.written else layout_words(job.layout)
    if part in GROUPS:
        assumed = spelled(getattr(getattr(job, GROUPS[part]), name))
    return UnknownOption(
        option=one.written,
        value=one.text,
        file=one.place.file,
        line=one.place.line,
        key="--recompute" if one.path == RECOMPUTE else one.path,
        assumed=assumed,
    )


_MARGIN: Final = 11


def changes(advice: Answer, read: ReadConfiguration) -> Block:
    """Where the setting stands now, and the flags of the row that the first sentence names."""
    file = read_file(advice.job, read)
    rows: list[tuple[str, Block]] = [("file", Text(_now(advice, file)))]
    if omitted := _omitted(advice, read):
        rows.append(("default", Text(omitted)))
    if file.not_taken:
        untaken = (f"{one.option} {one.value} in {_line(file, one)}" for one in file.not_taken)
        rows.append(("not used", Text(", ".join(untaken))))
    rows += [("refused", Text(words)) for words in file.refused]
    for number, one in enumerate(file.not_known):
        rows.append(("" if number else "not known", Text(_unknown_words(one))))
    flags: list[Block] = []
    if row := advice.leading:
        best, found = row.evaluation, advice.fastest_found
        also = change_words(best.job, advice.job, advice.origin) if found else ""
        what, words = _instead(best, file, also, ", ".join(left_out(read)))
        rows.append(("fastest" if found else f"row {row.rank}", Text(what)))
        flags = [copied_block(best.job.config.framework, best.job, "", words)] if words else []
    return group(Text(""), labelled_rows(rows, margin=_MARGIN), *flags)


def _now(advice: Answer, file: ReadFile) -> str:
    """The setting that a file has, and the options that say it, with their lines."""
    if file.recompute is None:
        known = all(one.key != "--recompute" for one in file.not_known)
        setting = "no recompute" if known else "a recompute setting, but its value is not known"
        return f"{file.file} sets {setting}"
    same = same_as_now(advice, file.recompute)
    rank = f"row {same[0].rank}" if same else "not ranked"
    said = ", ".join(f"{one.option} in {_line(file, one)}" for one in file.recompute_options)
    return f"{file.file} sets {file.recompute} ({rank}){': ' if said else ''}{said}"


def same_as_now(advice: Answer, recompute: str | None) -> list[RankedEvaluation]:
    """Rows of the setting that a file has, best first."""
    if recompute is None:
        return []
    setting = parts_of(advice.job.config.framework).settings.parse(recompute).promoted
    return [c for c in advice.candidates if c.evaluation.setting.promoted == setting]


def _line(file: ReadFile, given: ReadOption) -> str:
    """Where an option stands, in this file or in another one that it names."""
    return f"line {given.line}" + ("" if given.file == file.file else f" of {given.file}")


def _omitted(advice: Answer, read: ReadConfiguration) -> str:
    """Defaults of the framework by which the model is another one than its preset."""
    model = advice.job.model
    if model.name != read.model:
        return ""
    preset = load_preset(read.model).spec
    words = []
    for path, given in {**read.shape, **read.values}.items():
        if given.omitted and path.startswith("model."):
            value, usual = (getattr(one, path.removeprefix("model.")) for one in (model, preset))
            if value != usual and spelled(value) == spelled(given.value):
                words.append(f"{path} {spelled(value)}; the preset has {spelled(usual)}")
    return " · ".join(words)


def _unknown_words(one: UnknownOption) -> str:
    """An option without a value: where it stands, what is assumed, and how to give it."""
    words = f"{one.option} {one.value}".strip()
    where = f"{words} in line {one.line}"
    if not one.option:
        return f"{where}: not read; assumed: {one.assumed}; give its options as KEY=VALUE"
    if one.key == "--recompute":
        return f"{where}: every setting is ranked"
    if not one.key:
        return f"{where}: its default is assumed"
    return f"{where}: {one.assumed} is assumed; give {one.key}=VALUE"


def _instead(best: Evaluation, file: ReadFile, also: str, out: str) -> tuple[str, str]:
    """What to do for a row, with what its job changes `also`, and its flags; without recompute what
    the file switches on has to go. out: what is left out."""
    more = f"change {also}" if also else ""
    if best.setting.spec == file.recompute:
        if out:
            return f"is what the file sets{more and '; '}{more}, without {out}: not predicted", ""
        return f"is what the file sets: {more or 'nothing to change'}", ""
    stack, job = parts_of(best.job.config.framework), best.job
    flags = stack.spelling.setting_flags(best.setting, job)
    beside = f", and {more}" if more else ""
    if not flags:
        return f"needs none of these options: remove them{beside}", ""
    if file.recompute is None or recomputes(best.setting):
        return f"set instead{beside}:", flags
    own = stack.spelling.setting_flags(stack.settings.parse(file.recompute), job)
    drops = {*flags.split()} <= {*own.split()}
    return f"remove these options and set{beside}:" if drops else f"set instead{beside}:", flags
