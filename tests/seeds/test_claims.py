"""Every number of docs/claims.md is computed, so that the page cannot rot."""

from pathlib import Path

import pytest

from tests.seeds.claims import FLASH as FLASH_ATTENTION
from tests.seeds.claims import NUMBERS, gib, gpt, h100, percent
from tests.seeds.walk import evaluation, saved_share

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"


def rows() -> dict[str, list[str]]:
    """Cells by the row's id."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row for row in cells if row[0] != "id"}


def test_the_page_and_the_numbers_are_of_the_same_claims() -> None:
    assert rows().keys() == NUMBERS.keys()
    assert all(len(row) == 4 and all(row) for row in rows().values())


@pytest.mark.parametrize("claim", NUMBERS)
def test_our_number_is_what_the_page_says(claim: str) -> None:
    cell = rows()[claim][2]
    for number in NUMBERS[claim]():
        assert number in cell, f"docs/claims.md, {claim}: now {number}"


def test_the_numbers_among_the_reasons() -> None:
    assert (
        percent(saved_share(gpt(FLASH_ATTENTION), "selective:core_attn"))
        in (rows()["core_attn_gpt3"][3])
    )
    for fields in ({"precision": "fp8_current"}, {}):
        activations = evaluation(h100(**fields), "none").peak.memory_bytes.activations
        assert gib(activations) in rows()["fp8_memory"][3]
