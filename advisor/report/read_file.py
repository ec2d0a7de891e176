"""The file that `--from` read, as plain data: what it says, and what of it is not in the answer."""

from operator import attrgetter
from typing import Final

from advisor.answer.advice import ReadFile, ReadOption, UnknownOption
from advisor.base.fields import spelled
from advisor.job.job import Job
from advisor.reading.read_configuration import ReadConfiguration, ReadValue, UnknownValue

RECOMPUTE: Final = "recompute"
_PARTS: Final = {"model": "model", "layout": "layout", "job": "config"}
"""Part of a job behind the first word of a KEY=VALUE."""


def read_file(job: Job, read: ReadConfiguration) -> ReadFile:
    """The options of a file in their order; `job` has the values that were assumed."""
    said = sorted(read.recompute_at, key=attrgetter("place"))
    return ReadFile(
        file=read.place.file,
        line=read.place.line,
        recompute=read.recompute,
        recompute_options=tuple(map(_option, said)),
        not_taken=tuple(map(_option, read.untaken)),
        not_known=tuple(_unknown(job, one) for one in read.unknown),
    )


def caveat(read: ReadConfiguration | None) -> str:
    """What the verdict does not hold of: a file that trains adapters. Empty where it holds."""
    if read is None or not read.partial_training:
        return ""
    said = ", ".join(
        f"{one.written} {one.value} in line {one.place.line}" for one in read.partial_training
    )
    return f"This answer is for full fine-tuning; adapters are not modelled: {said}."


def _option(given: ReadValue) -> ReadOption:
    value, place = given.value, given.place
    text = " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return ReadOption(option=given.written, value=text, file=place.file, line=place.line)


def _unknown(job: Job, one: UnknownValue) -> UnknownOption:
    part, _, name = one.path.partition(".")
    assumed = spelled(getattr(getattr(job, _PARTS[part]), name)) if part in _PARTS else None
    return UnknownOption(
        option=one.written,
        value=one.text,
        file=one.place.file,
        line=one.place.line,
        key="--recompute" if one.path == RECOMPUTE else one.path,
        assumed=assumed,
    )
