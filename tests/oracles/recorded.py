"""What the oracles measured once, in data/measured.csv: looked up instead of measured again; under
another release of Megatron (MEGATRON_CORE), in data/measured-RELEASE.csv.

A figure is taken from the recording where the packages installed are those it was made with. Every
twelfth case of each file is measured nevertheless, in turns, and has to equal its recording to the
byte; so has every case under ORACLES=live (``make oracles``), and one without a recording is
measured. ``ORACLES=record python -m pytest tests/oracles``, in one process, writes the file anew;
of some of its files, their rows.
"""

import csv
import os
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from advisor.frameworks.megatron.raw import RawSettings
from advisor.request.origin import stated_fields
from harness.backends.megatron_core.installed import VARIABLE
from tests.turns import TURN

DATA: Final = Path(__file__).with_name("data")
OTHER_RELEASE: Final = bool(os.environ.get(VARIABLE))
PACKAGES: Final = ("megatron-core", "torch", "torchtitan", "transformers", "accelerate")
LIVE_ONE_IN: Final = 12
TABLE: Final = DATA / (
    f"measured-{version('megatron-core')}.csv" if OTHER_RELEASE else "measured.csv"
)
Measured = tuple[int, ...]


class Row(Struct, frozen=True, order=True):
    """One recorded case: the file of tests that asked first, what was asked, and the figures."""

    file: str
    digest: str
    question: str
    figures: Measured


def measured(what: str, *case: Any, by: Callable[[], Measured]) -> Measured:
    """Figures of `case` (records, options and plain values), recorded or given by `by`."""
    question = " ".join([what, *map(readable, case)])
    mode = os.environ.get("ORACLES", "")
    if mode == "record":
        return _recorded(question, by())
    known = recordings().get(question)
    if known is None:
        return by()
    if mode == "live" or question in sample():
        live = by()
        assert live == known.figures, f"{question}: {live}, but {TABLE.name} has {known.figures}"
    return known.figures


def readable(value: Any) -> str:
    """A value in words: of a record, or of options, the fields that differ from their defaults, by
    name: their order may change."""
    if isinstance(value, RawSettings):
        return _named(value, vars(value))
    if isinstance(value, Struct):
        return _named(value, stated_fields(value))
    if isinstance(value, tuple | list):
        return f"({' '.join(map(readable, value))})"
    return str(value.value) if isinstance(value, Enum) else str(value)


def digest(question: str) -> str:
    """By which the sample is drawn."""
    return sha256(question.encode()).hexdigest()[:12]


@cache
def installed() -> str:
    """The packages whose figures these are, without local labels such as +cpu."""
    return " ".join(f"{name}=={_version(name)}" for name in PACKAGES)


def _version(name: str) -> str:
    try:
        return version(name).split("+")[0]
    except PackageNotFoundError:
        return "none"


def read() -> tuple[str, list[Row]]:
    """The packages in the head of the file, and its rows."""
    if not TABLE.exists():
        return "", []
    with TABLE.open(newline="") as stream:
        head = stream.readline().removeprefix("#").strip()
        return head, [
            Row(file, key, question, tuple(map(int, figures.split())))
            for file, key, question, figures in csv.reader(stream)
        ]


@cache
def recordings() -> dict[str, Row]:
    """By question; none where other packages are installed."""
    head, rows = read()
    return {row.question: row for row in rows} if head == installed() else {}


@cache
def sample() -> frozenset[str]:
    """The cases that are measured in this run."""
    return frozenset(row.question for row in sampled(recordings().values()))


def sampled(rows: Iterable[Row]) -> Iterator[Row]:
    """Every twelfth row of each file in the order of the digests, from the first or the seventh."""
    for _, of_file in groupby(sorted(rows), key=lambda row: row.file):
        there = list(of_file)
        start = TURN % 2 * LIVE_ONE_IN // 2
        yield from there[start if start < len(there) else 0 :: LIVE_ONE_IN]


_NEW: dict[str, Row] = {}


def _recorded(question: str, figures: Measured) -> Measured:
    file = Path(os.environ["PYTEST_CURRENT_TEST"].split("::")[0]).name
    known = _NEW.setdefault(question, Row(file, digest(question), question, figures))
    assert known.figures == figures, f"{question}: {figures} after {known.figures}"
    return figures


def write() -> None:
    """What ORACLES=record gathered in this process; rows of files that were not run stay, if they
    are of the same packages."""
    if not _NEW:  # the controller of pytest-xdist, or nothing selected
        return
    head, rows = read()
    ran = {row.file for row in _NEW.values()}
    others = {row.question: row for row in rows if head == installed() and row.file not in ran}
    with TABLE.open("w", newline="") as stream:
        stream.write(f"# {installed()}\n")
        writer = csv.writer(stream, lineterminator="\n")
        for row in sorted((_NEW | others).values()):
            writer.writerow((row.file, row.digest, row.question, " ".join(map(str, row.figures))))


def _named(value: object, fields: dict[str, Any]) -> str:
    reported = (f"{name}={readable(one)}" for name, one in sorted(fields.items()))
    return f"{type(value).__name__}({', '.join(reported)})"
