"""`--search optimum`: what is first, and what is proven of it."""

import pytest

from advisor.answer.answer import Answer
from advisor.base.errors import UserError
from advisor.request.request import Request, SearchScope
from advisor.search.advise import advise


def ask(search: SearchScope | None = SearchScope.OPTIMUM, **fields: object) -> Answer:
    return advise(Request(model="llama3_8b", gpus="8xH100", search=search, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("framework", ["fsdp2", "deepspeed"])
@pytest.mark.parametrize("budget", ["79GiB", "50GiB", "1GiB"])
def test_the_optimum_is_never_slower_than_the_usual_answer(framework: str, budget: str) -> None:
    usual = ask(None, framework=framework, memory_budget=budget)
    proven = ask(framework=framework, memory_budget=budget)
    optimum = proven.optimum
    assert optimum is not None
    assert usual.optimum is None
    assert (optimum.best is not None) >= usual.fits
    if optimum.best is None:
        assert optimum.bound_seconds is None
        return
    first = proven.candidates[0].evaluation
    assert optimum.best.spec == first.setting.spec
    assert optimum.bound_seconds is not None
    assert optimum.bound_seconds <= first.step_time_seconds
    assert first.step_time_seconds <= usual.candidates[0].evaluation.step_time_seconds


def test_a_setting_leaves_nothing_to_decide() -> None:
    with pytest.raises(UserError, match="leaves nothing for --search optimum to decide"):
        ask(recompute=("none",))
