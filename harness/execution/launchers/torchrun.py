"""One trial as several ranks under torchrun: of this machine, or of several."""

import sys
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from advisor.base.errors import UserError
from advisor.base.units import nearest_divisors
from harness.execution.launchers.local import ProcessGroup
from harness.trial.store import TrialFolder
from harness.trial.trial import Trial

_WORKER: Final = ("-m", "harness.execution.worker")
_TETHER: Final = "harness.execution.launchers.parent_death"
_TORCHRUN: Final = (sys.executable, "-m", _TETHER, sys.executable, "-m", "torch.distributed.run")


class Rendezvous(Struct, frozen=True, kw_only=True):
    """Which of several machines this is, and where node 0 listens."""

    nnodes: int
    node_rank: int
    host: str
    port: int


class TorchrunLauncher:
    """Starts `program` once a rank, the worker or a test's; a rank that fails takes the others
    with it. With a `rendezvous` it starts this machine's share of the ranks."""

    def __init__(
        self, program: Sequence[str] = _WORKER, rendezvous: Rendezvous | None = None
    ) -> None:
        self._program, self._rendezvous = tuple(program), rendezvous

    def start(self, trial: Trial, folder: TrialFolder, variables: dict[str, str]) -> ProcessGroup:
        """Start torchrun, tied to us as the ranks are tied to it."""
        words = command(trial, folder, self._program, self._rendezvous)
        node = 0 if self._rendezvous is None else self._rendezvous.node_rank
        return ProcessGroup(words, folder, variables, node)


def command(
    trial: Trial,
    folder: TrialFolder,
    program: Sequence[str] = _WORKER,
    rendezvous: Rendezvous | None = None,
) -> list[str]:
    """The command line: one rank a device of the layout, no restarts. Alone, a free port; over
    several machines, ranks in the order of the nodes."""
    ranks = trial.workload.layout.world_size
    place = ["--standalone", f"--nproc-per-node={ranks}"]
    if rendezvous is not None:
        place = [
            f"--nnodes={rendezvous.nnodes}",
            f"--node-rank={rendezvous.node_rank}",
            f"--nproc-per-node={per_node(ranks, rendezvous.nnodes)}",
            "--rdzv-backend=static",
            f"--master-addr={rendezvous.host}",
            f"--master-port={rendezvous.port}",
        ]
    return [*_TORCHRUN, *place, "--max-restarts=0", *program, str(folder.path.resolve())]


def per_node(ranks: int, nnodes: int) -> int:
    """Ranks of each machine; UserError where they do not come out even."""
    if ranks % nnodes:
        relation = f"must divide the layout's {ranks} ranks"
        raise UserError("nodes", nnodes, relation, f"nearest: {nearest_divisors(ranks, nnodes)}")
    return ranks // nnodes
