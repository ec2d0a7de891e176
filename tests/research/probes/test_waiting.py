"""Waiting of the GPU: who was late, by a trace of two streams written by hand, and ranges."""

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from harness.trial.trial import Device
from research.kernels.trace import Span, figures
from research.probes.waiting import _watched

NODE = "autograd::engine::evaluate_function: "
PROCESSOR = [
    Span("module:layer.mlp", 0, 100),
    Span("aten::mm", 10, 30),
    Span("cudaLaunchKernel", 20, 25, 1),
    Span("aten::add", 60, 80, 1),  # operators have numbers of their own
    Span("cudaLaunchKernel", 70, 75, 2),
    Span(f"{NODE}AddBackward0", 110, 200),
    Span("module:layer.mlp", 120, 150),
    Span("aten::mm", 125, 140),
    Span("cuLaunchKernelEx", 130, 135, 3),
    Span("aten::mm", 160, 180),
    Span("aten::empty", 161, 162),
    Span("cudaLaunchKernel", 165, 170, 4),
]
GPU = [
    Span("void at::native::gemm<float>", 26, 50, 1),
    Span("Memcpy DtoD", 40, 58, 1),
    Span("add", 76, 90, 2),
    Span("void at::native::gemm<float>", 136, 175, 3),
    Span("last", 177, 190, 4),
]
LATE = {
    ("forward layer.mlp", "itself"): 2 + 10,
    ("forward layer.mlp", "aten::add"): 10,
    ("forward layer.mlp", "cudaLaunchKernel"): 5,
    ("outside", "itself"): 10,
    ("backward AddBackward0", "itself"): 10,
    ("replay layer.mlp", "itself"): 5,
    ("replay layer.mlp", "aten::mm"): 5,
    ("replay layer.mlp", "cuLaunchKernelEx"): 5,
}


def test_a_gap_is_told_by_what_the_processor_did() -> None:
    found = figures(PROCESSOR, GPU)
    whole = {name: round(found[f"profiled_{name}_seconds"] * 1e9) for name in ("idle", "queued")}
    assert whole == {"idle": 18 + 46 + 2, "queued": 1 + 1 + 2}
    assert round(found["gpu_busy_seconds"] * 1e9) == 32 + 14 + 39 + 13
    late = found["late_by_cause"]
    assert {(o["cause"], o["operation"]): round(o["seconds"] * 1e9) for o in late} == LATE
    counted = {name: (of["kernels"], of["operators"]) for name, of in found["phases"].items()}
    assert counted == {"forward": (3, 2), "replay": (1, 1), "backward": (1, 1)}
    assert round(sum(found["profiled_idle_by_part"]) * 1e9) == 66
    first = found["kernels_by_name"][0]
    assert (first["kernel"], first["count"]) == ("gemm<float>", 2)


def test_modules_of_a_step_are_ranges() -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(4, 4)])})

    def run(recorder: Any) -> None:
        recorder.phase("forward")
        given, layer = torch.ones(2, 4, requires_grad=True), model["layers"][0]
        checkpoint(layer, given, use_reentrant=False).sum().backward()

    found = _watched(run, [model], Device.CPU, passes=1)
    assert {"forward", "backward", "replay"} <= set(found["phases"])
    assert any(one["cause"] == "forward layer" for one in found["profiled_host_by_cause"])
