"""Dropped outputs, checkpoints, policies and offload, one at a time."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from advisor.layers.operators import Module  # noqa: E402
from advisor.plan.recompute_plan import ReplayRun  # noqa: E402
from harness.backends.native.probe import ReplayMeter, SavedMeter  # noqa: E402
from harness.backends.native.regions import Regions, host_offload, replay_later  # noqa: E402

NORM = Module.INPUT_LAYERNORM
DROPS = Regions((ReplayRun(frozenset({NORM}), True, Module.LINEAR_PROJ),))


class Square(nn.Module):
    """x squared times a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x.square() * self.weight


def test_dropped_output_is_freed_and_written_again() -> None:
    layer, x = Square(), torch.tensor([1.0, 2.0], requires_grad=True)
    output, dropped = DROPS.droppable(NORM, layer, x)
    branch = output.exp()  # keeps its own output only
    reader = output * branch  # keeps both
    dropped.until_backward_of(reader)
    assert output.untyped_storage().nbytes() == 0
    reader.sum().backward()
    assert layer.calls == 2
    y = torch.tensor([2.0, 12.0])
    slope = y.exp() * (1 + y)
    torch.testing.assert_close(output, y)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, slope * 2 * torch.tensor([1.0, 2.0]) * layer.weight)
    torch.testing.assert_close(layer.weight.grad, slope * torch.tensor([1.0, 4.0]))


class Product(nn.Module):
    """x times y."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y


def test_dropped_output_of_two_inputs() -> None:
    x, y = (torch.tensor([value], requires_grad=True) for value in (3.0, 5.0))
    output, dropped = DROPS.droppable(NORM, Product(), x, y)
    reader = output.square()
    dropped.until_backward_of(reader)
    assert output.untyped_storage().nbytes() == 0
    reader.sum().backward()
    assert (x.grad, y.grad) == (torch.tensor([150.0]), torch.tensor([90.0]))


class Powers(nn.Module):
    """x squared and x cubed."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x**2, x**3


def test_several_dropped_outputs() -> None:
    x = torch.tensor([2.0], requires_grad=True)
    (square, cube), dropped = DROPS.droppable(NORM, Powers(), x)
    reader = square * cube
    dropped.until_backward_of(reader)
    assert square.untyped_storage().nbytes() == cube.untyped_storage().nbytes() == 0
    reader.sum().backward()
    assert (square.item(), cube.item()) == (4.0, 8.0)
    assert x.grad == torch.tensor([80.0])


def test_output_that_nobody_needs_is_not_dropped() -> None:
    layer = Square()
    layer.weight.requires_grad_(False)
    output, dropped = DROPS.droppable(NORM, layer, torch.ones(2))
    dropped.until_backward_of(output * 2)
    assert output.untyped_storage().nbytes() == 8


def test_second_backward_of_a_dropped_output_is_an_error() -> None:
    x = torch.ones(2, requires_grad=True)
    output, dropped = DROPS.droppable(NORM, Square(), x)
    reader = output.exp() * output
    dropped.until_backward_of(reader)
    reader.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward ran a second time"):
        reader.sum().backward()


def test_a_dropped_output_that_is_never_needed_leaves_nothing() -> None:
    x = torch.ones(2, requires_grad=True)
    output, dropped = DROPS.droppable(NORM, Square(), x)
    reader = output * output
    dropped.until_backward_of(reader)
    del output, dropped, reader
    assert x.grad is None


def test_regions_without_runs_do_nothing() -> None:
    layer, x = Square(), torch.ones(2, requires_grad=True)
    output, dropped = Regions().droppable(NORM, layer, x)
    dropped.until_backward_of(output * output)
    assert output.untyped_storage().nbytes() == 8
    output.sum().backward()
    assert layer.calls == 1


def test_checkpoint_replays_all_of_its_region() -> None:
    """Without early stop, as Megatron's: the last product is computed again."""
    weights = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]

    def region(x: torch.Tensor) -> torch.Tensor:
        return (x @ weights[0]).sin() @ weights[1]

    meter, x = ReplayMeter(), torch.randn(4, 8, requires_grad=True)
    with meter.scope():
        replay_later(region, x).sum().backward()
    assert meter.flops == 2 * (2 * 4 * 8 * 8)


def test_offload_keeps_parameters_where_they_are() -> None:
    weight, x = nn.Parameter(torch.randn(4, 4)), torch.randn(2, 4, requires_grad=True)
    meter = SavedMeter()
    with meter.scope():
        with host_offload():
            hidden = torch.nn.functional.linear(x.exp(), weight)
        output = hidden.sin()
    assert meter.num_bytes == 2 * 4 * 4  # the sine's input; the rest is on the host
    output.sum().backward()
    expected = x.detach().exp().t() @ hidden.detach().cos()
    torch.testing.assert_close(weight.grad, expected.t())


def test_meter_counts_a_storage_once_and_no_parameter() -> None:
    weight, x = nn.Parameter(torch.randn(4, 4)), torch.randn(2, 4, requires_grad=True)
    meter = SavedMeter()
    with meter.scope():
        output = x[:1].sin() + x[1:].cos() + torch.nn.functional.linear(x, weight).sum()
        gone = x.exp()
        del gone
    assert output.requires_grad
    assert meter.num_bytes == x.nbytes
