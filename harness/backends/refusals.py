"""What a backend does not run, as a list of which the first that holds is told."""

from collections.abc import Iterable

from advisor.base.errors import UserError
from harness.trial.trial import Workload

Refusal = tuple[bool, str, str, str]
"""Whether it holds, the field, what is wrong with its value, and what would be right."""


def refuse(workload: Workload, refusals: Iterable[Refusal]) -> None:
    """UserError of the first that holds; none behind it is looked at."""
    for holds, field, relation, nearest in refusals:
        if holds:
            raise UserError(field, value_of(workload, field), relation, nearest)


def value_of(workload: Workload, field: str) -> object:
    """Of ``model.…``, ``layout.…``, ``job.…``, or of the recompute setting."""
    group, _, name = field.removeprefix("--").rpartition(".")
    of = {"model": workload.model, "layout": workload.layout}.get(group, workload)
    return getattr(of, name)
