"""Classes of jobs whose rows all lie on one side, by their properties alone."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from advisor.search.step_time_band import job_class
from research.rows.simumax import simumax_targets
from research.rows.targets import Quantity
from research.steps.known import known_errors, tells

ROWS = tuple(replace(target, judged_only="") for target in simumax_targets())
TARGET = ROWS[0]


@pytest.mark.parametrize(
    ("errors", "is_known"),
    [
        ((-0.2, -0.1, -0.3), True),
        ((0.2, 0.1, 0.01), True),
        ((0.2, 0.05, 0.01), False),
        ((-0.2, -0.3, 0.01), False),
        ((-0.2, -0.3), False),
    ],
)
def test_three_rows_on_one_side_are_known(errors: Sequence[float], is_known: bool) -> None:
    found = list(known_errors((TARGET,) * len(errors), errors))
    assert bool(found) is is_known
    if found:
        (error,) = found
        assert error.of == job_class(TARGET.job)
        assert (error.rows, error.low, error.high) == (3, min(errors), max(errors))
        assert error.mean == pytest.approx(sum(errors) / 3, abs=1e-3)


def test_classes_are_distinguished() -> None:
    wide = next(t for t in ROWS if t.job.layout.tensor_model_parallel_size == 8)
    assert not list(known_errors((TARGET, TARGET, wide), (0.2,) * 3))
    (error,) = known_errors((TARGET, wide, wide, wide), (-0.2, 0.2, 0.2, 0.2))
    assert error.of.exposed_tensor_parallelism


def test_what_is_judged_for_a_reason_of_its_own_tells_nothing() -> None:
    judged = replace(TARGET, judged_only="an old kernel")
    assert tells(TARGET)
    assert not tells(judged)
    assert tells(replace(judged, unexplained=True))
    assert not tells(replace(TARGET, quantity=Quantity.RATIO))
    assert not list(known_errors((judged,) * 3, (0.2,) * 3))
