"""Bytes of fake storages: which count, and for how long."""

import pytest

torch = pytest.importorskip("torch")

from harness.backends.megatron_core.fake.meter import LiveBytes  # noqa: E402

META = {"device": "meta", "dtype": torch.float32}


def test_a_kernel_s_temporaries_do_not_count_and_its_results_do() -> None:
    x, meter = torch.empty(256, **META), LiveBytes()
    meter.exclude([x])
    with meter.measuring():
        with meter.kernel():
            total = torch.cat((x, x, x)).sum()
        assert (meter.live_bytes, meter.peak_bytes) == (4, 4)
        tripled = torch.cat((x, x, x))
        assert meter.peak_bytes == 4 + 3 * 1024
        del tripled
    assert (meter.live_bytes, total.nbytes) == (4, 4)


def test_a_kernel_inside_a_kernel_is_a_part_of_it() -> None:
    x, meter = torch.empty(256, **META), LiveBytes()
    meter.exclude([x])
    with meter.measuring(), meter.kernel():
        with meter.kernel():
            torch.cat((x, x))
        assert meter.peak_bytes == 0


def test_what_is_excluded_never_counts_and_a_resized_storage_counts_anew() -> None:
    x, meter = torch.empty(256, **META), LiveBytes()
    meter.exclude([x])
    with meter.measuring():
        x.mul_(2)
        assert meter.peak_bytes == 0
        y = x + x
        y.untyped_storage().resize_(0)
        assert (meter.live_bytes, meter.peak_bytes) == (0, 1024)
        y.untyped_storage().resize_(1024)
        assert meter.live_bytes == 1024


def test_a_result_that_is_known_has_shape_strides_and_type() -> None:
    x, meter = torch.empty(4, 6, **META), LiveBytes()
    with meter.measuring():
        first, again = x.t() + 1, x.t() + 1
        other = x.t() + torch.empty(6, 4, device="meta", dtype=torch.float64)
    for one in (first, again):
        assert (one.shape, one.stride(), one.dtype) == ((6, 4), (1, 6), torch.float32)
    assert other.dtype is torch.float64
    assert first.untyped_storage()._cdata != again.untyped_storage()._cdata
