"""How often a reader changes files who follows a request from `advise()` to its first byte.

A request that becomes a job in one pass is read file by file; one that is handed to and fro is
not. So this runs a request and counts the calls between files of `advisor`, without `advisor/base`,
up to the first byte: the first call into `advisor/memory`.

A call counts where it hands the request on: one of its arguments (`self` too) is the request or
what that has become, an instance of a class of `advisor/request` or a Job; in `advisor/api`, where
a request is still keywords, every call counts. A function counts once for each function that calls
it, as a loop is read once; comprehensions, lambdas and what importing runs do not count.
A *stay* is a run of consecutive such calls in one file. A *return* is a stay in a file that was
left before: the stays less the files.

`python scripts/count_stays.py [--list]` prints the counts, and with --list the stays themselves.
"""

import importlib
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

import advisor

_ROOT: Final = Path(advisor.__file__).parent
_ARGUMENTS: Final = {"model": "llama3_70b", "gpus": "32xH100"}


class Call(NamedTuple):
    """A call that hands the request on: its file, relative to `advisor`, and its function."""

    file: str
    function: str


class Counts(NamedTuple):
    """Stays on the way, the different files among them, and returns to files left before."""

    stays: int
    files: int
    returns: int


class _FirstByte(BaseException):
    """The way ends here."""


def counts_of(calls: Sequence[Call]) -> Counts:
    """Of calls in their order."""
    stays = [file for file, _ in groupby(calls, key=lambda call: call.file)]
    return Counts(len(stays), len(set(stays)), len(stays) - len(set(stays)))


def calls_to_first_byte() -> list[Call]:
    """The calls of `advise --model llama3_70b --gpus 32xH100`, which is run here; in a process that
    has run another request caches would hide some."""
    for module in pkgutil.walk_packages(advisor.__path__, "advisor."):
        importlib.import_module(module.name)
    calls: list[Call] = []
    seen: set[tuple[CodeType | None, CodeType]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        file = _file(frame)
        if event != "call" or file is None:
            return
        if file.startswith("memory/"):
            sys.setprofile(None)
            raise _FirstByte
        edge = _caller(frame), frame.f_code
        if edge not in seen and (file.startswith("api/") or any(map(_is_request, _values(frame)))):
            seen.add(edge)
            calls.append(Call(file, frame.f_code.co_name))

    sys.setprofile(note)
    try:
        advisor.advise(**_ARGUMENTS)
    except _FirstByte:
        return calls
    finally:
        sys.setprofile(None)
    raise AssertionError("no call into advisor/memory")


def _file(frame: FrameType) -> str | None:
    """The file of a function that counts, relative to `advisor`; None for any other."""
    path = Path(frame.f_code.co_filename)
    if frame.f_code.co_name.startswith("<") or not path.is_relative_to(_ROOT):
        return None
    file = path.relative_to(_ROOT).as_posix()
    return None if file.startswith("base/") else file


def _caller(frame: FrameType) -> CodeType | None:
    before = frame.f_back
    while before is not None and _file(before) is None:
        before = before.f_back
    return before.f_code if before else None


def _values(frame: FrameType) -> Iterator[object]:
    code = frame.f_code
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        yield frame.f_locals.get(name)


def _is_request(value: object) -> bool:
    cls = type(value)
    of_request = cls.__module__.startswith("advisor.request.")
    return of_request or (cls.__module__, cls.__name__) == ("advisor.job.job", "Job")


def main() -> None:
    """Print the counts, and the stays where they are asked for."""
    calls = calls_to_first_byte()
    counts = counts_of(calls)
    print(f"{counts.stays} stays in {counts.files} files, {counts.returns} returns")
    if "--list" in sys.argv[1:]:
        for file, stay in groupby(calls, key=lambda call: call.file):
            print(f"{file}: {', '.join(call.function for call in stay)}")


if __name__ == "__main__":
    main()
