"""What a rank that rehearses alone receives."""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")

import torch.distributed as dist  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from harness.backends.megatron_core.rehearsal.rank import own_part  # noqa: E402


@pytest.fixture(autouse=True)
def _second_of_four() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    with own_part():
        yield
    dist.destroy_process_group()


def test_the_groups_own_methods_write_what_a_silent_one_leaves(monkeypatch) -> None:
    """As torch 2.11 calls them, on a group that writes nothing."""
    monkeypatch.setattr(dist.ProcessGroup, "_reduce_scatter_base", lambda *_: "work")
    monkeypatch.setattr(dist.ProcessGroup, "alltoall_base", lambda *_: "work")
    group, given = dist.group.WORLD, torch.arange(8.0)
    scattered, exchanged = torch.full((2,), torch.nan), torch.full((3,), torch.nan)
    with own_part():
        assert group._reduce_scatter_base(scattered, given) == "work"
        assert group.alltoall_base(exchanged, given, [3], [2]) == "work"
    assert scattered.tolist() == [2, 3]
    assert exchanged.tolist() == [0, 1, 2]


def test_a_reduce_scatter_gives_the_own_slice() -> None:
    output, given = torch.full((2, 3), torch.nan), torch.arange(24.0).view(8, 3)
    dist.reduce_scatter_tensor(output, given)
    assert torch.equal(output, given[2:4])


def test_an_all_to_all_gives_the_own_tensor() -> None:
    output, given = torch.full((4, 2), torch.nan), torch.arange(8.0).view(4, 2)
    dist.all_to_all_single(output, given)
    assert torch.equal(output, given)


@pytest.mark.parametrize("rows", [2, 6])
def test_an_uneven_all_to_all_leaves_nothing_unwritten(rows: int) -> None:
    output, given = torch.full((rows, 2), torch.nan), torch.arange(8.0).view(4, 2)
    dist.all_to_all_single(output, given, [rows, 0, 0, 0], [1, 1, 1, 1])
    shared = min(rows, 4)
    assert torch.equal(output[:shared], given[:shared])
    assert torch.isfinite(output).all()


def test_counts_are_no_leftovers() -> None:
    output, given = torch.full((6,), -7), torch.tensor([1, 2, 3, 4])
    dist.all_to_all_single(output, given, [3, 1, 1, 1], [1, 1, 1, 1])
    assert output[:3].tolist() == [1, 2, 3]
    assert set(output[3:].tolist()) <= {0, 1, 4}
