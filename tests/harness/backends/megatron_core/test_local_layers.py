"""The stand-in for Apex's extension sums in place, in the type of the sum."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")

from megatron.core.tensor_parallel import layers  # noqa: E402

from harness.backends.megatron_core.cpu import accumulate, without_apex  # noqa: E402


def test_a_gradient_is_added_in_place() -> None:
    rows, grad = torch.randn(6, 3, dtype=torch.bfloat16), torch.randn(6, 4, dtype=torch.bfloat16)
    main = torch.ones(4, 3, dtype=torch.bfloat16)
    where = main.data_ptr()
    accumulate(rows, grad, main)
    assert main.data_ptr() == where
    torch.testing.assert_close(main, torch.addmm(torch.ones_like(main), grad.t(), rows))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_sixteen_bits_are_added_to_thirty_two() -> None:
    rows, grad = (torch.randn(64, width, device="cuda", dtype=torch.bfloat16) for width in (32, 48))
    main = torch.ones(48, 32, device="cuda")
    accumulate(rows, grad, main)
    torch.testing.assert_close(main, 1 + grad.float().t() @ rows.float(), rtol=1e-3, atol=1e-3)


def test_megatron_finds_it() -> None:
    before = layers._grad_accum_fusion_available
    with without_apex():
        assert layers._grad_accum_fusion_available
        assert hasattr(layers, "fused_weight_gradient_mlp_cuda")
    assert layers._grad_accum_fusion_available is before
