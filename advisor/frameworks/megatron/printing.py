"""Rows of options as they are emitted: on a command line, and as overrides of a recipe."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.option import Described, Format, Option, Options

Values = Mapping[str, Any]
"""Values of options by name, those that apply (lowering.job_values, lowering.setting_values)."""


def flags_of(
    sections: Iterable[type[Options]],
    values: Values,
    job: Described,
    revision: Revision,
    *,
    layout: bool = True,
) -> Iterator[str]:
    """Words of the rows of `sections`, in order; layout: with those that the layout's command line
    always has."""
    for section in sections:
        for row in section.rows:
            when = row.emitted.line
            if when is None or row.name not in values:
                continue
            value = values[row.name]
            if when.holds(value, row.omitted, job, layout=layout):
                yield from words(row, value, revision)


def words(row: Option, value: object, revision: Revision) -> tuple[str, ...]:
    """An option with its value, as Megatron-LM's command line reads it.

    >>> words(SETTINGS["recompute_modules"], ("mlp", "moe"), revision)
    ('--recompute-modules', 'mlp', 'moe')
    """
    if isinstance(value, bool):
        return (row.flag_in(revision) if value else row.off,)
    if isinstance(value, tuple):
        return (row.flag_in(revision), *value)
    short = row.emitted.format is Format.SHORT
    return (row.flag_in(revision), format(value, "g") if short else str(value))


def recipe_values(
    sections: Iterable[type[Options]], values: Values, job: Described, revision: Revision
) -> Iterator[tuple[Option, object]]:
    """Rows of `sections` that a recipe is given, with their values; a section at a time, each in
    the order of Emitted.order."""
    for section in sections:
        for row in sorted(section.rows, key=lambda row: row.emitted.order):
            when, other = row.emitted.recipe, row.emitted.recipe_value
            if when is None or row.name not in values:
                continue
            value = values[row.name]
            if when.holds(value, row.default, job):
                yield row, value if other is None else other(job, revision)


def override(path: str, row: Option, value: object, quote: str = "") -> str:
    """``PATH=VALUE`` for Hydra or nemo-run; `quote` stands around the names of a list.

    >>> override("model.recompute_modules", SETTINGS["recompute_modules"], ("mlp", "moe"))
    'model.recompute_modules=[mlp,moe]'
    """
    if value is None:
        return f"{path}=null"
    if isinstance(value, bool):
        return f"{path}={str(value).lower()}"
    if isinstance(value, tuple):
        if row.emitted.format is Format.SINGLE:
            return f"{path}={','.join(value)}"
        return f"{path}=[{','.join(f'{quote}{name}{quote}' for name in value)}]"
    return f'{path}="{value}"' if row.emitted.format is Format.QUOTED else f"{path}={value}"
