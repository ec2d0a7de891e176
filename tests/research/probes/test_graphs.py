"""Ranks under CUDA graphs: on a CPU what a graph would hold runs in its place."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from harness.trial.trial import Device
from research.probes import graphs

pytest.importorskip("megatron.core")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """What a process of its own takes with it."""
    from megatron.core import full_cuda_graph
    from megatron.core.transformer import cuda_graphs

    yield
    cuda_graphs._set_capture_end()
    full_cuda_graph.StaticBufferLoader.static_buffers["training"].clear()


@pytest.mark.parametrize("case", graphs.cases(tiny=True), ids=lambda case: case.name)
def test_seconds_have_one_name_on_both_sides(case) -> None:
    predicted, measured = case.predict(), case.measure()
    timed = {name for name in predicted if name.endswith("_seconds")}
    assert timed <= measured.keys()
    assert measured.get("refused", "") == predicted.get("refused", "") == ""
    assert {"graph_pool_bytes", "graph_inputs_bytes"} <= predicted.keys() or case.name == "kernels"


def test_inputs_of_graphs_are_those_that_megatron_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    from research.probes.ranks import captured_rank as rank

    made: dict[int, int] = {}

    def eager(layers, sample_args, *, sample_kwargs, **options):
        own = [*sample_args, *([one["attention_mask"]] for one in sample_kwargs)]
        tensors = [tensor for some in own for tensor in some]
        made.update({one.data_ptr(): one.untyped_storage().nbytes() for one in tensors})
        return original(layers, sample_args, sample_kwargs=sample_kwargs, **options)

    original = rank._eager
    monkeypatch.setattr(rank, "_eager", eager)
    (spec,) = (one for one in graphs._SMALL if one.name == "parts")
    predicted = graphs._predict(spec, Device.CPU)
    graphs._measure(spec, Device.CPU)
    hidden = 64 * 64 * 2
    assert predicted["graph_inputs_bytes"] == sum(made.values()) + hidden  # an output's gradient


@pytest.mark.parametrize("may_fail", [False, True])
def test_what_cannot_be_captured_is_told(may_fail: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from research.probes.ranks import captured_rank as rank

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(rank, "_eager", fails)
    (spec,) = (one for one in graphs._SMALL if one.name == "parts")
    if may_fail:
        told = graphs._measure(replace(spec, may_fail=True), Device.CPU)
        assert "stream is capturing" in told["refused"]
        return
    with pytest.raises(RuntimeError) as caught:
        graphs._measure(spec, Device.CPU)
    figures, error = caught.value.__notes__[0].splitlines()
    assert "eager_step_seconds" in figures
    assert "stream is capturing" in error
