"""Time of the processor that launches kernels, and how long the GPU waits for it.

A process launches its kernels from one thread, ahead of the GPU as long as nothing asks for a
result: then a layer takes the longer of both. A dispatcher that must know how many tokens it will
receive waits for the GPU, and launches the kernels after that point while the GPU is idle. What a
CUDA graph holds is launched in one call.

Sources of what is counted: megatron-core 0.16.1 transformer/moe/token_dispatcher.py and router.py,
fused_a2a.py; Transformer Engine 2.20.2 pytorch/module. Of what one call takes: Calibration.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby

from msgspec import Struct

from advisor.layers.operators import ComputeUnit, Module, Operator
from advisor.layers.shape import RankShape
from advisor.models.options import FlexBackend, TransformerImpl


class Host(Struct, frozen=True, kw_only=True):
    """Seconds of the processor for one call.

    call_seconds: one operation of the framework: its dispatch, autograd, the kernel's launch.
    module_seconds: what a module of Transformer Engine adds to its kernels, each way.
    quantize_seconds: one tensor brought to 8 or 4 bits.
    answer_seconds: from the end of a kernel until its result is known and the next one launched.
    graphed: submodules whose kernels CUDA graphs hold, except exchanges of tokens and what is one
    call with them; whole: those too. hidden_share: part of an exchange that another microbatch's
    kernels hide, which run while it waits for a result; 0: there are none. blocks: they wait to be
    launched meanwhile. compiled: torch's own kernels of an operator are fused into one.
    """

    call_seconds: float
    module_seconds: float
    quantize_seconds: float
    answer_seconds: float
    graphed: frozenset[Module] = frozenset()
    whole: bool = False
    hidden_share: float = 0.0
    blocks: bool = False
    compiled: bool = False


class Launches(Struct, frozen=True):
    """What the processor does for one pass of an operator: operations, calls of modules, tensors
    that are quantized; asks: first it waits for a result."""

    calls: int
    modules: int = 0
    quantized: int = 0
    asks: bool = False

    def seconds(self, host: Host) -> float:
        """Seconds of the processor."""
        casts = self.quantized * host.quantize_seconds
        return self.calls * host.call_seconds + self.modules * host.module_seconds + casts


EXCHANGES = (Module.DISPATCH, Module.COMBINE)
"""Submodules that bring tokens to experts and back."""


def is_exchange(operator: Operator) -> bool:
    """Whether it sends tokens to their experts or back, and does nothing else."""
    return operator.module in EXCHANGES and bool(operator.forward_collectives)


_CALLS = {"permute": 12, "unpermute": 8, "sort_by_expert": 6, "unsort_by_expert": 6}
_FUSED_CALLS = {"permute": 6, "unpermute": 4, "sort_by_expert": 4, "unsort_by_expert": 4}
"""Operations of one forward, of the unfused and of the fused permutation (moe_utils.py)."""
_EXCHANGE_CALLS = 15
_ASKING = frozenset(
    {"dispatch_all_to_all", "gather_tokens", "flex_dispatch", "dispatch.all_to_all"}
)
"""Exchanges whose sizes depend on the routing: the processor reads them first."""
_UNFUSED_ATTENTION_CALLS = 8
_ATTENTION_MODULES = 3
_FUSED_OPERATOR_CALLS = 3
"""Of a fused operation of Megatron: its Python function, its autograd function, its kernel."""
_FORWARD_GEMM_CALLS, _BACKWARD_GEMM_CALLS = 2, 4
"""Of each of its kernels: a slice of the input and a product; back two products, the gradient's
hook and the input's slice."""
_COLLECTIVE_CALLS = 4
"""Of a collective next to or after a product: its function, its checks, NCCL's call, its wait."""
_EXPERT_BIAS_CALLS = 4
"""Of each expert: two slices, a product, a sum (experts.py _apply_bias)."""


