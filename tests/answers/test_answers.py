"""The JSON of sixty requests is what it was: a change of the code that should change no answer
changes none. `ANSWERS=record python -m pytest tests/answers` writes the answers anew where one
is meant to.

What is faster near the job takes three quarters of the time: it is searched for one request in
three, and for all under `ANSWERS=live`; the others are asked with --quick."""

import gzip
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.cli.main import main

FOLDER = Path(__file__).parent
REQUESTS = (FOLDER / "requests.txt").read_text().splitlines()
ANSWERS = FOLDER / "answers.json.gz"
MODE = os.environ.get("ANSWERS", "")
RECORD = MODE == "record"
SEARCHED = REQUESTS if MODE else REQUESTS[2::3]
"""Every third, which leaves out no framework and no family of models."""
OF_THE_SEARCH = ("evaluated", "fastest_found", "fits", "search", "verdict")
"""Keys of an answer that --quick changes."""


@pytest.fixture(scope="module")
def recorded() -> Iterator[dict[str, object]]:
    if RECORD:
        answers: dict[str, object] = {}
        yield answers
        text = json.dumps(answers, sort_keys=True, indent=0)
        ANSWERS.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        yield json.loads(gzip.decompress(ANSWERS.read_bytes()))


def _differences(was: object, now: object, at: str = "") -> Iterator[str]:
    """Paths at which an answer is another one; a key that was added is no difference."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key, value in was.items():
            if key in now:
                yield from _differences(value, now[key], f"{at}.{key}")
            else:
                yield f"{at}.{key} is gone"
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for index, (one, other) in enumerate(zip(was, now, strict=True)):
            yield from _differences(one, other, f"{at}[{index}]")
    elif was != now and not _the_last_digit(was, now):
        yield f"{at}: {str(was)[:200]} -> {str(now)[:200]}"


def _the_last_digit(was: object, now: object) -> bool:
    """Two floats of another C library's exp and log: 1e-12, a few thousand units of the last
    place."""
    return (
        isinstance(was, float) and isinstance(now, float) and math.isclose(was, now, rel_tol=1e-12)
    )


@pytest.mark.parametrize("request_line", REQUESTS)
def test_an_answer_is_what_it_was(request_line: str, recorded: dict[str, object], capsys) -> None:
    arguments = request_line.split()
    shown = [] if "--top" in arguments else ["--top", "6"]
    quick = request_line not in SEARCHED and "--search" not in arguments
    code = main([*arguments, "--format", "json", *shown, *(["--quick"] if quick else [])])
    printed = capsys.readouterr()
    answer = {"code": code, "error": printed.err, "answer": json.loads(printed.out or "null")}
    if RECORD:
        recorded[request_line] = answer
        return
    was = recorded[request_line]
    if quick:
        was = {"error": was["error"], "answer": _without(was["answer"], OF_THE_SEARCH)}
    assert not list(_differences(was, answer))[:5]


def _without(answer: dict[str, object] | None, keys: tuple[str, ...]) -> dict[str, object] | None:
    return answer and {name: value for name, value in answer.items() if name not in keys}
