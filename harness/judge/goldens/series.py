"""Numbers of one process by training step, as goldens hold them."""

import math

from msgspec import Struct


class Series(Struct, frozen=True, kw_only=True):
    """One metric of one process: values at training steps, counted from 1 as Megatron does.

    Warm-up steps are counted though not held: a series may begin at step 4. A scalar of the whole
    process, such as a peak, is held once, at its last step.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.steps) == len(self.values)

    @property
    def finite(self) -> tuple[float, ...]:
        """Values that are numbers, without NaN and infinities."""
        return tuple(value for value in self.values if math.isfinite(value))

    def from_step(self, first: int) -> "Series":
        """The part from training step `first` on."""
        kept = [(s, v) for s, v in zip(self.steps, self.values, strict=True) if s >= first]
        return Series(steps=tuple(s for s, _ in kept), values=tuple(v for _, v in kept))


class Process(Struct, frozen=True, kw_only=True):
    """What one process (one repeat of a trial) gave, by metric."""

    name: str
    series: dict[str, Series]


def samples(processes: tuple[Process, ...], metric: str) -> tuple[tuple[float, ...], ...]:
    """process -> finite steps of one metric; processes without any are left out."""
    found = (p.series[metric].finite for p in processes if metric in p.series)
    return tuple(values for values in found if values)


def metric_names(processes: tuple[Process, ...]) -> tuple[str, ...]:
    """All metrics that a process has, in their first order."""
    return tuple(dict.fromkeys(name for process in processes for name in process.series))
