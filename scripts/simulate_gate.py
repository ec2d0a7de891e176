"""The gate on made-up sessions: what it cries wolf over, what it lets pass, what it leaves open.

    python -m scripts.simulate_gate             # the whole grid; ten minutes
    python -m scripts.simulate_gate --docs      # the short table of docs/ci.md

Each cell is of 1,000 comparisons without a change and of 1,000 of a slowdown as large as the limit.
It is a number of sessions of the golden, relative standard deviations between sessions and between
the processes of one, and what is unlike a normal distribution.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct

from harness.judge.metrics import METRICS, STEP_TIME
from harness.judge.stats import relative_shift
from harness.judge.verdict import Verdict, judge
from harness.trial.trial import Device

LIMIT = 0.05
COMPARISONS = 1000
KINDS = ("normal", "t3", "outliers", "drift", "drift down")


class Cell(Struct, frozen=True, kw_only=True):
    """kind: normal; t3: Student's t with 3 degrees of freedom, scaled to it;
    outliers: one process of twenty is 10 % slower; drift, drift down: 0.2 % a session."""

    sessions: int
    between: float
    within: float
    repeats: int = 5
    kind: str = "normal"

    def drawn(self, random: Any, comparisons: int) -> Any:
        """Seconds of a step, [comparisons, sessions + 1, repeats]; the last session is the new."""
        shape = (comparisons, self.sessions + 1, self.repeats)
        days, processes = (self._noise(random, one) for one in (shape[:2], shape))
        found = self.between * days[..., None] + self.within * processes
        if self.kind == "outliers":
            found += 0.1 * (random.random(shape) < 0.05)
        if self.kind.startswith("drift"):
            slope = -0.002 if self.kind.endswith("down") else 0.002
            found += slope * np.arange(shape[1])[None, :, None]
        return np.exp(found)

    def _noise(self, random: Any, shape: tuple[int, ...]) -> Any:
        if self.kind == "t3":
            return random.standard_t(3, size=shape) / 3**0.5
        return random.normal(size=shape)

    def rates(self, slowdown: float, comparisons: int = COMPARISONS) -> dict[Verdict, float]:
        """Share of each verdict on the step time."""
        random = np.random.default_rng(20_261_128)
        metric = METRICS[STEP_TIME]
        counts: Counter[Verdict] = Counter()
        for seconds in self.drawn(random, comparisons):
            *golden, new = ([[one] for one in day] for day in seconds.tolist())
            slower = [[[(1 + slowdown) * one for one in steps] for steps in new]]
            shift = relative_shift(slower, golden, metric.assumed_noise(Device.CUDA))
            counts[judge(shift, metric, LIMIT, 1.0).verdict] += 1
        return {verdict: counts[verdict] / comparisons for verdict in Verdict}


def grid() -> Iterator[Cell]:
    """2 % and less between sessions, 0.3 to 1 % within; then one process a side."""
    noises = ((0.02, 0.003), (0.02, 0.01), (0.01, 0.01), (0.007, 0.007), (0.003, 0.01))
    for kind in KINDS:
        for sessions in range(1, 6):
            for between, within in noises:
                yield Cell(sessions=sessions, between=between, within=within, kind=kind)
    for kind in KINDS:
        for between, within in ((0.0, 0.03), (0.02, 0.03), (0.02, 0.01), (0.0, 0.01)):
            for sessions in (1, 3, 5):
                yield Cell(sessions=sessions, between=between, within=within, repeats=1, kind=kind)


def row(cell: Cell) -> list[str]:
    """The cell, and its rates in per cent."""
    same, slow = cell.rates(0.0), cell.rates(LIMIT)
    found = (
        *(same[one] for one in (Verdict.REGRESSION, Verdict.PASS, Verdict.OPEN)),
        *(slow[one] for one in (Verdict.PASS, Verdict.REGRESSION, Verdict.OPEN)),
    )
    about = [cell.kind, str(cell.sessions), str(cell.repeats)]
    about += [f"{noise * 100:g}" for noise in (cell.between, cell.within)]
    return about + [f"{rate * 100:.1f}" for rate in found]


HEADS = ("kind", "sessions", "repeats", "between", "within")
HEADS += ("false", "passes", "open", "missed", "caught", "open")


def main() -> None:
    """Print the grid."""
    shown = [c for c in grid() if c.kind == "normal" and c.repeats == 5]
    cells = shown if "--docs" in sys.argv else grid()
    print(" | ".join(HEADS))
    for cell in cells:
        print(" | ".join(row(cell)), flush=True)


if __name__ == "__main__":
    main()
