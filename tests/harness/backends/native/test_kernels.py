"""Kernels and attention against torch's own; what they keep is tested with the settings."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from advisor.models.options import Activation, Normalization  # noqa: E402
from harness.backends.native.modules import kernels  # noqa: E402
from harness.backends.native.modules.linear import TensorParallel, cross_entropy  # noqa: E402


def _leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).float().requires_grad_()


def _same(actual: torch.Tensor, expected: torch.Tensor, *leaves: torch.Tensor) -> None:
    """Equal values and equal gradients, up to fp32 rounding."""
    torch.testing.assert_close(actual, expected)
    weights = torch.randn_like(expected)
    found = torch.autograd.grad((actual * weights).sum(), leaves)
    wanted = torch.autograd.grad((expected * weights).sum(), leaves)
    torch.testing.assert_close(found, wanted)


def test_norms() -> None:
    x, weight, bias = _leaf(3, 5, 8), _leaf(8), _leaf(8)
    expected = functional.rms_norm(x, (8,), weight, kernels.NORM_EPSILON)
    _same(kernels.normalize(Normalization.RMS_NORM, x, weight, None), expected, x, weight)
    expected = functional.layer_norm(x, (8,), weight, bias, kernels.NORM_EPSILON)
    _same(kernels.normalize(Normalization.LAYER_NORM, x, weight, bias), expected, x, weight, bias)


@pytest.mark.parametrize("kind", sorted(set(Activation) - {Activation.QUICK_GEGLU}))
@pytest.mark.parametrize("with_bias", [False, True])
def test_bias_activation(kind: Activation, with_bias: bool) -> None:
    x, bias = _leaf(2, 4, 12), _leaf(12)
    biased = x + bias if with_bias else x
    plain = {
        Activation.GELU: lambda y: functional.gelu(y, approximate="tanh"),
        Activation.GEGLU: lambda y: functional.gelu(y, approximate="tanh"),
        Activation.SWIGLU: functional.silu,
        Activation.SQUARED_RELU: lambda y: functional.relu(y) ** 2,
    }[kind]
    if kind.gated:
        gate, value = biased.chunk(2, dim=-1)
        expected = plain(gate) * value
    else:
        expected = plain(biased)
    leaves = (x, bias) if with_bias else (x,)
    _same(kernels.bias_activation(kind, x, bias if with_bias else None), expected, *leaves)


def test_rotation_keeps_lengths_and_relative_positions() -> None:
    angles = kernels.rotary_frequencies(6, 8, torch.device("cpu"))
    x = torch.randn(1, 1, 1, 8).expand(1, 6, 1, 8)
    turned = kernels.rotate(x, angles)[0, :, 0]
    torch.testing.assert_close(turned.norm(dim=-1), x[0, :, 0].norm(dim=-1))
    scores = turned @ turned.t()
    torch.testing.assert_close(scores[0, 2], scores[3, 5])  # depends on the distance alone
    torch.testing.assert_close(turned[0], x[0, 0, 0])


def test_bias_dropout_add_without_dropout() -> None:
    branch, bias, residual = _leaf(2, 3, 4), _leaf(4), _leaf(2, 3, 4)
    _same(
        kernels.bias_dropout_add(branch, bias, residual, 0.0),
        branch + bias + residual,
        branch,
        bias,
        residual,
    )


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_dropped_attention_without_dropout_is_attention(groups: int) -> None:
    query, key, value = _leaf(2, 4, 6, 8), _leaf(2, groups, 6, 8), _leaf(2, groups, 6, 8)
    expected = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True
    )
    _same(kernels.dropped_attention(query, key, value, 0.0, 1)[0], expected, query, key, value)


def test_dropped_attention_has_the_gradient_of_its_own_mask() -> None:
    query, key, value = _leaf(1, 2, 5, 4), _leaf(1, 1, 5, 4), _leaf(1, 1, 5, 4)

    def run(moved: torch.Tensor) -> torch.Tensor:
        return kernels.dropped_attention(moved, key, value, 0.4, 11)[0].double().square().sum()

    (gradient,) = torch.autograd.grad(run(query), query)
    direction, step = torch.randn_like(query), 1e-2
    difference = (run(query + step * direction) - run(query - step * direction)) / (2 * step)
    # second-order error of the difference, and fp32
    torch.testing.assert_close(
        (gradient * direction).sum().double(), difference.double(), rtol=1e-2, atol=1e-3
    )


def test_attention_dropout_keeps_the_mean_and_the_layout() -> None:
    torch.manual_seed(0)
    query = torch.randn(2, 64, 4, 16)
    value = torch.ones(2, 64, 2, 16)
    out = kernels.flash_attention(query, torch.randn(2, 64, 2, 16), value, 0.25)
    assert out.shape == query.shape
    assert out.is_contiguous()
    # at the first position one probability is either dropped or 4/3; later ones average out
    first = out[:, 0].unique().tolist()
    assert first == pytest.approx([0.0, 4 / 3])
    assert out[:, 32:].mean().item() == pytest.approx(1.0, abs=0.05)


def test_cross_entropy() -> None:
    logits, labels = _leaf(2, 5, 16), torch.randint(16, (2, 5))
    expected = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    _same(cross_entropy(logits, labels, TensorParallel()), expected.view(2, 5), logits)
