"""Rules on keys whose texts and sources are rows of configs/rules/NAME.json, in the order in which
they are asked.

A row stands at the keys `at`, of which `a|b` is any; `fault` is what it is called by where that is
not its name, `given` the code without which it does not count. What it finds:
when: all these keys are on (true), off or left out (false), or what a pattern matches.
legal: values that are none of these: values, kinds, or code; with `kind` of all options of that
  kind below the section `at`.
choices: a text that is none of these after `fold`, or of `also`.
section: names below it that are no options, nor `also`, which code says.
each: the row is one for each of these, which stand in its texts as EACH.
All other rows are conditions in code, by their names; that of `each` is asked of this one first.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, Final

from msgspec import json

from advisor.base.errors import either
from advisor.base.rule import Match, Verdict, rows_of
from advisor.frameworks.option import Option, keys_of, names_in
from advisor.reading import key_rules
from advisor.reading.read_configuration import Keys, known, truth

_KINDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "boolean": key_rules.is_boolean,
    "section": key_rules.is_section,
    "whole": key_rules.is_whole,
    "count": key_rules.is_count,
}
_TYPES: Final = {"bool": bool, "int": int}
_FOLDS: Final[Mapping[str, Callable[[str], str]]] = {"upper": str.upper, "lower": str.lower}


def written(
    file: str,
    code: Mapping[str, Callable[..., Any]] | None = None,
    options: Collection[Option] = (),
) -> Iterator[key_rules.KeyRule]:
    """The rules of a file. code: see above; KeyError for a row that has none. options: of the
    framework, whose names are known."""
    for name, row in rows_of(f"{file}.json").items():
        for one in row.get("each", ("",)):
            text = json.encode(row).decode().replace("EACH", one)
            when = (code or {}).get(name)
            when = partial(when, one) if when and one else when
            yield _rule(name, json.decode(text), when, code or {}, options)


def _rule(
    name: str,
    row: Mapping[str, Any],
    when: Callable[..., Any] | None,
    code: Mapping[str, Callable[..., Any]],
    options: Collection[Option],
) -> key_rules.KeyRule:
    at = row.get("at", next(iter(row.get("when", {})), "")).split("|")
    says, fix = row.get("says", ""), row.get("fix", "")
    rest: dict[str, Any] = {
        "fault": row.get("fault", name),
        "verdict": Verdict(row.get("verdict", Verdict.REFUSED)),
        "source": row["source"],
        "lacks": row.get("lacks", ""),
        "given": code[row["given"]] if "given" in row else None,
    }
    if "legal" in row:
        if "kind" in row:
            at = keys_of(options, row["at"], _TYPES[row["kind"]])
        legal = partial(_is_legal, row["legal"], {**_KINDS, **code})
        return key_rules.illegal_values(at, legal, says, fix, **rest)
    its = {key: row[key] for key in ("also", "cutoff") if key in row} | rest
    if "choices" in row:
        fold = _FOLDS.get(row.get("fold", ""), str)
        return key_rules.no_choice(at[0], row["choices"], fix=fix, fold=fold, **its)
    if "section" in row:
        names = names_in(options, row["section"])
        otherwise = fix.format(names=either(names), first=", ".join(names[:4]))
        if "also" in row:
            its["also"] = code[row["also"]](names)
        return key_rules.unknown_names(row["section"], names, says, otherwise=otherwise, **its)
    return key_rules.key_rule(at, when or partial(_all_are, row["when"]), says, fix, **rest)


def _is_legal(legal: Collection[Any], kinds: Mapping[str, Callable[[Any], bool]], it: Any) -> bool:
    return any(kinds[one](it) if one in kinds else it == one for one in legal)


def _all_are(when: Mapping[str, bool | str], keys: Keys) -> Match | None:
    found = [
        next((key for key in names.split("|") if _is(keys, key, wanted)), "")
        for names, wanted in when.items()
    ]
    return Match(place=keys.where(found[0])) if all(found) else None


def _is(keys: Keys, key: str, wanted: bool | str) -> bool:
    given = keys.values.get(key)
    value = given.value if given is not None else [*keys.under(key)] or None
    if not known(value):
        return False
    if isinstance(wanted, str):
        return re.fullmatch(wanted, "" if value is None else str(value), re.IGNORECASE) is not None
    return (value in (None, "", [], 0) or truth(value) is False) is not wanted
