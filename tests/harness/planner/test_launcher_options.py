"""Keys of ``launcher.*``."""

import pytest

from advisor.base.errors import UserError
from harness.planner.launcher_options import LauncherKind, LauncherOptions, minutes

TIMES = {"30": 30, "1:00": 1, "1:01": 2, "0:30": 1, "1:30:00": 90, "00:00:59": 1, "1-12": 2160}
TIMES |= {"1-0:30": 1470, "2-01:02:03": 2943}


@pytest.mark.parametrize("text", TIMES)
def test_times_as_sbatch_takes_them(text: str) -> None:
    assert minutes(text) == TIMES[text]


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("local", {"partition": "h100"}, "partition = h100: has no effect with launcher=local; "),
        ("local", {"wait": True}, "has no effect with launcher=local"),
        ("slurm", {"nnodes": 2}, "launcher=torchrun"),
        ("slurm", {"time": "soon"}, "is not a time that sbatch takes"),
        ("slurm", {"time": "0"}, "must be positive"),
        ("slurm", {"sbatch": ("--exclusive",)}, "without dashes"),
        ("slurm", {"nodes": -1}, "must not be negative"),
        ("slurm", {"array_parallelism": 0}, "must be at least 1"),
        ("slurm", {"poll_seconds": 0.0}, "must be positive"),
        ("torchrun", {"nnodes": 2}, "must be HOST:PORT of node 0"),
        ("torchrun", {"nnodes": 2, "rendezvous": "h:x"}, "must be HOST:PORT"),
        (
            "torchrun",
            {"nnodes": 2, "node_rank": 2, "rendezvous": "h:1"},
            "launcher.node_rank = 2: must be below launcher.nnodes = 2",
        ),
    ],
)
def test_what_does_not_hold(kind: str, options: dict[str, object], says: str) -> None:
    with pytest.raises(UserError) as error:
        LauncherOptions(kind=LauncherKind(kind), **options)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"), [("gpu1:29400", ("gpu1", 29400)), ("[::1]:80", ("::1", 80))]
)
def test_the_rendezvous_is_a_host_and_a_port(text: str, expected: tuple[str, int]) -> None:
    assert LauncherOptions(kind=LauncherKind.TORCHRUN, rendezvous=text).endpoint() == expected
