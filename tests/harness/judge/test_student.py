"""Student's t against scipy."""

import pytest

from harness.judge.student import normal_quantile, t_quantile, within


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 8, 9, 30, 101])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_quantiles_are_scipys(level: float, freedom: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert t_quantile(level, freedom) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom))
    assert within(1.7, freedom) == pytest.approx(1 - 2 * stats.t.sf(1.7, freedom))


def test_the_textbook() -> None:
    assert normal_quantile(0.95) == pytest.approx(1.959964)
    assert t_quantile(0.95, 8) == pytest.approx(2.306004)
    assert t_quantile(0.95, 1) == pytest.approx(12.7062, rel=1e-5)
