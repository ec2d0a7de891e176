"""Commands of a page: run in this process where they are ours, else by bash; or only parsed."""

import importlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
import tomllib
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from unittest.mock import patch

from advisor.base.errors import UserError
from advisor.cli.main import main as advise
from harness.cli.flags import Parser
from harness.cli.main import MODULES
from harness.cli.main import main as harness
from tests.docs.blocks import ROOT

OURS: dict[str, Callable[[list[str]], int]] = {"advise": advise, "harness": harness}
OPERATORS = ("&&", ";", "|", "&", ">", ">>", "(", ")")
DRY = ("run", "sweep", "rehearse")
"""Subcommands of `harness` that say with --dry-run what they would do."""
SHELL_ALONE = ("mkdir", "tar", ".", "python3")
"""Programs of others, of which bash checks the syntax and nobody the words."""


def logical_lines(lines: tuple[str, ...]) -> Iterator[str]:
    """Lines with those that go on in the next one joined, without comments."""
    joined = "\n".join(lines).replace("\\\n", " ")
    for line in joined.splitlines():
        bare = re.sub(r"(^|\s)#(?!\S*['\"]).*$", "", line).strip()
        if bare:
            yield bare


def words_of(line: str) -> list[str]:
    """Words and operators; names of variables replaced by what they hold."""
    read = shlex.shlex(os.path.expandvars(line), posix=True, punctuation_chars="();|&>")
    read.whitespace_split, read.commenters = True, ""
    return list(read)


def run(line: str, folder: Path) -> tuple[str, int]:
    """What a line prints, on either stream, and its exit code."""
    words = words_of(line)
    if "&&" in words:
        first = words.index("&&")
        printed, code = run(shlex.join(words[:first]), folder)
        if code:
            return printed, code
        more, code = run(_joined(words[first + 1 :]), folder)
        return printed + more, code
    assignment = re.fullmatch(r"(\w+)=(.*)", words[0])
    if assignment and len(words) == 1:
        os.environ[assignment[1]] = assignment[2]
        return "", 0
    if words[0] not in OURS:
        return _bash(line, folder)
    end = next((i for i, word in enumerate(words) if word in OPERATORS), len(words))
    printed, code = _ours(words[:end], folder)
    rest = words[end:]
    if rest[:1] == [">"]:
        (folder / rest[1]).write_text(printed)
        return "", code
    if rest[:1] == ["|"]:
        return _bash(_joined(rest[1:]), folder, printed)
    return printed, code


def _joined(words: list[str]) -> str:
    return " ".join(word if word in OPERATORS else shlex.quote(word) for word in words)


def _ours(words: list[str], folder: Path) -> tuple[str, int]:
    name, *arguments = words
    stream = io.StringIO()
    with chdir(folder), redirect_stdout(stream), redirect_stderr(stream):
        code = OURS[name](arguments)
    return stream.getvalue(), code


def _bash(line: str, folder: Path, given: str = "") -> tuple[str, int]:
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", line],
        cwd=folder,
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout, done.returncode


def parse(lines: tuple[str, ...], folder: Path) -> None:
    """Raise where bash does not read the lines, or a program not its words."""
    text = "\n".join(lines)
    read = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert read.returncode == 0, read.stderr
    for line in logical_lines(lines):
        for command in _commands(words_of(line)):
            _parsed(command, folder)


def _commands(words: list[str]) -> Iterator[list[str]]:
    """The simple commands of a line, without variables in front and files after."""
    command: list[str] = []
    for word in [*words, ";"]:
        if word not in OPERATORS:
            command.append(word)
            continue
        while command and re.match(r"\w+=", command[0]):
            del command[0]
        if command:
            yield command
        command = []
        if word in (">", ">>"):
            return


def _parsed(command: list[str], folder: Path) -> None:
    name, *words = command
    if name == "advise":
        from advisor.cli.arguments import SUBCOMMANDS
        from advisor.cli.arguments import parse as read

        assert words[0] in SUBCOMMANDS or read(words)
    elif name == "harness":
        _parsed_harness(words, folder)
    elif name == "pip" or (name == "python" and words[:2] == ["-m", "pip"]):
        _extras_exist(words)
    elif name == "python":
        assert words[0] == "-m", command
        assert importlib.util.find_spec(words[1]), command
    elif name == "torchrun":
        from torch.distributed.run import get_args_parser

        get_args_parser().parse_args(words)
    elif name == "make":
        targets = [word for word in words if "=" not in word]
        text = (ROOT / "Makefile").read_text()
        assert all(re.search(rf"^{target}:", text, re.MULTILINE) for target in targets), command
    elif name.startswith("scripts/"):
        assert (ROOT / name).exists(), command
    else:
        assert name in SHELL_ALONE, f"{name}: nothing here parses it"


class _ReadError(Exception):
    """The arguments of a command could be read, and it goes no further."""


def _parsed_harness(words: list[str], folder: Path) -> None:
    name, *arguments = words
    if name in DRY:
        printed, code = _ours(["harness", *words, "--dry-run"], folder)
        assert code == 0, printed
        return
    module = importlib.import_module(MODULES[name])
    read = Parser.read

    def only_read(parser: Parser, argv: Sequence[str]) -> Namespace:
        read(parser, argv)
        raise _ReadError

    try:
        if hasattr(module, "parse"):
            module.parse(arguments)
        else:
            with patch.object(Parser, "read", only_read), suppress(_ReadError):
                module.main(arguments)
    except UserError as error:
        raise AssertionError(str(error)) from error


def _extras_exist(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for named in re.findall(r"\[([a-z,]+)\]", " ".join(words)):
        assert set(named.split(",")) <= extras["optional-dependencies"].keys(), words
