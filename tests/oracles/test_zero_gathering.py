"""What DeepSpeed's own coordinator of parameters has gathered at once, against the prediction.

The coordinator runs through the calls of a model whose layers are checkpoints: parameters are of
no bytes and say how many elements they stand for, and a gather is done when it is asked for.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from advisor.frameworks.deepspeed import static
from advisor.hardware.calibration import load_calibration
from advisor.memory.static import stage_elements
from advisor.search.evaluate import Evaluator
from tests.advisor.frameworks.torch.jobs import stack_job

LAYERS = 32
LAST_PREFETCH = 0.06
"""It may be a parameter more than the limit of 1e9 elements: 58.7e6 of the largest."""


class Coordinator:
    """DeepSpeed's, with what it must be told of every parameter."""

    def __init__(self) -> None:
        from deepspeed.runtime.zero import partition_parameters as parameters
        from deepspeed.runtime.zero import partitioned_param_coordinator as coordinators

        self._status, self._next = parameters.ZeroParamStatus, iter(range(10**6))
        kind = coordinators.PartitionedParameterCoordinator
        self.own = kind(
            prefetch_bucket_sz=50_000_000,
            max_reuse_distance_in_numel=10**9,
            max_available_parameters_in_numel=static.MAX_LIVE_ELEMENTS,
            allgather_stream=None,
            inflight_param_registry=coordinators.InflightParamRegistry(),
        )
        self.own._clear_trace_structures()
        self.peak = 0

    def parameter(self, elements: int) -> Any:
        import torch

        found = torch.nn.Parameter(torch.empty(0))
        shard = SimpleNamespace(final_location=None, status=None)
        values = {"ds_numel": elements, "ds_tensor": shard, "nvme_swapper": None, "ds_persist": 0}
        values |= {"ds_id": next(self._next), "ds_active_sub_modules": set()}
        values |= {"ds_status": self._status.NOT_AVAILABLE, "ds_secondary_tensor": None}
        values |= {"ds_shape": (elements,), "is_external_param": False}
        for name, value in values.items():
            setattr(found, name, value)
        found.ds_summary = dict
        found.partition_numel = lambda: elements
        found.partition = lambda **_: setattr(found, "ds_status", self._status.NOT_AVAILABLE)
        found.all_gather_coalesced = self._gather
        return found

    def _gather(self, group: list[Any], **_: Any) -> Any:
        for one in group:
            one.ds_status = self._status.INFLIGHT

        def wait(**_: Any) -> None:
            for one in group:
                one.ds_status = self._status.AVAILABLE

        return SimpleNamespace(wait=wait)

    def module(self, *parameters: Any) -> Any:
        import torch

        found = torch.nn.Module()
        found.ds_id, found.ds_recompute_parameters = next(self._next), set()
        found.ds_external_parameters = tuple
        for number, one in enumerate(parameters):
            found.register_parameter(str(number), one)
        return found

    def enter(self, module: Any, *, forward: bool = True) -> None:
        self.own.trace_prologue(module)
        if self.own.is_record_trace():
            self.own.record_module(module)
        self.own.fetch_sub_module(module, forward=forward)
        self.peak = max(self.peak, self.own._PartitionedParameterCoordinator__n_available_params)

    def leave(self, module: Any, *, forward: bool = True) -> None:
        self.own.release_sub_module(module, forward=forward)

    def call(self, *modules: Any, forward: bool = True) -> None:
        for one in modules:
            self.enter(one, forward=forward)
            self.leave(one, forward=forward)


def _passes(found: Coordinator, sizes: list[int], end: int, *, external: bool) -> Iterator[int]:
    """The most elements that are gathered in the first half of the layers of each pass, step by
    step: near its end the last prefetch is the output layer's weight or the embedding.
    external: whether the model reads the output layer's weight itself."""
    head = found.parameter(end)
    model = found.module(*[head] * external)
    output = [] if external else [found.module(head)]
    embedding = found.module(found.parameter(end))
    layers = [
        ([found.module() for _ in range(4)], [found.module(found.parameter(n)) for n in sizes])
        for _ in range(LAYERS)
    ]
    while True:
        found.enter(model)
        found.call(embedding)
        found.peak = 0
        for number, (others, linear) in enumerate(layers):
            found.call(*others, *linear)
            if number == LAYERS // 2:
                yield found.peak
        found.call(*output)
        found.leave(model)
        found.enter(model, forward=False)
        found.call(*output, forward=False)
        found.peak = 0
        for number in reversed(range(LAYERS)):
            others, linear = layers[number]
            found.call(*others, *linear)
            found.call(*linear[::-1], *others[::-1], forward=False)
            if number == LAYERS // 2:
                yield found.peak
        found.call(embedding, forward=False)
        found.leave(model, forward=False)
        found.own.reset_step()


@pytest.mark.parametrize("liger", [True, False])
def test_so_many_elements_are_gathered_at_once(liger: bool, monkeypatch) -> None:
    coordinators = pytest.importorskip("deepspeed.runtime.zero.partitioned_param_coordinator")
    for alone in ("assert_ints_same_as_other_ranks", "print_rank_0"):
        monkeypatch.setattr(coordinators, alone, lambda *_, **__: None)
    overrides = ("model.transformer_impl=transformers", f"job.use_liger_kernel={liger}")
    _, job = stack_job("deepspeed", model="llama3_8b", overrides=overrides)
    evaluator = Evaluator(job, load_calibration(job.gpu))
    assert job.model.num_layers == LAYERS
    query, groups, ffn = 4096 * 4096, 4096 * 1024, 4096 * 14336
    found = _passes(
        Coordinator(),
        [query, groups, groups, query, ffn, ffn, ffn],
        job.model.padded_vocab_size(1) * 4096,
        external=liger,
    )
    predicted = static._live(evaluator.shape, stage_elements(evaluator.shape, evaluator.stages[0]))
    for peak in [next(found) for _ in range(6)][4:]:  # two steps are traced
        assert peak == pytest.approx(predicted, rel=LAST_PREFETCH)
