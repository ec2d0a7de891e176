"""Rows of options as words: of Megatron-LM's command line, and of a recipe's overrides."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from advisor.frameworks.megatron.options.option import Described, Option, Said
from advisor.frameworks.megatron.options.table import rows_of
from advisor.frameworks.megatron.revisions import Revision

Values = Mapping[str, Any]
"""Values of options by name, those that apply (lowering.job_values, lowering.setting_values)."""


def flags_of(
    sections: Iterable[type[Any]],
    values: Values,
    job: Described,
    revision: Revision,
    *,
    everything: bool = True,
) -> Iterator[str]:
    """Words of the rows of `sections`, in order; without `everything` a value that the layout's
    command line always has is left out where it is the default."""
    for section in sections:
        for row in rows_of(section):
            if row.name in values and _is_printed(row, values[row.name], job, everything):
                yield from words(row, values[row.name], revision)


def _is_printed(row: Option, value: object, job: Described, everything: bool) -> bool:
    if row.when is not None and not row.when(job):
        return False
    always = row.printed is Said.ALWAYS or (row.printed is Said.LAYOUT and everything)
    return always or (row.printed is not Said.NEVER and value != row.unsaid)


def words(row: Option, value: object, revision: Revision) -> tuple[str, ...]:
    """An option with its value, as Megatron-LM's command line reads it.

    >>> words(SETTINGS["recompute_modules"], ("mlp", "moe"), revision)
    ('--recompute-modules', 'mlp', 'moe')
    """
    if isinstance(value, bool):
        return (row.flag_in(revision) if value else row.off,)
    if isinstance(value, tuple):
        return (row.flag_in(revision), *value)
    return (row.flag_in(revision), format(value, row.text) if row.text else str(value))


def told(
    sections: Iterable[type[Any]], values: Values, when: Callable[[Option], Said]
) -> Iterator[tuple[Option, object]]:
    """Rows of `sections` that a recipe is told (`when`: Option.told or Option.told_nemo), with
    their values; a section at a time, each in the order of Option.place."""
    for section in sections:
        for row in sorted(rows_of(section), key=lambda row: row.place):
            if row.name not in values:
                continue
            value, said = values[row.name], when(row)
            if said is Said.ALWAYS or (said is Said.DIFFERENT and value != row.default):
                yield row, value


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
        names = ",".join(value if row.bare else (f"{quote}{name}{quote}" for name in value))
        return f"{path}={names}" if row.bare else f"{path}=[{names}]"
    return f'{path}="{value}"' if row.quoted else f"{path}={value}"
