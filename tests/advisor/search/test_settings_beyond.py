"""That a search of layouts ends with settings that only `--search optimum` decides otherwise."""

from typing import Any

import pytest

from advisor.answer.answer import SAME_TIME
from advisor.request.request import Request, SearchScope
from advisor.search.advise import advise

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "llama3_8b", "gpus": "8xH100"},
        {"model": "llama3_8b", "gpus": "8xH100", "micro_batch_size": 2, "memory_budget": "60GiB"},
    ],
)
def test_a_search_of_layouts_is_no_slower_than_the_optimum(fields: dict[str, Any]) -> None:
    searched = advise(Request(**fields, search=SearchScope.LAYOUT)).candidates[0].evaluation
    optimum = advise(Request(**fields, search=SearchScope.OPTIMUM)).candidates[0].evaluation
    assert searched.fits
    assert searched.step_time_seconds <= optimum.step_time_seconds * (1 + SAME_TIME)
