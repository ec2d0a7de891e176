"""`harness` with stub trials, as a process of its own that a test can kill."""

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import harness.execution.launch
from harness.cli.main import main
from harness.execution.launchers.local import LocalLauncher
from harness.execution.runner import Runner

T = TypeVar("T")
GROUPS = "torch.distributed.distributed_c10d"
ROOT = str(Path(__file__).parents[2])
STUB = (sys.executable, "-I", "-S", str(Path(__file__).with_name("stub_trial.py")))
stubbed = partial(Runner, launcher=lambda _: LocalLauncher(STUB), grace_seconds=0.3)


def started(folder: Path, faults: Mapping[str, str], *words: str) -> "subprocess.Popen[str]":
    """The command at work in `folder`; its stub trials end as `faults` says."""
    (folder / "faults.json").write_text(json.dumps(faults))
    return subprocess.Popen(
        [sys.executable, __file__, *words],
        env=variables(STUB_FAULTS=str(folder / "faults.json")),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def variables(**more: str) -> dict[str, str]:
    """Of a process that finds the checkout, and no GPU."""
    path = os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path, **more}


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def two_ranks(program: str, *arguments: str, first: Callable[[], T]) -> tuple[T, str]:
    """What `first` gives in this process, which has imported all of it, as rank 0 next to
    `program` as rank 1; and what that prints last."""
    (port,) = free_ports(1)
    both = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    other = variables(**both, RANK="1", LOCAL_RANK="1")
    command = [sys.executable, program, *arguments]
    with subprocess.Popen(command, env=other, stdout=subprocess.PIPE, text=True) as second:
        try:
            here = patch.dict(os.environ, both | {"RANK": "0", "LOCAL_RANK": "0"})
            with here, patch(f"{GROUPS}.default_pg_timeout", timedelta(minutes=2)):
                found = first()
            said = second.communicate(timeout=120)[0].splitlines()
        finally:
            second.kill()
    assert second.returncode == 0
    return found, said[-1]


def stored(folder: Path) -> dict[str, Any]:
    """What marks each finished result of the run `x`, by trial name."""
    files = (folder / "runs" / "x" / "trials").glob("*/result.json")
    return {path.parent.name: json.loads(path.read_text())["environment"] for path in files}


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until `true` says so; AssertionError where it does not."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


def killed(folder: Path, start: Callable[[], Any], times: int, pause: float) -> tuple[Any, int]:
    """Start again until it comes to its end, and kill it after each new result of the run `x`, up
    to `pause` seconds later; the last process, and how often it was killed."""
    chance, seen, kills = random.Random(11), dict[str, Any](), 0
    for _ in range(times):
        process = start()
        until(lambda: process.poll() is not None or len(stored(folder)) > len(seen))  # noqa: B023
        time.sleep(chance.uniform(0.0, pause))
        kills += process.poll() is None
        process.kill()
        process.communicate()
        now = stored(folder)
        assert {name: now[name] for name in seen} == seen, "a finished result is gone or changed"
        seen = now
        if process.returncode == 0:
            break
    return process, kills


if __name__ == "__main__":
    setattr(harness.execution.launch, "Runner", stubbed)  # noqa: B010 (a partial is no type)
    sys.exit(main())
