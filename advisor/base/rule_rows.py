"""Rules whose texts are rows of a file of configs/rules; their conditions are code, or sides.

A file has tables, a table rows by id, in the order in which its framework checks. A row has fields
of its rule, and those of the row that it is `like`.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any, Final, TypeVar

from msgspec import json

from advisor.base.configuration import packaged_configs
from advisor.base.rule import Rule, Verdict

R = TypeVar("R", bound=Rule[Any])
Rows = Mapping[str, Mapping[str, Any]]
_TYPES: Final = {"verdict": Verdict, "since": tuple, "versions": tuple}
_SIDE: Final = re.compile(r"(\w+)\.([\w.]+)(?:(!=|<=|>=|<|>|=|:)(.+))?")
_ORDERS: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


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


def refusals(
    kind: type[R],
    table: str,
    whens: Mapping[str, Callable[..., object]] | None = None,
    lists: Mapping[str, Iterable[str]] | None = None,
) -> dict[str, R]:
    """The rules of a table of configs/rules/jobs.json, which `refuse` asks. A row is about the
    field of its id, unless it names another.

    Conditions that are no code are `when` and `given`: all of their sides must hold. A side is
    ``job.NAME`` where that is set, ``job.NAME=value|value``, ``job.NAME!=value``, ``job.NAME<1``
    (no None is), ``job.NAME:value`` where it holds the value, ``not side``, or ``side or side``.
    A row with `each`, here or in `lists`, is a rule for each of those names, which its code takes
    first, and which stands in its texts as {each}.
    """
    rows, codes = {}, dict(whens or {})
    for name, row in rows_of("jobs.json")[table].items():
        code = codes.pop(name, None)
        for each in (lists or {}).get(name, row.get("each", ("",))):
            one = f"{name} {each}".rstrip()
            text = json.encode({"field": name, **row}).replace(b"{each}", each.encode())
            rows[one] = json.decode(text)
            if code:
                codes[one] = partial(code, each) if each else code
    return rules_of(kind, rows, codes, partial(with_sides, kind))


def with_sides(kind: type[R], row: dict[str, Any]) -> dict[str, Any]:
    """A row with its conditions that are sides, as `refusals` reads them."""
    sides = {one: _all_of(kind.names, row[one]) for one in ("given", "when") if one in row}
    return {name: value for name, value in row.items() if name != "each"} | sides


def _all_of(names: tuple[str, ...], sides: Iterable[str]) -> Callable[..., bool]:
    first, *others = (_side(names, side) for side in sides)
    if not others:
        return first
    return lambda *subject: first(*subject) and all(one(*subject) for one in others)


def _side(names: tuple[str, ...], side: str) -> Callable[..., bool]:
    """Whether what a rule looks at, under these names, has a side, as `refusals` reads it."""
    if " or " in side:
        either = [_side(names, one) for one in side.split(" or ")]
        return lambda *subject: any(one(*subject) for one in either)
    if side.startswith("not "):
        other = _side(names, side[4:])
        return lambda *subject: not other(*subject)
    found = _SIDE.fullmatch(side)
    assert found is not None, side
    place, sign, text = names.index(found[1]), found[3], found[4]
    read = operator.attrgetter(found[2])
    if not sign:
        return lambda *subject: bool(read(subject[place]))
    if sign == ":":
        return lambda *subject: text in read(subject[place])
    if compare := _ORDERS.get(sign):
        limit = float(text)
        return lambda *subject: (
            (value := read(subject[place])) is not None and compare(value, limit)
        )
    values = text.split("|")
    return lambda *subject: (str(read(subject[place])) in values) == (sign == "=")