def launches(
    operator: Operator, shape: RankShape, *, backward: bool, compiled: bool = False
) -> Launches:
    """What the processor does for one pass of `operator`."""
    engine = shape.model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE
    if operator.gemm is not None:
        kernels = operator.gemm.kernels
        quantized = kernels if operator.gemm.quantized else 0
        calls = (_BACKWARD_GEMM_CALLS if backward else _FORWARD_GEMM_CALLS) * kernels
        if operator.module is Module.EXPERT_FC2 and len(operator.weights) > 1:
            calls += _EXPERT_BIAS_CALLS * kernels
        sent = operator.backward_collectives if backward else operator.forward_collectives
        calls += _COLLECTIVE_CALLS * len(sent)
        return Launches(calls, int(engine), quantized)
    if operator.unit is ComputeUnit.ATTENTION:
        if operator.name == "core_attention":
            return Launches(2 if backward else 1, _ATTENTION_MODULES * engine)
        return Launches(_UNFUSED_ATTENTION_CALLS)
    asks = not backward and _asks(operator, shape)
    if compiled and not operator.forward_collectives:
        return Launches(1)
    return Launches(_calls(operator, shape, backward), asks=asks)


def _asks(operator: Operator, shape: RankShape) -> bool:
    if shape.model.moe_pad_expert_input_to_capacity:  # nobody counts, but who gathers them
        return operator.name == "gather_tokens"
    return _permutes_received(operator, shape) or (
        operator.name in _ASKING and shape.model.flex_backend is not FlexBackend.HYBRIDEP
    )


def _permutes_received(operator: Operator, shape: RankShape) -> bool:
    """Whether it is the second half of HybridEP's dispatch, which permutes what has arrived into a
    tensor of as many rows (fused_a2a.py HybridEPDispatch). That they are counted then, not before,
    is an assumption: published runs with HybridEP are nearer with it."""
    return operator.name == "permute" and shape.model.flex_backend is FlexBackend.HYBRIDEP


def _calls(operator: Operator, shape: RankShape, backward: bool) -> int:
    if operator.forward_collectives:
        return _EXCHANGE_CALLS
    if shape.model.transformer_impl.is_eager or operator.module is Module.ROUTER:
        return operator.backward_kernels if backward else operator.forward_kernels
    table = _FUSED_CALLS if shape.model.moe_permute_fusion else _CALLS
    return table.get(operator.name, _FUSED_OPERATOR_CALLS)


class Work(Struct, frozen=True):
    """One pass of an operator: seconds of the processor and of the GPU, whether the processor waits
    for the GPU first, and whether a CUDA graph holds it."""

    host: float
    device: float
    asks: bool = False
    held: bool = False


def work(
    operator: Operator, device: float, shape: RankShape, host: Host, *, backward: bool
) -> Work:
    """A pass of `operator` that takes the GPU `device` seconds; of a graph that holds it nothing
    but that."""
    sends = is_exchange(operator) or _permutes_received(operator, shape)
    if operator.module in host.graphed and (host.whole or not sends):
        return Work(0.0, device, held=True)
    found = launches(operator, shape, backward=backward, compiled=host.compiled)
    return Work(found.seconds(host), device, found.asks)


def launched(passes: Iterable[Work], host: Host) -> Iterator[Work]:
    """`passes` in order: those that one graph holds follow one launch."""
    if not host.graphed:
        yield from passes
        return
    launch = Work(host.call_seconds, 0.0, held=True)
    for in_graph, run in groupby(passes, lambda one: one.held):
        if in_graph:
            yield launch
        yield from run


_STEADY = 3
"""Layers after which the next one waits as long as the one before."""


def idle_seconds(passes: tuple[Work, ...], host: Host, *, hidden: float = 0.0) -> float:
    """Seconds that the GPU waits for the processor in one of many equal layers, one after the
    other. Where another microbatch runs next to, `hidden` seconds of the passes' exchanges are no
    time of their own, and the processor has always something to launch, if nothing blocks it."""
    whole = sum([one.device for one in passes])
    device_seconds = whole - hidden
    ahead = host.hidden_share and not host.blocks
    if ahead or not any(one.asks for one in passes):
        return max(0.0, sum([one.host for one in passes]) - device_seconds)
    seen = device_seconds / whole
    clock = done = before = 0.0
    for _ in range(_STEADY):
        before = done
        for one in passes:
            if one.asks:
                clock = max(clock, done) + host.answer_seconds
            clock += one.host
            done = max(done, clock) + seen * one.device
    return max(0.0, done - before - device_seconds)
