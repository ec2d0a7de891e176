"""Options that Megatron obeys and no prediction knows of."""

from collections.abc import Iterator
from typing import Final

from advisor.frameworks.megatron.options.option import Option
from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.rule import Authority, Problem, Rule, Verdict, function
from advisor.frameworks.option_status import Status

_UNPRICED: Final = {n: row for n, row in SETTINGS.items() if row.status is Status.UNPRICED}
_REFUSED: Final = {n: row for n, row in SETTINGS.items() if row.status is Status.REFUSED}


def _unpriced_options(raw: RawSettings, revision: Revision) -> Problem | None:
    """Options that change memory or time of a step and are not modelled are named."""
    found = "; ".join(f"{row.name} ({row.note})" for row in _set(raw, _UNPRICED))
    return Problem(f"no prediction counts {found}", "nothing to change") if found else None


def _refused_options(raw: RawSettings, revision: Revision) -> Problem | None:
    """Options that make the job one which cannot be described here are named."""
    found = "; ".join(f"{row.name} ({row.note})" for row in _set(raw, _REFUSED))
    return (
        Problem(f"no prediction is of a job with {found}", "nothing to change") if found else None
    )


def _set(raw: RawSettings, rows: dict[str, Option]) -> Iterator[Option]:
    for name in sorted(raw.given.keys() & rows.keys()):
        if raw.given[name] != rows[name].default:
            yield rows[name]


_HERE: Final = "docs/options.md"
RULES: Final[dict[str, Rule]] = {
    "refused_options": function(_refused_options, _HERE, Verdict.NOTE, Authority.TRAINING),
    "unpriced_options": function(_unpriced_options, _HERE, Verdict.NOTE, Authority.TRAINING),
}
