"""Writes a report: every file that can be written is, and what is missing is said in one line."""

import os
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Final

from msgspec import Struct, field

from advisor.base.errors import install_hint
from harness.report import export, figures, sections
from harness.report.document import SUMMARY_BYTES, html, markdown, summary
from harness.report.facts import Facts, load_facts
from harness.trial.files import write_atomic

FOLDER: Final = "report"


class Written(Struct, kw_only=True):
    """Files that were written, and notes on those that were not."""

    folder: Path
    files: list[Path] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """what is not there -> the package it needs"""

    @property
    def notes(self) -> tuple[str, ...]:
        """One line for all that needs packages; none where everything is there."""
        needs = f"needs {', '.join(sorted(set(self.missing.values())))}; {install_hint('report')}"
        return (f"not written: {', '.join(self.missing)}: {needs}",) if self.missing else ()


def write_report(facts: Facts, folder: Path, step_summary: Path | None = None) -> Written:
    """Write the report's files into `folder`, append it to `step_summary`; OSError if one fails."""
    folder.mkdir(parents=True, exist_ok=True)
    written = Written(folder=folder)
    try:
        pictures = figures.draw_all(facts, folder / "figures")
        written.files += [folder / "figures" / f"{picture.name}.svg" for picture in pictures]
    except ImportError:
        pictures, written.missing["figures"] = (), "matplotlib"
    document = sections.make_document(facts, pictures)
    _write(written, "report.md", markdown(document))
    _write(written, "junit.xml", export.junit(facts.comparison, facts.plan.experiment))
    _write(written, "bmf.json", export.bmf(facts))
    try:
        _write(written, "report.html", html(document))
    except ImportError:
        written.missing["report.html"] = "jinja2"
    _write_tables(written, facts)
    if step_summary is not None:
        append_summary(step_summary, lambda limit: summary(document, limit))
    return written


def report_run(run: Path, say: Callable[[str], None]) -> None:
    """Write the report of a run that has ended into its folder; say where, or what failed."""
    try:
        written = write_report(load_facts(run), run / FOLDER, step_summary_file())
    except Exception as error:
        again = f"harness report {quote(str(run))}"
        words = " ".join(str(error).split())
        say(f"report not written: {type(error).__name__}: {words}; write it with: {again}")
        return
    for note in written.notes:
        say(note)
    say(f"report in {written.folder}")


def step_summary_file() -> Path | None:
    """The file that GitHub shows next to a step, where there is one."""
    name = os.environ.get("GITHUB_STEP_SUMMARY")
    return Path(name) if name else None


def append_summary(path: Path, write: Callable[[int], str]) -> None:
    """Append what `write` makes of the room that is left: GitHub drops a larger summary whole."""
    used = path.stat().st_size if path.exists() else 0
    with path.open("a", encoding="utf-8") as file:
        file.write(write(SUMMARY_BYTES - used - 1))


def _write_tables(written: Written, facts: Facts) -> None:
    try:
        files = export.write_tables(facts, written.folder)
    except ImportError:
        written.missing |= {"trials.csv": "pandas", "trials.parquet": "pandas"}
        return
    written.files += files
    if not any(file.suffix == ".parquet" for file in files):
        written.missing["trials.parquet"] = "pyarrow"


def _write(written: Written, name: str, text: str) -> None:
    write_atomic(written.folder / name, text)
    written.files.append(written.folder / name)
