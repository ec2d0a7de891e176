"""An answer with more rows than a picture has names for."""

import pytest
from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.search.ranking import rank
from tests.advisor.conftest import JOB


@pytest.fixture
def crowded(make_advice, make_evaluation) -> Answer:
    """Sixty rows: forty on a front of steps of 0.5 %, of two layouts, some of which do not fit."""
    wide = replace(JOB, layout=replace(JOB.layout, virtual_pipeline_model_parallel_size=10))
    front = [
        make_evaluation(f"full:block:{n + 1}", 50 - n, 0.05 * n, 0.1 if n < 10 else 0.99, job=job)
        for n, job in zip(range(40), [JOB, wide] * 20, strict=True)
    ]
    beaten = [make_evaluation("selective:mlp", 20 + n, 2.0 + n % 3) for n in range(20)]
    return replace(make_advice(), candidates=rank([*front, *beaten]))
