"""Layers whose queueing is timed: they are what they are called, and leave nothing behind."""

import pytest
import torch

from harness.backends.native.modules import layer as native
from harness.backends.native.modules.latent_attention import LatentAttention
from harness.backends.native.modules.moe.layer import MoeLayer
from harness.backends.native.regions import replays_told
from harness.calibration.bench import host
from harness.calibration.bench.cases import Case, Kind
from harness.calibration.bench.shapes import HOST_CASES
from harness.trial.trial import Device


@pytest.mark.parametrize("made_of", [c.variant for c in HOST_CASES if c.kind is Kind.HOST_LAYER])
def test_a_layer_is_of_its_kind_and_gives_its_gradients(
    made_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[native.TransformerLayer] = []

    class Seen(native.TransformerLayer):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr(host, "TransformerLayer", Seen)
    call = host.layer(Case(kind=Kind.HOST_LAYER, sizes=(16, 64), variant=made_of), Device.CPU)
    gradients = call(0)
    (layer,) = made
    assert isinstance(layer.mlp, MoeLayer) == (made_of in ("moe", "many_experts"))
    assert isinstance(layer.self_attention, LatentAttention) == (made_of == "latent")
    assert isinstance(gradients, tuple)
    assert gradients[0].shape == (1, 16, 64)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
    assert all(parameter.grad is None for parameter in layer.parameters())
    assert len(call(1)) == len(gradients)  # type: ignore[arg-type]


def test_a_layer_is_replayed_where_the_case_says_so() -> None:
    replays: list[bool] = []
    for kind in (Kind.HOST_LAYER, Kind.HOST_REPLAY):
        call = host.layer(Case(kind=kind, sizes=(16, 64), variant="dense"), Device.CPU)
        with replays_told(replays.append):
            call(0)
    assert replays == [True, False]


def test_a_launch_is_one_addition() -> None:
    result = host.launch(Case(kind=Kind.HOST_LAUNCH, sizes=(7,)), Device.CPU)(0)
    assert isinstance(result, torch.Tensor)
    assert result.shape == (7,)


def test_launches_stay_below_what_a_gpu_queues() -> None:
    assert host.CALLS[Kind.HOST_LAUNCH] < 1024
