"""python -m tests.oracles.heads.measured IMPLEMENTATION FOLDER: what its code, from a wheel that is
unpacked in FOLDER, keeps and needs in every case, as JSON."""

import sys
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, json
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import GradientEdge

from advisor.job.loss_head import HeadImplementation, LossHead

from ..stacks.meter import LiveBytes
from .programs import PROGRAMS

SIZES = {"qwen": (2, 4096, 1024, 151936), "llama": (4, 1024, 8192, 128256), "one": (1, 3000, 5120, 32000)}  # fmt: skip
"""Samples, their length, hidden size and vocabulary; the last one is a packed sequence."""
CHUNK = {"qwen": 1024, "llama": 1024, "one": 1000}


class Case(Struct, frozen=True):
    """One measurement: a size, what is said of the head, and whether the output layer is frozen."""

    size: str
    changed: dict[str, Any] = {}
    frozen: bool = False

    def __str__(self) -> str:
        words = [f"{key}={value}" for key, value in self.changed.items()]
        return " ".join([self.size, *words, *(["frozen"] if self.frozen else [])])


ASKED = ({}, {"entropy": True, "temperature": 0.7}, {"temperature": 0.7})
CASES = [Case(size, changed) for size in SIZES for changed in ASKED]
CASES += [Case(size, {"chunk_size": CHUNK[size]}) for size in SIZES]
CASES += [Case("qwen", {}, True), Case("llama", {}, True)]


class _Arrives(torch.autograd.Function):
    """The hidden states as a tensor of their own, whose gradient goes on as it is."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(leaf)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


def measure(implementation: HeadImplementation, case: Case, folder: Path) -> tuple[int, ...]:
    """Bytes kept from forward to backward, the peaks of both, and that of a forward without
    gradients, of the output layer and what comes after it; hidden states and gradients included."""
    head = LossHead(implementation=implementation, **case.changed)
    samples, length, hidden_size, vocabulary = SIZES[case.size]
    with FakeTensorMode(allow_non_fake_inputs=True):
        leaf = torch.empty(samples, length, hidden_size, dtype=torch.bfloat16, requires_grad=True)
        weight = torch.empty(vocabulary, hidden_size, dtype=torch.bfloat16)
        labels = torch.zeros(samples, length, dtype=torch.int64)
        given = weight.requires_grad_(not case.frozen), labels, head, folder
        with LiveBytes((leaf, weight, labels)) as live:
            with torch.no_grad():
                PROGRAMS[implementation](_Arrives.apply(leaf), *given)
            alone = live.peak
            live.reset_peak()
            outputs = PROGRAMS[implementation](_Arrives.apply(leaf), *given)
            forward = live.peak
            grads = tuple(torch.empty(one.shape, dtype=one.dtype) for one in outputs)
            edges = tuple(GradientEdge(one.grad_fn, one.output_nr) for one in outputs)
            del outputs
            kept = live.now - sum(one.nbytes for one in grads)
            live.reset_peak()
            engine = torch.autograd.Variable._execution_engine
            engine.run_backward(edges, grads, False, False, (), True, True)
            return kept, forward, live.peak, alone


if __name__ == "__main__":
    chosen, folder = HeadImplementation(sys.argv[1]), Path(sys.argv[2])
    found = {str(case): measure(chosen, case, folder) for case in CASES}
    print(json.encode(found).decode())
