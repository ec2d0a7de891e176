"""Rules whose texts are rows of a file of configs/rules; their conditions are code.

A file has tables, a table rows by id, in the order in which its framework checks. A row has fields
of its rule, and those of the row that it is `like`.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, TypeVar

from msgspec import json

from advisor.base.configuration import packaged_configs
from advisor.base.rule import Rule, Verdict

R = TypeVar("R", bound=Rule[Any])
Rows = Mapping[str, Mapping[str, Any]]
_TYPES: Final = {"verdict": Verdict, "since": tuple, "versions": tuple}


@cache
def rows_of(file: str) -> Mapping[str, Any]:
    """What a file of configs/rules holds, read once."""
    rows: dict[str, Any] = json.decode((packaged_configs() / "rules" / file).read_bytes())
    return rows


def rules_of(
    kind: type[R],
    rows: Rows,
    whens: Mapping[str, Callable[..., object]],
    read: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> dict[str, R]:
    """Each row as a rule whose `when` is in `whens` or among the fields that `read` makes of it; of
    both the former is its `given`. LookupError for a row without a condition and for a condition
    without a row, TypeError for a field that the rule has not."""
    if others := whens.keys() - rows.keys():
        raise LookupError(f"conditions without a row: {', '.join(sorted(others))}")
    found = {}
    for name, row in rows.items():
        like = row.get("like", name)
        fields = read({**rows[like], **row})
        fields |= {one: _TYPES[one](fields[one]) for one in fields.keys() & _TYPES}
        if code := whens.get(name) or whens.get(like):
            fields["given" if "when" in fields else "when"] = code
        if "when" not in fields:
            raise LookupError(f"{name} has no condition")
        fields.pop("like", None)
        found[name] = kind(**fields)
    return found
