"""What every backend's rank begins with."""

import pytest

torch = pytest.importorskip("torch")

from advisor.base.errors import UserError  # noqa: E402
from advisor.job.layout import ParallelLayout  # noqa: E402
from harness.backends.training_rank import check_processes, random_tokens, torch_device  # noqa: E402
from harness.trial.trial import Device  # noqa: E402


def test_a_sequence_depends_on_the_seed_and_its_number_alone() -> None:
    state = torch.get_rng_state()
    one = random_tokens(7, 3, vocab_size=100, seq_length=32)
    assert (one.shape, one.dtype) == ((33,), torch.int64)
    assert 0 <= int(one.min()) <= int(one.max()) < 100
    assert torch.equal(one, random_tokens(7, 3, vocab_size=100, seq_length=32))
    assert not torch.equal(one, random_tokens(7, 4, vocab_size=100, seq_length=32))
    assert not torch.equal(one, random_tokens(8, 3, vocab_size=100, seq_length=32))
    assert torch.equal(state, torch.get_rng_state())


def test_processes_are_as_many_as_the_layout_has_ranks() -> None:
    layout = ParallelLayout(tensor_model_parallel_size=2, data_parallel_size=2)
    check_processes(layout, 4)
    with pytest.raises(UserError, match="must be the number of processes, WORLD_SIZE = 3"):
        check_processes(layout, 3)


def test_the_cpu_is_one_device() -> None:
    assert torch_device(Device.CPU) == torch.device("cpu")
