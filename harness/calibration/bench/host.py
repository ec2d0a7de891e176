"""What the host takes to queue work: a single kernel, and a whole layer of the native backend.

A layer this small keeps no GPU busy, so that Python and torch are what takes time: the part of a
step that larger kernels hide.
"""

from typing import Final

import torch

from advisor.plan.recompute_plan import Segment
from harness.backends.native.modules.layer import TransformerLayer
from harness.backends.native.modules.layer_settings import LayerSettings
from harness.calibration.bench.cases import Case, Kind
from harness.calibration.bench.host_layers import host_layer
from harness.calibration.bench.timer import Call
from harness.trial.trial import Device

CALLS: Final = {Kind.HOST_LAUNCH: 500, Kind.HOST_LAYER: 10, Kind.HOST_REPLAY: 5}
"""Queued without waiting: launches fewer than the thousand that a GPU's queue holds."""
_DEVIATION: Final = 0.02


def launch(case: Case, device: Device) -> Call:
    """An addition of a few elements."""
    x = torch.zeros(case.sizes[0], device=device.value)
    return lambda _: torch.add(x, x)


def layer(case: Case, device: Device) -> Call:
    """Forward and backward of one layer, gradients of its input and of all weights; with a replay
    of the whole layer between them where the case is of that kind."""
    tokens, hidden = case.sizes
    where = torch.device(device.value)
    model, kind = host_layer(case)
    settings = LayerSettings(
        model=model,
        seq_length=tokens,
        dtype=torch.bfloat16,
        device=where,
    )
    segment = Segment(layers=(kind,), whole=case.kind is Kind.HOST_REPLAY)
    module = TransformerLayer(settings, segment, kind, settings.frequencies())
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=_DEVIATION)
    x = torch.randn(1, tokens, hidden, dtype=torch.bfloat16, device=where, requires_grad=True)
    wanted = (x, *module.parameters())
    gradient = torch.ones_like(x)
    return lambda _: torch.autograd.grad(module(x), wanted, gradient, allow_unused=True)
