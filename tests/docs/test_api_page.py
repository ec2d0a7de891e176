"""docs/api.md says what every name is that an answer leads to."""

import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

import advisor
from scripts.write_docs.api_page import ANSWERS, CALLS, KEYS, RESULTS, SAID, meaning, types_of
from tests.docs.blocks import ROOT, blocks_of

PAGE = ROOT / "docs" / "api.md"
SECTIONS = dict(re.findall(r"(?ms)^### (\w+)\n(.*?)(?=^##|\Z)", PAGE.read_text(encoding="utf-8")))
UNIT = re.compile(r"_(bytes|seconds|per_second)$")


def _held(value: Any) -> Iterator[Struct]:
    """Every record in a value."""
    if isinstance(value, Struct):
        yield value
        value = [getattr(value, name) for name in value.__struct_fields__]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from _held(one)


def _rows(kind: type) -> dict[str, str]:
    """What the page says of each field of a type, by type and meaning."""
    rows: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        rows |= re.findall(r"(?m)^\| `(\w+)` \| (.*) \|$", SECTIONS.get(base.__name__, ""))
    return rows


def test_every_name_that_an_answer_leads_to_is_on_the_page(monkeypatch) -> None:
    monkeypatch.chdir(ROOT / "tests/docs/files")
    moe = advisor.advise(model="mixtral_8x7b", gpus="64xH100", top=2, memory_budget="30GiB")
    read = advisor.advise(source="train.sh", gpus="8xH100", top=2, explain=0)
    best = advisor.advise(model="llama3_8b", gpus="8xH100", search="optimum", top=1)
    held = list(_held([moe, read, best, advisor.diff(moe, read)]))
    assert {"Remedy", "ReadFile", "Explanation", "Optimum", "Side"} < {
        type(x).__name__ for x in held
    }
    for one in held:
        rows = _rows(type(one))
        for name in one.__struct_fields__:
            assert name in rows, f"{type(one).__name__}.{name}"
            if UNIT.search(name) and isinstance(getattr(one, name), int | float):
                assert re.match(r"\w+(?: or None)?, \S+", rows[name]), f"{name}: no unit"


def test_every_field_of_an_answer_has_a_meaning() -> None:
    for kind in types_of(*ANSWERS):
        bases = [base for base in kind.__mro__ if issubclass(base, Struct) and base is not Struct]
        for name in kind.__struct_fields__:
            keys = any(base in KEYS for base in bases)
            assert keys or any(meaning(base, name) for base in bases), f"{kind.__name__}.{name}"


def test_meanings_are_of_fields_that_are_there() -> None:
    kinds = (*types_of(*RESULTS), *types_of(*ANSWERS))
    there = {f"{kind.__name__}.{name}" for kind in kinds for name in kind.__struct_fields__}
    assert {key for key in SAID if "." in key} <= there


def test_every_public_name_has_an_example_that_runs() -> None:
    code = "".join(block.text for block in blocks_of(PAGE) if block.language == "python")
    ours = {name for name in CALLS if not re.search(rf"\b{name}\(", code)}
    assert {name.rpartition("_")[2] for name in ours} == {"schema"}  # as advisor.json_schema
