"""Which phase of a cycle decides."""

import pytest

from advisor.answer.phases import Phase, PhaseMemory, PhaseName, deciding


def _phase(name: PhaseName, peak: int, likely: float) -> Phase:
    memory = PhaseMemory(weights=peak)
    return Phase(name=name, memory_bytes=memory, peak_reserved_bytes=peak, fit_probability=likely)


@pytest.mark.parametrize(
    ("rollout", "update", "decides"),
    [
        ((60, 0.99), (70, 0.95), PhaseName.UPDATE),  # all fit: the highest
        ((70, 0.99), (60, 0.95), PhaseName.ROLLOUT),
        ((50, 0.0), (70, 0.95), PhaseName.ROLLOUT),  # what does not fit, though it is lower
        ((90, 0.0), (95, 0.0), PhaseName.UPDATE),  # of two that do not fit the higher
        ((90, 0.1), (85, 0.0), PhaseName.ROLLOUT),  # its peak is what a page says is too much
    ],
)
def test_what_does_not_fit_decides_else_the_highest(rollout, update, decides) -> None:
    phases = (_phase(PhaseName.ROLLOUT, *rollout), _phase(PhaseName.UPDATE, *update))
    assert deciding(phases, 0.9).name is decides


def test_parts_sum_to_the_total() -> None:
    memory = PhaseMemory(weights=3, kv_cache=5, overhead=7)
    assert memory.total == sum(memory.parts.values()) == 15
