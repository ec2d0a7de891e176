"""What lasting load leaves of a GEMM's burst rate, and what a GPU's clock does under it.

It is told, and scales nothing: a GEMM alone draws more power than a training step. On an H100 of
700 W one held for 5 s ran at 1,350 MHz and 0.86 of its burst, dense training steps at 1,545 MHz and
more; predicted by bursts they are 2 % off, and would be 13 % by what was held
(results/measured/h100).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.calibrate.bench.cases import Case, Kind, Sample
from harness.measure.trust import HARMLESS_REASONS
from harness.trial.result import GpuLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasting:
    """One GEMM held for seconds: its rate over that of its short burst, at most 1, and the load."""

    ratio: float
    load: GpuLoad

    @property
    def words(self) -> str:
        """``sustained 0.93 of the burst rate, SM clock 1,755 of 1,980 MHz, 690 W, sw_power_cap``;
        what is not known is left out."""
        load, said = self.load, [f"sustained {self.ratio:.2f} of the burst rate"]
        if load.sm_clock_mhz is not None:
            highest = "" if load.max_sm_clock_mhz is None else f" of {load.max_sm_clock_mhz:,.0f}"
            said.append(f"SM clock {load.sm_clock_mhz:,.0f}{highest} MHz")
        if load.power_watts is not None:
            said.append(f"{load.power_watts:,.0f} W")
        said += [r for r in load.throttle_reasons or () if r not in HARMLESS_REASONS]
        return ", ".join(said)


def lasting(samples: Sequence[Sample]) -> Lasting | None:
    """Out of the held GEMM and the burst of the same one; None where either is missing."""
    by_case = {sample.case: sample for sample in samples}
    for sample in samples:
        case = sample.case
        burst = by_case.get(Case(kind=Kind.GEMM, sizes=case.sizes, variant=case.variant))
        if case.kind is Kind.SUSTAINED_GEMM and burst is not None:
            return Lasting(
                ratio=min(1.0, burst.seconds / sample.seconds), load=sample.load or GpuLoad()
            )
    return None
