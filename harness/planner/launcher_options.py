"""How trials are launched (``launcher=local | torchrun | slurm`` and its keys), and ``sweep.*``."""

import re
from enum import StrEnum
from typing import Final

from msgspec import Struct

from advisor.base.errors import UserError
from advisor.base.record import defaults
from advisor.base.units import parse_bytes, whole_number
from harness.base.duration import duration


class LauncherKind(StrEnum):
    """Who starts a trial's processes."""

    LOCAL = "local"
    TORCHRUN = "torchrun"
    SLURM = "slurm"


class LauncherOptions(Struct, frozen=True, kw_only=True):
    """Keys of ``launcher.*``; each kind has its own, and refuses those of the others. torchrun: the
    trials span `nnodes` machines, each of which runs the same command with its `node_rank`;
    rendezvous is HOST:PORT of node 0. slurm: partition to mem are sbatch's own options; time is
    Slurm's, empty for what the measurement needs; nodes or gpus_per_node divide the layout's ranks;
    sbatch are further parameters as sbatch spells them, without dashes; setup are shell lines that
    run before python; max_requeues bounds how often a preempted trial starts anew."""

    kind: LauncherKind = LauncherKind.LOCAL
    nnodes: int = 1
    node_rank: int = 0
    rendezvous: str = ""
    wait: bool = False
    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    time: str = ""
    nodes: int = 0
    gpus_per_node: int = 0
    cpus_per_task: int = 0
    mem: str = ""
    sbatch: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    array_parallelism: int = 256
    max_requeues: int = 3
    poll_seconds: float = 10.0
    python: str = ""

    def __post_init__(self) -> None:
        usual = defaults(LauncherOptions)
        for name in LauncherOptions.__struct_fields__[1:]:
            owner = LauncherKind.TORCHRUN if name in _OF_TORCHRUN else LauncherKind.SLURM
            legal = getattr(self, name) == usual[name] or owner is self.kind
            relation = f"has no effect with launcher={self.kind}"
            _check(name, getattr(self, name), legal, relation, f"launcher={owner}")
        for name in ("nnodes", "array_parallelism"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "must be at least 1")
        for name in ("node_rank", "nodes", "gpus_per_node", "cpus_per_task", "max_requeues"):
            _check(name, getattr(self, name), getattr(self, name) >= 0, "must not be negative")
        below = f"must be below launcher.nnodes = {self.nnodes}"
        _check("node_rank", self.node_rank, self.node_rank < self.nnodes, below)
        _check("poll_seconds", self.poll_seconds, self.poll_seconds > 0, "must be positive")
        if self.nnodes > 1:
            self.endpoint()
        if self.time:
            minutes(self.time)
        spelt = "must be KEY or KEY=VALUE, as sbatch spells it, without dashes"
        for entry in self.sbatch:
            _check("sbatch", entry, bool(re.match(r"[a-z][\w-]*(=|$)", entry)), spelt)

    def endpoint(self) -> tuple[str, int]:
        """Host and port of `rendezvous`; UserError where it is neither."""
        host, _, port = self.rendezvous.rpartition(":")
        legal = bool(host) and 0 < (whole_number(port) or 0) < 2**16
        wanted = "must be HOST:PORT of node 0, with a free port"
        _check("rendezvous", self.rendezvous or "(none)", legal, wanted)
        return host.strip("[]"), int(port)


_OF_TORCHRUN: Final = ("nnodes", "node_rank", "rendezvous")
"""All other keys are Slurm's."""


def _check(name: str, value: object, legal: bool, relation: str, hint: str = "") -> None:
    if not legal:
        raise UserError(f"launcher.{name}", value, relation, hint)


_TIME: Final = re.compile(
    r"(?:(?P<d>[0-9]{1,9})-)?(?P<a>[0-9]{1,9})(?::(?P<b>[0-9]{1,9}))?(?::(?P<c>[0-9]{1,9}))?"
)


def minutes(text: str) -> int:
    """Whole minutes, rounded up, of sbatch's ``M``, ``M:S``, ``H:M:S``, ``D-H[:M[:S]]``."""
    found = _TIME.fullmatch(text)
    if found is None:
        relation = "is not a time that sbatch takes"
        raise UserError("launcher.time", text, relation, "e.g. 30 (minutes), 1:30:00 or 1-12")
    days, first, second, third = (int(found[name] or 0) for name in "dabc")
    if found["d"] is not None or found["c"] is not None:
        seconds = ((days * 24 + first) * 60 + second) * 60 + third
    else:
        seconds = first * 60 + second
    _check("time", text, seconds > 0, "must be positive")
    return -(-seconds // 60)


class Sampler(StrEnum):
    """Who chooses the next point: `prior` predictions corrected by measurements, else Optuna."""

    PRIOR = "prior"
    BRUTE_FORCE = "brute_force"
    TPE = "tpe"
    NSGA2 = "nsga2"
    RANDOM = "random"


class SweepOptions(Struct, frozen=True, kw_only=True):
    """Space and budget of a sweep. trials: points that get a result, those of earlier runs
    included. first: how many of the advisor's best are run before the sampler has a say. repeats:
    processes of one point at most, more than one only where leaders overlap. budget: wall time,
    e.g. 2h; no trial starts once it is spent. prune: a trial that is clearly slower than the leader
    ends early. micro_batch_sizes: empty means the job's own. layouts: also every legal layout on
    the job's GPUs. memory_budget: e.g. 76GiB; points that need more are infeasible.
    min_fit_probability: points that the advisor thinks less likely to fit are not run. batch:
    points chosen at a time, which a cluster runs side by side. storage: URL of a SQLite file or a
    PostgreSQL database instead of the journal in the run's folder. worker_timeout_seconds: a worker
    on another machine that is silent for so long counts as dead."""

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
        for name in ("trials", "repeats", "batch"):
            self._check(name, getattr(self, name) >= 1, "must be at least 1")
        sizes = self.micro_batch_sizes
        self._check("micro_batch_sizes", min(sizes, default=1) >= 1, "must be at least 1")
        self._check("first", self.first >= 0, "must not be negative")
        self._check("worker_timeout_seconds", self.worker_timeout_seconds > 0, "must be positive")
        likely = 0.0 <= self.min_fit_probability <= 1.0
        self._check("min_fit_probability", likely, "must be between 0 and 1")
        self.budget_bytes()
        self.budget_seconds()

    def _check(self, name: str, legal: bool, relation: str) -> None:
        if not legal:
            raise UserError(f"sweep.{name}", getattr(self, name), relation)

    def budget_bytes(self) -> int | None:
        """`memory_budget` in bytes; None where none is given."""
        text = self.memory_budget
        return parse_bytes(text, "sweep.memory_budget") if text else None

    def budget_seconds(self) -> float | None:
        """`budget` in seconds; None where none is given."""
        return duration(self.budget, "sweep.budget") if self.budget else None
