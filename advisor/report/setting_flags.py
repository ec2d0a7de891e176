"""A setting in the words of each framework, as the reports print it."""

import shlex
from functools import partial
from typing import Final

from advisor.answer.answer import Answer
from advisor.answer.evaluation import Evaluation
from advisor.frameworks.registry import label_of, parts_of
from advisor.job.job import Job
from advisor.report.blocks import Block, Fitted, command_lines, packed, wrapped

NO_FLAGS: Final = "(no flag: recompute is off unless a flag asks for it)"
_MARGIN: Final = 17
_INDENT: Final = 2


def all_flags(evaluation: Evaluation) -> dict[str, str]:
    """The setting's flags, verbatim, for every framework that takes such settings; empty where the
    default is meant."""
    family = _family(evaluation.job)
    return {framework: framework_flags(evaluation, framework) for framework in family}


def all_job_flags(evaluation: Evaluation) -> dict[str, str]:
    """All flags of the job, for every framework that takes such settings."""
    job = evaluation.job
    return {name: _job_flags(job, name) for name in _family(job)}


def _family(job: Job) -> tuple[str, ...]:
    """Frameworks that take the job's settings and build its model."""
    family = parts_of(job.config.framework).family
    return tuple(name for name in family if parts_of(name).jobs.builds(job.model))


def other_frameworks(job: Job) -> list[str]:
    """Of the frameworks that everybody uses, those of the job's family whose flags a page leaves
    out: it shows those of the job's own."""
    own, adapted = job.config.framework, job.config.tuning.has_adapter
    others = (name for name in parts_of(own).shown if name in _family(job) and name != own)
    return [name for name in others if parts_of(name).jobs.builds(job.model, adapted=adapted)]


def framework_flags(evaluation: Evaluation, framework: str) -> str:
    """The setting's flags for one framework, to be pasted after its launch command."""
    return parts_of(framework).spelling.setting_flags(evaluation.setting, evaluation.job)


def is_written_out(advice: Answer, framework: str, *, with_layout: bool = False) -> bool:
    """Whether all flags of the job are said: everywhere `with_layout`, to a framework that does not
    have the recipe that the job is of, and of a changed job where flags cannot undo a recipe's."""
    undone = advice.fastest_found is None or "=" in _job_flags(advice.job, framework)
    return with_layout or advice.recipe_framework != framework or not undone


def framework_job_flags(
    advice: Answer, evaluation: Evaluation, framework: str, *, with_layout: bool = False
) -> str:
    """Flags of the job: all of them, or besides its published recipe those that the prediction
    rests on and those that the job as typed has not."""
    every, usual = (_job_flags(job, framework) for job in (evaluation.job, advice.job))
    if is_written_out(advice, framework, with_layout=with_layout):
        return every
    changed = [word for word in shlex.split(every) if word not in shlex.split(usual)]
    assumed = parts_of(framework).spelling.assumed_flags(evaluation.job)
    return shlex.join(dict.fromkeys([*changed, *shlex.split(assumed)]))


def _job_flags(job: Job, framework: str) -> str:
    return parts_of(framework).spelling.layout_flags(job)


def framework_block(advice: Answer, evaluation: Evaluation, *, with_layout: bool) -> Block:
    """The label of the job's framework, and what tells it the setting and its job."""
    framework = evaluation.job.config.framework
    job = framework_job_flags(advice, evaluation, framework, with_layout=with_layout)
    words = f"{job} {framework_flags(evaluation, framework)}".strip() or NO_FLAGS
    not_in_flags = job_outside_flags(advice, evaluation, framework, with_layout=with_layout)
    return copied_block(framework, evaluation.job, label_of(framework), words, not_in_flags)


def copied_block(framework: str, job: Job, label: str, words: str, comment: str = "") -> Block:
    """What a framework reads, to be copied: a command line, or statements below the label."""
    if parts_of(framework).spelling.takes_flags(job):
        return command_block(label, words, comment)
    return Fitted(partial(_code, label, words))


def job_outside_flags(
    advice: Answer, evaluation: Evaluation, framework: str, *, with_layout: bool
) -> str:
    """What of the job the flags do not say, and the recipe that they are put after; empty where
    they say all."""
    spelling = parts_of(framework).spelling
    omitted = spelling.omitted(evaluation.job)
    if is_written_out(advice, framework, with_layout=with_layout):
        return omitted
    more = omitted if omitted != spelling.omitted(advice.job) else ""
    return " · ".join(filter(None, [f"on top of recipe {advice.recipe}", more]))


def command_block(label: str, words: str, comment: str = "") -> Block:
    """Words of a command line, to be copied, with a comment of the shell."""
    return Fitted(partial(_command, label, words, comment))


def _command(label: str, words: str, comment: str, width: int) -> list[str]:
    """The label in the margin, or where a word reaches beyond the page above the words, which are
    never cut."""
    lines = _shell(words, comment, width - _MARGIN)
    if max(map(len, lines)) > width - _MARGIN:
        return [label, *(" " * _INDENT + line for line in _shell(words, comment, width - _INDENT))]
    margins = [label, *[""] * (len(lines) - 1)]
    return [f"{head:<{_MARGIN}}{line}" for head, line in zip(margins, lines, strict=True)]


def _shell(words: str, comment: str, room: int) -> list[str]:
    lines = command_lines(words, room)
    return [*lines, *(f"# {part}" for part in wrapped(comment, room - 2) if comment)]


def _code(label: str, text: str, width: int) -> list[str]:
    """Statements below their label, from the first column on, so that Python takes what is copied;
    JSON as a file has it."""
    lines = [label]
    for statement in text.split("; "):
        if statement.startswith("{"):
            from msgspec import json

            lines += json.format(statement, indent=2).split("\n")
        else:
            pieces = statement.replace(", ", ",\0").replace(" for ", "\0for ").split("\0")
            lines += packed(pieces, width, glue=" ", hanging="    ")
    return lines


def environment_words(evaluation: Evaluation) -> str:
    """``NAME=value`` of every variable without which the flags are refused or mean less."""
    spelling = parts_of(evaluation.job.config.framework).spelling
    return " ".join(spelling.environment(evaluation.setting, evaluation.job))


def flags_report(advice: Answer, *, with_layout: bool = False) -> str:
    """`--format flags`: the chosen setting's flags for the framework of the job, one line."""
    best, framework = advice.leading, advice.job.config.framework
    if best is None:
        return ""
    of_job = framework_job_flags(advice, best.evaluation, framework, with_layout=with_layout)
    return f"{of_job} {framework_flags(best.evaluation, framework)}".strip() + "\n"


def omitted_report(advice: Answer, *, with_layout: bool = False) -> str:
    """What `--format flags` does not say; empty where it says all."""
    best, framework = advice.leading, advice.job.config.framework
    if best is None:
        return ""
    said = job_outside_flags(advice, best.evaluation, framework, with_layout=with_layout)
    words = environment_words(best.evaluation)
    return " · ".join(filter(None, [said, f"with {words} in the environment" if words else ""]))


def file_report(advice: Answer) -> str:
    """`--format file`: the chosen setting and its job as the framework's own file."""
    best = advice.leading
    if best is None:
        return ""
    setting, job = best.evaluation.setting, best.evaluation.job
    return parts_of(job.config.framework).spelling.config_file(setting, job)
