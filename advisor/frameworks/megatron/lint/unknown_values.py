"""Options whose value nobody knows, and words that may hold options."""

from collections.abc import Iterator
from typing import Final

from advisor.frameworks.megatron.lint.job_values import BATCH, RENAMED_LAYOUT
from advisor.frameworks.megatron.lint.option_values import PARTS
from advisor.frameworks.megatron.lint.settings import ReadSettings
from advisor.frameworks.megatron.options.table import SETTINGS, option_of_field, option_of_flag
from advisor.frameworks.names import Framework
from advisor.frameworks.option import Status, dashed
from advisor.job.layout import ParallelLayout
from advisor.reading.document_keys import known
from advisor.reading.read_configuration import UnknownValue

RECOMPUTE: Final = "recompute"


def unknown_values(read: ReadSettings) -> Iterator[UnknownValue]:
    """In the order of the document; options without effect on memory and time are passed over."""
    found = [*_options(read), *_precision(read)]
    found += [UnknownValue(written="", text=text, place=at) for text, at in read.unknown]
    yield from sorted(found, key=lambda one: one.place)


def _options(read: ReadSettings) -> Iterator[UnknownValue]:
    for name, given in read.loose.items():
        path = _path(name)
        if path is not None and not known(given.value):
            text = str(given.value)
            if given.place.file.endswith(".py"):  # an expression, no variable of a shell
                text = text.removeprefix("$")
            yield UnknownValue(written=given.written, text=text, place=given.place, path=path)


def _precision(read: ReadSettings) -> Iterator[UnknownValue]:
    """Without either type Megatron-LM trains in fp32, which is not modelled."""
    whole_command = read.given.framework == Framework.MEGATRON_LM and not read.unknown
    if whole_command and not {"bf16", "fp16"} & read.loose.keys():
        written = "no --bf16 and no --fp16"
        yield UnknownValue(written=written, text="", place=read.place, path="job.precision")


def _path(name: str) -> str | None:
    """The field that an option means; empty where it is none, None where it does not matter."""
    if name in BATCH:
        return f"job.{BATCH[name]}"
    field = RENAMED_LAYOUT.get(name, name)
    if field in ParallelLayout.__struct_fields__:
        return f"layout.{field}"
    row = option_of_flag(dashed(name)) or option_of_field(name)
    if row is None or row.name not in SETTINGS or row.status is Status.HARMLESS:
        return None
    part = row.ours.partition(".")[0]
    if part == RECOMPUTE:
        return RECOMPUTE
    return row.ours if part in PARTS else ""
