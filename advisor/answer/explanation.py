"""Where the bytes and the seconds of one evaluation go, line by line."""

from msgspec import Struct


class MemoryLine(Struct, frozen=True, kw_only=True):
    """One line of `--explain`: bytes of one named tensor or term on the worst rank.

    `count` copies of `unit_bytes` each (layers x microbatches in flight, say); `shape` is empty
    for terms that are no tensor.
    """

    component: str
    name: str
    shape: str
    unit_bytes: int
    count: float
    source: str

    @property
    def num_bytes(self) -> int:
        """Bytes of all copies."""
        return round(self.unit_bytes * self.count)


class TimeLine(Struct, frozen=True, kw_only=True):
    """One line of `--explain`: seconds of one step spent on one operator in one phase."""

    phase: str
    operator: str
    seconds: float
    bound_by: str
