"""Every fenced block of the README and the docs is run, and prints what the page shows.

``DOCS=record python -m pytest tests/docs`` writes what is printed now into the pages. Commands
run in a folder that has the checkout's data and what `tests/docs/files` says of "your own" job.
"""

import json
import os
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from harness.trial.trial import RECORDED
from tests.docs.blocks import MARKS, PAGES, PLAIN, READ, ROOT, RUN, Block, blocks_of, with_lines
from tests.docs.shell import logical_lines, parse, run

RECORD = os.environ.get("DOCS") == "record"
if RECORD:  # skipped tests would look like recorded pages
    import hydra  # noqa: F401
else:
    pytest.importorskip("hydra")
LINKED = ("configs", "examples", "scripts", "pyproject.toml", "Makefile")
RUN_FOLDER = ROOT / "results/measured/h200/runs/llama3_8b_l24_s8192_b1"
READERS = {"yaml": yaml.safe_load, "toml": tomllib.loads, "json": json.loads}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout's data, a job of one's own, and a run of it in runs/NAME."""
    for name in LINKED:
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "results").mkdir()
    for name in ("measured", "published"):
        (tmp_path / "results" / name).symlink_to(ROOT / "results" / name)
    shutil.copytree(ROOT / "results/golden", tmp_path / "results/golden")
    shutil.copytree(ROOT / "tests/docs/files", tmp_path, dirs_exist_ok=True)
    shutil.copytree(RUN_FOLDER, tmp_path / "runs/NAME")
    for name in ("GITHUB_STEP_SUMMARY", "CI", "NO_COLOR", "FORCE_COLOR", *RECORDED):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def test_every_block_says_its_language() -> None:
    for page in PAGES:
        for block in blocks_of(page):
            assert block.language in RUN | READ | PLAIN, f"{block.place}: {block.language!r}"
            assert block.marks.keys() <= MARKS, block.place


def test_output_that_is_stale_is_found_and_written_anew(folder: Path) -> None:
    page = folder / "page.md"
    page.write_text("```console\n$ advise --version\nold\n$ advise lint\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="exit code 2"):
        _tried(next(blocks_of(page)), folder, {})
    page.write_text("```console\n$ advise --version\nold\n```\nafter\n", encoding="utf-8")
    (block,) = blocks_of(page)
    shown = _tried(block, folder, {})
    assert shown != block.lines
    written = with_lines(page, {block.line: shown})
    assert written == f"```console\n$ advise --version\n{shown[1]}\n```\nafter\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@patch.dict(os.environ)
def test_the_blocks_of_a_page_run(page: Path, folder: Path) -> None:
    names: dict[str, Any] = {}
    changed = {}
    for block in blocks_of(page):
        shown = _tried(block, folder, names)
        if shown != block.lines:
            assert RECORD, f"{block.place}\n" + "\n".join(_first_difference(block.lines, shown))
            changed[block.line] = shown
    if changed:
        page.write_text(with_lines(page, changed), encoding="utf-8")


def _tried(block: Block, folder: Path, names: dict[str, Any]) -> tuple[str, ...]:
    """The block's lines as they should be."""
    if "file" in block.marks:
        path = folder / block.marks["file"]
        assert path.resolve().is_relative_to(folder), f"{block.place}: in the checkout's data"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
    elif block.language in READ:
        READERS[block.language](block.text)
    elif block.language == "python":
        _python(block, folder, names)
    elif "parse-only" in block.marks:
        parse(block.lines, folder)
    elif block.language == "bash":
        for line in logical_lines(block.lines):
            _checked(block, line, folder, last=False)
    elif block.language == "console":
        return tuple(_session(block, folder))
    return block.lines


def _python(block: Block, folder: Path, names: dict[str, Any]) -> None:
    code = compile("\n" * block.line + block.text, str(block.page), "exec")
    if "parse-only" not in block.marks:
        before = Path.cwd()
        os.chdir(folder)
        try:
            exec(code, names)
        finally:
            os.chdir(before)


def _session(block: Block, folder: Path) -> Iterator[str]:
    """`$ command` lines, each with what it prints."""
    commands = _prompts(block.lines)
    for number, lines in enumerate(commands):
        yield from lines
        (line,) = logical_lines((lines[0].removeprefix("$ "), *lines[1:]))
        printed = _checked(block, line, folder, last=number == len(commands) - 1)
        yield from (text.rstrip() for text in printed.rstrip("\n").split("\n") if printed)


def _prompts(lines: tuple[str, ...]) -> list[list[str]]:
    """The lines of each command."""
    commands: list[list[str]] = []
    goes_on = False
    for line in lines:
        if line.startswith("$ "):
            commands.append([line])
        elif goes_on:
            commands[-1].append(line)
        goes_on = (line.startswith("$ ") or goes_on) and line.endswith("\\")
    return commands


def _checked(block: Block, line: str, folder: Path, *, last: bool) -> str:
    printed, code = run(line, folder)
    wanted = int(block.marks.get("exit", 0)) if last or block.language == "bash" else 0
    assert code == wanted, f"{block.place}: {line}\nexit code {code}, not {wanted}\n{printed}"
    return printed


def _first_difference(was: tuple[str, ...], now: tuple[str, ...]) -> Iterator[str]:
    for one, other in zip((*was, ""), (*now, ""), strict=False):
        if one != other:
            yield f"the page has   {one}"
            yield f"now it prints  {other}"
            yield "DOCS=record python -m pytest tests/docs writes it anew"
            return
