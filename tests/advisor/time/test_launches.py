"""What the processor does for a layer, and how long the GPU waits for it; worked by hand."""

import pytest
from msgspec.structs import replace

from advisor.layers.operators import (
    Collective,
    CollectiveKind,
    Gemm,
    Group,
    Module,
    Operator,
    Weight,
)
from advisor.layers.operators import ComputeUnit as Unit
from advisor.layers.shape import RankShape
from advisor.models.options import TransformerImpl
from advisor.models.presets import load_model
from advisor.time.launches import Host, Launches, Work, idle_seconds, launched, launches, work

HOST = Host(call_seconds=1.0, module_seconds=10.0, quantize_seconds=100.0, answer_seconds=5.0)
SENT = Collective(CollectiveKind.ALL_TO_ALL, Group.EXPERT, 8)


def shape(impl: TransformerImpl = TransformerImpl.TRANSFORMER_ENGINE) -> RankShape:
    model = replace(load_model("mixtral_8x7b"), transformer_impl=impl)
    return RankShape(model=model, seq_length=128, micro_batch_size=1)


def operator(
    name: str = "norm", module: Module = Module.INPUT_LAYERNORM, unit: Unit = Unit.BANDWIDTH, **more
) -> Operator:
    return Operator(name=name, module=module, unit=unit, inputs=(), outputs=(), **more)


def linear(module: Module = Module.LINEAR_PROJ, *, copies: int = 1, bias: bool = False) -> Operator:
    gemm = Gemm(8, 8, 8, quantized=True, groups=copies, kernels=copies)
    weights = tuple(Weight(name, (8, 8), copies=copies) for name in ("w", "b")[: 1 + bias])
    return operator("linear", module, Unit.GEMM, gemm=gemm, weights=weights)


def test_seconds_of_launches() -> None:
    assert Launches(3, 2, 1).seconds(HOST) == 3 + 20 + 100


@pytest.mark.parametrize(
    ("found", "there", "back"),
    [
        (linear(), Launches(2, 1, 1), Launches(4, 1, 1)),
        (linear(copies=8), Launches(16, 1, 8), Launches(32, 1, 8)),  # each expert's
        (
            linear(Module.EXPERT_FC2, copies=8, bias=True),
            Launches(16 + 32, 1, 8),
            Launches(32 + 32, 1, 8),
        ),
        (
            operator("core_attention", Module.CORE_ATTENTION, Unit.ATTENTION),
            Launches(1, 3),
            Launches(2, 3),
        ),
        (operator(), Launches(3), Launches(3)),
        (
            operator("dispatch_all_to_all", Module.DISPATCH, forward_collectives=(SENT,)),
            Launches(15, asks=True),
            Launches(15),
        ),
    ],
    ids=["linear", "experts", "biases", "attention", "norm", "dispatch"],
)
def test_launches_of_an_operator(found: Operator, there: Launches, back: Launches) -> None:
    assert launches(found, shape(), backward=False) == there
    assert launches(found, shape(), backward=True) == back


def test_torchs_own_layers_are_launched_kernel_by_kernel_without_modules() -> None:
    eager = shape(TransformerImpl.TORCH)
    assert launches(linear(), eager, backward=False) == Launches(2, 0, 1)
    norm = operator(forward_kernels=4, backward_kernels=7)
    assert launches(norm, eager, backward=False) == Launches(4)
    assert launches(norm, eager, backward=True) == Launches(7)
    assert launches(norm, eager, backward=True, compiled=True) == Launches(1)
    router = operator("router.scores", Module.ROUTER)
    assert launches(router, eager, backward=False) == Launches(1)
    experts = operator(
        "experts.w1",
        Module.EXPERT_FC1,
        Unit.GEMM,
        gemm=Gemm(64, 8, 8, groups=128),  # one kernel for all of them
        weights=(Weight("w1", (8, 8), expert=True, copies=128),),
    )
    assert launches(experts, eager, backward=False) == Launches(2)
    exchange = operator("dispatch.all_to_all", Module.DISPATCH, forward_collectives=(SENT,))
    assert launches(exchange, eager, backward=False) == Launches(15, asks=True)


def test_a_graph_is_one_launch_and_holds_no_exchange_unless_it_holds_everything() -> None:
    partial = replace(HOST, graphed=frozenset({Module.INPUT_LAYERNORM, Module.DISPATCH}))
    exchange = operator("dispatch_all_to_all", Module.DISPATCH, forward_collectives=(SENT,))
    layer = (operator(), operator(), exchange, operator())

    def passes(host: Host) -> list[Work]:
        return list(launched((work(o, 2.0, shape(), host, backward=False) for o in layer), host))

    first, one, two, sent, again, three = passes(partial)
    assert (first.host, first.device) == (again.host, again.device) == (1.0, 0.0)
    assert {one, two, three} == {Work(0.0, 2.0, held=True)}
    assert sent == Work(15.0, 2.0, asks=True)
    whole = passes(replace(partial, whole=True))
    assert [w.host for w in whole] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert not any(w.asks for w in whole)


def test_the_gpu_waits_for_what_the_processor_takes_longer() -> None:
    slow, quick = Work(6.0, 2.0), Work(1.0, 3.0)
    assert idle_seconds((slow, quick), HOST) == 2.0
    assert idle_seconds((quick, quick), HOST) == 0.0


def test_after_a_result_that_is_waited_for_kernels_are_launched_late() -> None:
    """Steady state: the layer's 4 s of kernels are done, 5 s later the answer is there, 2 s more
    until the first launch; the 1 s of the second is hidden behind the first's 3 s."""
    layer = (Work(2.0, 3.0, asks=True), Work(1.0, 1.0))
    assert idle_seconds(layer, HOST) == 7.0
    assert idle_seconds(layer, replace(HOST, hidden_share=0.5)) == 0.0


def test_what_is_hidden_of_an_exchange_is_no_time_of_the_gpu() -> None:
    """3 s of launches next to 4 s on the GPU, 2 s of them hidden."""
    layer = (Work(2.0, 3.0, asks=True), Work(1.0, 1.0))
    assert idle_seconds(layer, replace(HOST, hidden_share=0.5), hidden=2.0) == 1.0
