"""Numbers of a row that the explorer computes with."""

from statistics import NormalDist

import pytest
from msgspec.structs import replace

from advisor.explorer.step_numbers import clearance
from advisor.frameworks.megatron.setting import NONE
from tests.advisor.jobs import evaluator_of
from tests.advisor.memory.test_imbalance import job


@pytest.mark.parametrize("cp", [1, 2])
def test_the_clearance_is_that_of_the_fit_probability(cp: int) -> None:
    """Also where a sequence is cut over ranks, which is never promised to fit."""
    of = job(moe_router_force_load_balancing=True)
    layout = replace(of.layout, context_parallel_size=cp)
    of = replace(of, layout=layout, num_gpus=8 * cp)
    found = evaluator_of(of).evaluate(NONE)
    clear, sigma, most = clearance(found)
    likely = min(most, NormalDist().cdf(clear))
    assert likely == pytest.approx(found.fit_probability, abs=1e-3)
    assert most == (0.949 if cp > 1 else 1.0)
    assert (found.fit_probability < 0.95) is (cp > 1)
    assert sigma > 0
