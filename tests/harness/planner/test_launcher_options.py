"""Keys of ``launcher.*``."""

import pytest

from advisor.base.errors import UserError
from harness.planner.launcher_options import LauncherKind, LauncherOptions, minutes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30", 30),
        ("1:00", 1),
        ("1:01", 2),
        ("0:30", 1),
        ("1:30:00", 90),
        ("00:00:59", 1),
        ("1-12", 2160),
        ("1-0:30", 1470),
        ("2-01:02:03", 2943),
    ],
)
def test_times_as_sbatch_takes_them(text: str, expected: int) -> None:
    assert minutes(text) == expected


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"partition": "h100"},
            "launcher.partition = h100: has no effect with launcher=local; launcher=slurm",
        ),
        ({"wait": True}, "has no effect with launcher=local"),
        ({"kind": LauncherKind.SLURM, "nnodes": 2}, "launcher=torchrun"),
        ({"kind": LauncherKind.SLURM, "time": "soon"}, "is not a time that sbatch takes"),
        ({"kind": LauncherKind.SLURM, "time": "0"}, "must be positive"),
        ({"kind": LauncherKind.SLURM, "sbatch": ("--exclusive",)}, "without dashes"),
        ({"kind": LauncherKind.SLURM, "nodes": -1}, "must not be negative"),
        ({"kind": LauncherKind.SLURM, "array_parallelism": 0}, "must be at least 1"),
        ({"kind": LauncherKind.SLURM, "poll_seconds": 0.0}, "must be positive"),
        ({"kind": LauncherKind.TORCHRUN, "nnodes": 2}, "must be HOST:PORT of node 0"),
        ({"kind": LauncherKind.TORCHRUN, "nnodes": 2, "rendezvous": "h:x"}, "must be HOST:PORT"),
        (
            {"kind": LauncherKind.TORCHRUN, "nnodes": 2, "node_rank": 2, "rendezvous": "h:1"},
            "launcher.node_rank = 2: must be below launcher.nnodes = 2",
        ),
    ],
)
def test_what_does_not_hold(options: dict[str, object], says: str) -> None:
    with pytest.raises(UserError) as error:
        LauncherOptions(**options)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"), [("gpu1:29400", ("gpu1", 29400)), ("[::1]:80", ("::1", 80))]
)
def test_the_rendezvous_is_a_host_and_a_port(text: str, expected: tuple[str, int]) -> None:
    assert LauncherOptions(kind=LauncherKind.TORCHRUN, rendezvous=text).endpoint() == expected
