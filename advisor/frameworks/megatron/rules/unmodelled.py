"""Options that Megatron does not read next to others, or obeys and no prediction knows of."""

from functools import partial
from typing import Final

from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.stated import stated
from advisor.frameworks.option import Option, Status


def _with_notes(status: Status, raw: RawSettings, _: Revision) -> str:
    """The options of a status that are set, each with what is to be said of it."""
    given = ((SETTINGS[name], value) for name, value in sorted(raw.given.items()))
    found = [row for row, value in given if row.status is status and _differs(row, value)]
    return "; ".join(f"{row.name} ({row.note})" for row in found)


def _differs(row: Option, value: object) -> bool:
    return value != row.default and "megatron.core." not in str(value)  # its own spec


RULES: Final = stated(
    "unmodelled",
    graph_modules_unread=lambda raw, revision: graphs_of(raw, revision).modules,
    refused_options=partial(_with_notes, Status.REFUSED),
    untimed_options=partial(_with_notes, Status.UNTIMED),
    unpriced_options=partial(_with_notes, Status.UNPRICED),
)
