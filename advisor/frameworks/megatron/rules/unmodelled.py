"""Options that a release does not have yet, or has no more; that Megatron does not read next to
others; or that it obeys and no prediction knows of."""

from functools import partial
from typing import Final

from advisor.base.rule import Match
from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.stated import marked, stated
from advisor.frameworks.option import Option, Status

_PASSING: Final = {
    row.name: row
    for row in sorted(SETTINGS.values(), key=lambda row: row.since or (0, 0))
    if (row.since or row.until) and (row.strict or row.status is not Status.MODELLED)
}
"""Options that not every known release has, the oldest first."""
_INSTEAD: Final = {
    "cuda_graph_impl": "use --enable-cuda-graph (local) or --external-cuda-graph "
    "(transformer_engine)"
}


def _unknown_field(raw: RawSettings, revision: Revision) -> Match | None:
    set_here = raw.given.keys() & _PASSING.keys()
    absent = {name for name in set_here if not _PASSING[name].in_release(revision)}
    rows = [row for row in _PASSING.values() if row.name in absent] if absent else []
    given = (row for row in rows if getattr(raw, row.name) != row.default)
    return next((_absence(row, revision) for row in given), None)


def _absence(row: Option, revision: Revision) -> Match:
    if row.since is None or row.ended_before(revision):
        return Match(f"{revision.label} removed {row.name}", marked(row.name))
    release = "main" if row.since == (0, 20) else "{}.{}".format(*row.since)
    return Match(
        f"{revision.label} has no {row.name}, which came with megatron-core {release}",
        _INSTEAD.get(row.name, "[>={}.{}], or {}".format(*row.since, marked(row.name))),
    )


PRESENCE_RULES: Final = stated("missing_fields", unknown_field=_unknown_field)


def _with_notes(status: Status, raw: RawSettings, _: Revision) -> str:
    """The options of a status that are set, each with what is to be said of it; Megatron's own spec
    is none."""
    given = ((SETTINGS[name], value) for name, value in sorted(raw.given.items()))
    differ = (row for row, v in given if v != row.default and "megatron.core." not in str(v))
    found = [row for row in differ if row.status is status]
    return "; ".join(f"{row.name} ({row.note})" for row in found)


UNMODELLED_RULES: Final = stated(
    "unmodelled",
    graph_modules_unread=lambda raw, revision: graphs_of(raw, revision).modules,
    refused_options=partial(_with_notes, Status.REFUSED),
    untimed_options=partial(_with_notes, Status.UNTIMED),
    unpriced_options=partial(_with_notes, Status.UNPRICED),
)
