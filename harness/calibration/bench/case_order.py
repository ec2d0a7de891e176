"""Which cases are timed within a budget: the most valuable first."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct, field

from advisor.base.grouping import grouped
from harness.calibration.bench.cases import Case, CaseKind

ROUND: Final = (
    *(CaseKind.GEMM, CaseKind.ATTENTION_FORWARD, CaseKind.NORM, CaseKind.GEMM, CaseKind.GEMM_FP8),
    *(CaseKind.ATTENTION_BACKWARD, CaseKind.ADD, CaseKind.GEMM, CaseKind.COPY, CaseKind.ADAM),
    *(CaseKind.GEMM_FP8, CaseKind.SWIGLU, CaseKind.TO_DEVICE, CaseKind.TO_HOST),
    *(CaseKind.GROUPED_GEMM, CaseKind.LATENT_ATTENTION_FORWARD, CaseKind.LATENT_ATTENTION_BACKWARD),
)
"""One round of the schedule. GEMMs are most of a step's time, so they come most often."""


def queued(cases: Iterable[Case]) -> dict[CaseKind, list[Case]]:
    """Cases by kind, in the order in which they are timed."""
    found = {}
    for kind, same in grouped((case.kind, case) for case in cases).items():
        # the largest first, then so that any beginning is spread evenly over the sizes
        by_size = sorted(same, key=lambda case: (-case.work, case.key))
        found[kind] = [by_size[index] for index in scattered(len(by_size))]
    return found


def turns(kinds: Iterable[CaseKind]) -> tuple[CaseKind, ...]:
    """The kinds of one round."""
    wanted = tuple(kinds)
    known = tuple(kind for kind in ROUND if kind in wanted)
    return (*known, *(kind for kind in wanted if kind not in ROUND))


def scattered(count: int) -> list[int]:
    """0 to count - 1 in van der Corput's order: the bits of 0, 1, 2, … read backwards."""
    bits = max(1, (count - 1).bit_length())
    mirrored = (int(f"{number:0{bits}b}"[::-1], 2) for number in range(2**bits))
    return [number for number in mirrored if number < count]


class Pace(Struct, frozen=True, kw_only=True):
    """How fast a device is thought to be before it is measured: FLOP/s, byte/s, and seconds that
    a case takes at least. Timing a long one takes `runs` calls."""

    flops_per_second: float
    bytes_per_second: float
    least_seconds: float
    runs: int = 8

    def seconds(self, case: Case) -> float:
        """Guessed wall time of a case."""
        call = case.flops / self.flops_per_second + case.num_bytes / self.bytes_per_second
        return self.runs * call + self.least_seconds


class Schedule(Struct, kw_only=True):
    """Times cases until the budget is spent. A case waits while it is thought to take more than a
    `share` of the budget, or more than what is left: the next of its kind then has its turn. What
    cases took corrects the guess for others of their kind. `measure` times and keeps a case."""

    budget_seconds: float
    pace: Pace
    measure: Callable[[Case], object]
    now: Callable[[], float] = time.monotonic
    share: float = 0.05
    _corrections: dict[CaseKind, float] = field(default_factory=dict)

    def run(self, cases: Sequence[Case]) -> bool:
        """Time what fits. Whether no case is left."""
        ends = self.now() + self.budget_seconds
        queues = {
            kind: [(self.pace.seconds(case), case) for case in queue]
            for kind, queue in queued(cases).items()
        }
        while any(queues.values()):
            timed = False
            for kind in turns(queues):
                remaining = ends - self.now()
                if remaining <= 0:
                    return False
                index = self._affordable(kind, queues[kind], remaining)
                if index is not None:
                    self._one(*queues[kind].pop(index))
                    timed = True
            if not timed:
                return False
        return True

    def _affordable(
        self, kind: CaseKind, queue: Sequence[tuple[float, Case]], remaining: float
    ) -> int | None:
        """The first case of a queue that there is time for."""
        most = min(remaining, self.share * self.budget_seconds)
        most /= self._corrections.get(kind, 1.0)
        return next((i for i, (seconds, _) in enumerate(queue) if seconds <= most), None)

    def _one(self, guess: float, case: Case) -> None:
        before = self.now()
        self.measure(case)
        known = self._corrections.get(case.kind, 1.0)
        seen = max(self.now() - before, 1e-6) / guess
        self._corrections[case.kind] = math.sqrt(known * seen)  # one hiccup is not the rule
