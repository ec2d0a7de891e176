"""The recording of what the oracles measured: who asks, what is looked up, what is measured."""

import os
from collections.abc import Iterator

import pytest

pytest.importorskip("megatron.core")
recording = os.environ.get("ORACLES") == "record"
pytestmark = pytest.mark.skipif(recording, reason="it is being written")

from . import recorded  # noqa: E402
from .megatron import OracleCase  # noqa: E402
from .moe_cases import MIXTRAL, with_experts  # noqa: E402
from .prediction import LLAMA3_8B, selective, tensor_parallel  # noqa: E402
from .recorded import Measured, digest, measured, read, readable, sampled  # noqa: E402


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[recorded.Row]]:
    """Twelve cases of one file and one of another, as if they were the recording."""
    made = [
        recorded.Row(file, digest(f"peak {n}"), f"peak {n}", (n,))
        for n, file in enumerate(["a.py"] * 12 + ["b.py"])
    ]
    monkeypatch.delenv("ORACLES", raising=False)
    monkeypatch.setattr(recorded, "recordings", lambda: {row.question: row for row in made})
    recorded.sample.cache_clear()
    yield made
    recorded.sample.cache_clear()


def test_the_file_is_of_the_packages_the_tests_are_written_against() -> None:
    """Every file of tests has cases that are measured in every run, one in twelve or so."""
    head, found = read()
    assert head == (
        "megatron-core==0.16.1 torch==2.13.0 torchtitan==0.2.2 transformers==5.23.0 "
        "accelerate==1.15.0"
    )
    assert all(row.digest == digest(row.question) for row in found)
    live = list(sampled(found))
    assert {row.file for row in live} == {row.file for row in found}
    assert 1 / 14 <= len(live) / len(found) <= 1 / 9


def asked(rows: list[recorded.Row], figures: Measured | None = None) -> list[str]:
    """The questions that were measured when all are asked once; `figures` is what they gave."""
    live: list[str] = []
    for row in rows:

        def by(row: recorded.Row = row) -> Measured:
            live.append(row.question)
            return figures or row.figures

        assert measured(*row.question.split(), by=by) == row.figures
    return live


def test_one_in_twelve_of_each_file_is_measured(rows: list[recorded.Row], monkeypatch) -> None:
    live = asked(rows)
    assert len(live) == 2
    assert rows[-1].question in live
    monkeypatch.setenv("ORACLES", "live")
    assert len(asked(rows)) == len(rows)


def test_what_is_measured_has_to_be_what_was_recorded(rows: list[recorded.Row]) -> None:
    with pytest.raises(AssertionError, match=r"\(99,\), but measured.csv has"):
        asked(rows, (99,))


def test_other_packages_and_unknown_cases_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured("nobody asked this", by=lambda: (7,)) == (7,)
    monkeypatch.setattr(recorded, "installed", lambda: "megatron-core==0.17.0")
    assert recorded.recordings.__wrapped__() == {}


@pytest.mark.skipif(not recorded.recordings(), reason="recorded with other packages")
@pytest.mark.parametrize(
    "case",
    [
        LLAMA3_8B,
        LLAMA3_8B.changed(**tensor_parallel(4, False), **selective("mlp")),
        with_experts(MIXTRAL, expert_model_parallel_size=4),
    ],
)
def test_a_case_is_found_as_it_was_recorded(case: OracleCase) -> None:
    """Where fields are renamed or defaults move, every case would be measured in every run."""
    assert f"saved_bytes_of_a_layer {readable(case)}" in recorded.recordings()


def test_a_question_says_all_that_is_not_the_default() -> None:
    case = LLAMA3_8B.changed(**selective("mlp"))
    said = "recompute_granularity=selective, recompute_modules=(mlp), "
    assert said in readable(case)
    assert "rope_type" not in readable(case)
