"""Training steps that the harness's own measurement is tried with."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from harness.measure.training_step import Recorder
from harness.trial.result import Flops, Phase

PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


class Step:
    """Does `work` in each phase. runs: how often it ran."""

    stage = 3

    def __init__(self, work: Callable[[Phase], None] = lambda _: None) -> None:
        self.runs = 0
        self._work = work

    def run(self, recorder: Recorder) -> float:
        self.runs += 1
        for phase in PHASES:
            recorder.phase(phase)
            self._work(phase)
        return 1.0 / self.runs

    def saved_bytes_per_layer(self) -> int | None:
        return None

    def flops(self) -> Flops:
        return Flops(model=0.0, hardware=0.0)

    def close(self) -> None:
        pass


class LinearStep(Step):
    """A linear layer without bias and plain SGD; every byte is known: `sizes` are rows, inputs and
    outputs, `where` device and type."""

    def __init__(self, *sizes: int, **where: Any) -> None:
        self.runs = 0
        rows, inputs, outputs = sizes
        self.weight = nn.Parameter(torch.randn(outputs, inputs, **where) / inputs**0.5)
        self.x = torch.randn(rows, inputs, **where)

    def run(self, recorder: Recorder) -> float:
        super().run(recorder)
        loss = float(self.loss.detach())
        del self.loss
        return loss

    def _work(self, phase: Phase) -> None:
        if phase is Phase.FORWARD:
            self.loss = nn.functional.linear(self.x, self.weight).square().mean()
        elif phase is Phase.BACKWARD:
            torch.autograd.backward(self.loss)
        else:
            with torch.no_grad():
                self.weight.sub_(self.weight.grad, alpha=1e-4)
            self.weight.grad = None
