"""Time that several workers spent at once counts once."""

import pytest

from harness.sweeps.workers.book import covered_seconds


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0.0),
        ([(1.0, 3.0)], 2.0),
        ([(4.0, 5.0), (1.0, 3.0)], 3.0),
        ([(1.0, 3.0), (2.0, 5.0), (2.0, 4.0)], 4.0),
        ([(1.0, 9.0), (2.0, 3.0), (10.0, 11.0)], 9.0),
    ],
)
def test_the_union_of_spans(spans: list[tuple[float, float]], seconds: float) -> None:
    assert covered_seconds(spans) == seconds
