"""A real Slurm on loopback: one controller and two nodes that are both this machine."""

import os
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.harness.drive import free_ports, has_ended, until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
NODES = ("node1", "node2")
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket,cred_expire=5
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool.%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=2
SlurmdTimeout=15
MpiDefault=none
MailProg=/bin/true
MessageTimeout=2
SwitchType=switch/none
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4
PartitionName=debug Nodes=node1,node2 Default=YES PriorityTier=1
PartitionName=urgent Nodes=node1,node2 PriorityTier=2
"""


def missing() -> list[str]:
    """Programs of Slurm and munge that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


class Cluster:
    """Daemons in one folder, with ports of their own; `variables` make Slurm's commands use it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.variables = {"SLURM_CONF": str(root / "slurm.conf")}
        root.chmod(0o755)
        (root / "state").mkdir()
        for node in NODES:
            (root / f"spool.{node}").mkdir()
        key = root / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        host = socket.gethostname().partition(".")[0]
        (root / "slurm.conf").write_text(
            CONFIGURATION.format(root=root, host=host, ports=free_ports(3))
        )

    def start(self) -> None:
        """All daemons, until both nodes are idle."""
        files = {"key": "munge.key", "seed": "munge.seed", "pid": "munged.pid", "log": "munged.log"}
        words = [f"--{kind}-file={self.root}/{name}" for kind, name in files.items()]
        self._daemon("munged", "--force", f"--socket={self.root}/munge.socket", *words)
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        self.wait_for_nodes()

    def start_controller(self) -> None:
        """slurmctld; its state is as it was."""
        self._daemon("slurmctld", "-f", self.variables["SLURM_CONF"])

    def start_node(self, node: str) -> None:
        """One slurmd."""
        self._daemon("slurmd", "-N", node, "-f", self.variables["SLURM_CONF"])

    def wait_for_nodes(self) -> None:
        """Until both nodes take jobs."""
        until(lambda: self.ask("sinfo", "-h", "-o", "%T %D").split() == ["idle", "2"])

    def end(self, daemon: str) -> None:
        """Stop one daemon as its service would: ``slurmctld`` or ``slurmd.node1``."""
        self._signal(daemon, signal.SIGTERM)

    def stop(self) -> None:
        """End jobs, then whatever is left."""
        self.ask("scancel", "--user=root", "--signal=KILL", "--full")
        self.ask("scancel", "--user=root")
        with suppress(AssertionError):
            until(lambda: not self.ask("squeue", "-h"), 3)
        for pid in self._processes():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _processes(self) -> list[int]:
        """What we started and what that started: daemons, and steps that outlive them while they
        wait for a controller that was away."""
        wanted = f"SLURM_CONF={self.variables['SLURM_CONF']}"
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    variables = (entry / "environ").read_bytes().decode(errors="replace")
                    if wanted in variables.split("\0"):
                        found.append(int(entry.name))
        return found

    def ask(self, *words: str) -> str:
        """Output of one of Slurm's commands."""
        done = subprocess.run(
            words, env={**os.environ, **self.variables}, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    def _daemon(self, *words: str) -> None:
        done = subprocess.run(
            words,
            env={**os.environ, **self.variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def _signal(self, daemon: str, number: signal.Signals) -> None:
        file = self.root / f"{daemon}.pid"
        with suppress(OSError, ValueError):
            pid = int(file.read_text())
            os.kill(pid, number)
            until(lambda: has_ended(pid), 10)
