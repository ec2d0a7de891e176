"""The short way to the best layout ends where the whole search does."""

import pytest

from advisor.cost.calibration import load_calibration
from advisor.ranking import order, tier
from advisor.request import Request, SearchScope
from advisor.resolve import resolve
from advisor.search import best_on_any_layout, search_layouts


@pytest.mark.parametrize(
    ("model", "gpus", "level"),
    [
        ("llama3_70b", "32xH100", 0),
        ("mixtral_8x7b", "4xH200", 2),
        ("gpt3_175b", "16xH100", 2),
    ],
)
def test_the_best_is_found_without_looking_at_all(model: str, gpus: str, level: int) -> None:
    resolution = resolve(Request(model=model, gpus=gpus, search=SearchScope.LAYOUT))
    calibration = load_calibration(resolution.gpu)
    best = best_on_any_layout(resolution, calibration)
    every = search_layouts(resolution, calibration)
    first = min(every.evaluations, key=order)
    assert (best.evaluation.job, best.evaluation.setting) == (first.job, first.setting)
    assert tier(first) == level
    assert best.num_layouts == every.num_layouts
    if level == 0:
        assert best.evaluated < len(every.evaluations)
    else:
        assert best.evaluated == len(every.evaluations), "what is too large is looked at in full"
