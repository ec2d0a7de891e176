"""Ranks under CUDA graphs: on a CPU what a graph would hold runs in its place."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from harness.trial.trial import Device
from research.probes import graphs

pytest.importorskip("megatron.core")
PARTS = graphs._SMALL[1]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    from megatron.core.full_cuda_graph import StaticBufferLoader
    from megatron.core.transformer.cuda_graphs import _set_capture_end

    yield
    StaticBufferLoader.static_buffers["training"].clear()
    _set_capture_end()


@pytest.mark.parametrize("case", graphs.cases(tiny=True), ids=lambda case: case.name)
def test_seconds_have_one_name_on_both_sides(case) -> None:
    predicted, measured = case.predict(), case.measure()
    assert {name for name in predicted if name.endswith("_seconds")} <= measured.keys()
    assert measured.get("refused", "") == predicted.get("refused", "") == ""


def test_what_a_capture_is_given_and_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from research.probes.ranks import captured_rank

    inputs: dict[int, int] = {}

    def fails(layers, sample_args, *, sample_kwargs, **_: object) -> None:
        own = [*sample_args, *([one["attention_mask"]] for one in sample_kwargs)]
        tensors = [tensor for some in own for tensor in some]
        inputs.update({one.data_ptr(): one.untyped_storage().nbytes() for one in tensors})
        raise RuntimeError("stream is capturing")

    monkeypatch.setattr(captured_rank, "_eager", fails)
    measured = graphs._measure(replace(PARTS, may_fail=True), Device.CPU)
    assert "stream is capturing" in measured["refused"]
    # of hidden states, of tokens permuted to two experts each and of their probabilities
    gradients = (64 * 64 + 2 * 64 * 64 + 2 * 64) * 2
    predicted = graphs._predict(PARTS, Device.CPU)
    assert predicted["graph_inputs_bytes"] == sum(inputs.values()) + gradients
