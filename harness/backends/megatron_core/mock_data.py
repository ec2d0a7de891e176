"""Mock data: random tokens, the same at every step, so that a small model learns them."""

import torch
from megatron.core import parallel_state

from harness.backends.megatron_core.case import MegatronCase
from harness.backends.megatron_core.model import Batch
from harness.backends.training_rank import random_tokens


class Microbatches:
    """This rank's microbatches by number; sequence i of the global batch depends on the seed and
    on i alone. Every pipeline and tensor-parallel rank makes the same tokens."""

    def __init__(
        self, case: MegatronCase, vocab_size: int, seed: int, device: torch.device
    ) -> None:
        self._case, self._vocab_size, self._seed = case, vocab_size, seed
        self.device = device
        self._made: dict[int, Batch] = {}

    def __call__(self, number: int) -> Batch:
        """Microbatch `number`, made once."""
        if number not in self._made:
            self._made[number] = self._make(number)
        return self._made[number]

    def _make(self, number: int) -> Batch:
        case, size = self._case, self._case.micro_batch_size
        first = (self._data_rank * case.num_microbatches + number) * size
        numbers = range(first, first + size)
        rows = torch.stack(
            [random_tokens(self._seed, i, self._vocab_size, case.seq_length) for i in numbers]
        )
        rows = rows.to(self.device)
        start = parallel_state.get_context_parallel_rank() * case.local_seq_length
        window = slice(start, start + case.local_seq_length)
        return Batch(
            case, rows[:, :-1][:, window].contiguous(), rows[:, 1:][:, window].contiguous()
        )

    @property
    def _data_rank(self) -> int:
        return int(parallel_state.get_data_parallel_rank())
