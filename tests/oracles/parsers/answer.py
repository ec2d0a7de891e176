"""python -m tests.oracles.parsers.answer PROGRAM: its answers to the questions on stdin, both as
JSON; imports nothing of the advisor, and runs where the program is."""

import argparse
import importlib
import json
import sys
import warnings
from collections.abc import Callable
from typing import NoReturn

ACCEPTED = "accepted"


def _refuse(_: argparse.ArgumentParser, message: str) -> NoReturn:
    raise ValueError(message)


def answer(accept: Callable[[str], None], question: str) -> str:
    """`accepted`, or what was raised and its first line."""
    try:
        accept(question)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return ACCEPTED


def main(program: str) -> None:
    """The last line of stdout is the answers."""
    warnings.simplefilter("ignore")
    argparse.ArgumentParser.error = _refuse  # type: ignore[method-assign,assignment]
    accept = importlib.import_module(f"tests.oracles.parsers.{program}").accept
    print("\n" + json.dumps([answer(accept, question) for question in json.load(sys.stdin)]))


if __name__ == "__main__":
    main(sys.argv[1])
