"""The reference page of all options: `docs/options.md`, written by ``python -m`` this module."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from advisor.frameworks.deepspeed import options as deepspeed
from advisor.frameworks.huggingface import options as huggingface
from advisor.frameworks.megatron.options.harmless import ASIDE
from advisor.frameworks.megatron.options.table import SECTIONS
from advisor.frameworks.option import Option, Status, dashed
from advisor.frameworks.torchtitan import options as torchtitan

PAGE: Final = Path("docs/options.md")
_HEAD: Final = """\
# Options of the frameworks

This page lists every option that this project knows, and what the project does with it.
`python -m scripts.write_docs.options_page` writes it from `advisor/frameworks/megatron/options`,
`options.py` of the other frameworks, and `configs/options`. Tests compare the page with these rows,
and the rows with the classes of the installed frameworks.

The column *Here* names the field of this project that the option sets, or a status. `KEY=VALUE`
sets a field; `--recompute` spells recompute settings. `advise keys --framework F` lists all fields
with their options.

| status | meaning |
|---|---|
| **checked** | rules say whether the option is legal |
| **harmless** | the option changes neither memory nor time |
| **unpriced** | the option changes memory or time, but is not modelled |
| **untimed** | the option changes time alone, or the first steps, but is not modelled |
| **refused** | a job with the option cannot be described |

For Megatron:

- *Default* is that of megatron-core 0.19.2. Older defaults follow, each with the last release that
  has it.
- *Releases* are the first and the last release that has the option, of 0.11 to 0.19 and main.
- *Paths* are given if they are not the usual ones: `model.NAME` in Megatron Bridge's
  ConfigContainer, `model.config.NAME` in a NeMo 2 recipe.
"""
_COLUMNS: Final = "| Option | Flag | Default | Releases | Paths | Here |\n|---|---|---|---|---|---|"
_STACKS: Final = {
    "torchtitan 0.2.2": torchtitan.OPTIONS,
    "DeepSpeed 0.19.8": deepspeed.OPTIONS,
    "transformers 5.23.0 and Accelerate 1.15.0": huggingface.OPTIONS,
}


def options_page() -> str:
    """The page as Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    for section in SECTIONS.values():
        yield from (f"## {section.title}", "", _COLUMNS)
        yield from (_line(row) for row in section.rows)
        yield ""
    yield from (
        "## Other harmless options",
        "",
        "Options of Megatron-LM's command line by subject.",
        "",
    )
    for subject, names in ASIDE.items():
        yield f"- **{subject}**: {', '.join(f'`{name}`' for name in names.split())}"
    for title, options in _STACKS.items():
        yield from ("", f"## {title}", "", "| Key | Default | Here |", "|---|---|---|")
        modelled = [row for row in options if row.status is Status.MODELLED]
        yield from (f"| `{row.name}` | {_shown(row.default)} | `{row.ours}` |" for row in modelled)
        yield ""
        for (status, note), rows in _by_note(options).items():
            words = f"**{status}**" + (f" ({note})" if note else "")
            yield f"- {words}: {', '.join(f'`{row.name}`' for row in rows)}"


def _by_note(options: Collection[Option]) -> dict[tuple[Status, str], list[Option]]:
    """Rows that are not modelled, by what is to be said of them."""
    found: dict[tuple[Status, str], list[Option]] = {}
    for row in options:
        if row.status is not Status.MODELLED:
            found.setdefault((row.status, row.note), []).append(row)
    return dict(sorted(found.items()))


def _line(row: Option) -> str:
    cells = (f"`{row.name}`", _flags(row), _default(row), _releases(row), _paths(row), _here(row))
    return f"| {' | '.join(cells)} |"


def _flags(row: Option) -> str:
    """Nothing where the flag is the name with dashes."""
    found = [flag for flag in (row.flag, row.off) if flag]
    if found == [dashed(row.name)]:
        return ""
    return ", ".join(f"`{flag}`" for flag in found) or "none"


def _default(row: Option) -> str:
    newest = row.default if row.config is None else row.config
    older = (f"to {last} {_shown(value)}" for last, value in row.older.items())
    return "; ".join((_shown(newest), *older))


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return f"`{' '.join(value)}`" if value else "none"
    return "none" if value in (None, "") else f"`{value}`"


def _releases(row: Option) -> str:
    first = "" if row.since is None else f"from {_text(row.since)}"
    last = "" if row.until is None else f"to {_text(row.until)}"
    other = f"before {_text(row.renamed)} `{row.was}`" if row.was else ""
    return ", ".join(filter(None, (first, last, other)))


def _text(release: tuple[int, ...]) -> str:
    return "main" if release == (0, 20) else f"{release[0]}.{release[1]}"


def _paths(row: Option) -> str:
    """Those that do not follow from the name."""
    usual = (f"model.{row.name}", f"model.config.{row.name}", f"model.{row.name}")
    paths = (row.bridge, row.nemo, row.nemo_1)
    names = ("Bridge", "NeMo 2", "NeMo 1")
    return ", ".join(
        f"{name} `{path}`"
        for name, path, common in zip(names, paths, usual, strict=True)
        if path and path != common
    )


def _here(row: Option) -> str:
    if row.status is Status.MODELLED:
        return f"`{row.ours}`"
    return f"**{row.status}**" + (f": {row.note}" if row.note else "")


if __name__ == "__main__":
    PAGE.write_text(options_page(), encoding="utf-8")
