"""What ``sweep.*`` means."""

from enum import StrEnum

from msgspec import Struct

from advisor.base.errors import UserError
from advisor.base.units import parse_bytes
from harness.base.duration import duration


class Sampler(StrEnum):
    """Who chooses the next point after the first ones: `prior` what is predicted, corrected by what
    was measured, the others are Optuna's samplers."""

    PRIOR = "prior"
    BRUTE_FORCE = "brute_force"
    TPE = "tpe"
    NSGA2 = "nsga2"
    RANDOM = "random"


class SweepOptions(Struct, frozen=True, kw_only=True):
    """Space and budget of a sweep.

    trials: points that get a result, those of earlier runs included. first: how many of the
    advisor's best are run before the sampler has a say. repeats: processes of one point at most,
    more than one only where leaders overlap. budget: wall time, e.g. 2h; no trial starts once it is
    spent. prune: a trial that is clearly slower than the leader ends early. micro_batch_sizes:
    empty means the job's own. layouts: also every legal layout on the job's GPUs. memory_budget:
    e.g. 76GiB; points that need more are infeasible. min_fit_probability: points that the advisor
    thinks less likely to fit are not run. batch: points chosen at a time, which a cluster runs side
    by side. storage: URL of a SQLite file or a PostgreSQL database instead of the journal in the
    run's folder. worker_timeout_seconds: a worker on another machine that is silent for so long
    counts as dead.
    """

    trials: int = 20
    first: int = 3
    repeats: int = 3
    budget: str = ""
    prune: bool = True
    micro_batch_sizes: tuple[int, ...] = ()
    layouts: bool = False
    memory_budget: str = ""
    min_fit_probability: float = 0.01
    sampler: Sampler = Sampler.PRIOR
    seed: int = 1234
    batch: int = 1
    storage: str = ""
    worker_timeout_seconds: float = 120.0

    def __post_init__(self) -> None:
        sizes = ["micro_batch_sizes"] if self.micro_batch_sizes else []
        for name in ("trials", "repeats", "batch", *sizes):
            value = getattr(self, name)
            if min(value if isinstance(value, tuple) else (value,)) < 1:
                raise UserError(f"sweep.{name}", value, "must be at least 1")
        if self.first < 0:
            raise UserError("sweep.first", self.first, "must not be negative")
        if self.worker_timeout_seconds <= 0:
            raise UserError(
                "sweep.worker_timeout_seconds", self.worker_timeout_seconds, "must be positive"
            )
        if not 0.0 <= self.min_fit_probability <= 1.0:
            raise UserError(
                "sweep.min_fit_probability", self.min_fit_probability, "must be between 0 and 1"
            )
        self.budget_bytes()
        self.budget_seconds()

    def budget_bytes(self) -> int | None:
        """`memory_budget` in bytes; None where none is given."""
        text = self.memory_budget
        return parse_bytes(text, "sweep.memory_budget") if text else None

    def budget_seconds(self) -> float | None:
        """`budget` in seconds; None where none is given."""
        return duration(self.budget, "sweep.budget") if self.budget else None
