"""How long the GPU waits for its processor in a step of the native backend. Its layers are plain
torch modules: the processor queues each operation by itself, and loops over experts. It starts a
step next to an idle GPU, since it has read the loss of the last one, and waits for the GPU wherever
a router tells how many rows each expert gets: what follows is queued while the GPU is idle.
Elsewhere it is ahead if it is faster. advisor.time.launches has the same for layers of frameworks,
one by one; here a whole step is one queue, as what is ahead carries over."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu
from advisor.layers.operators import Module, Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.models.layer_kind import LayerKind
from advisor.models.options import Normalization
from advisor.plan.recompute_plan import Segment
from advisor.time.machine import machine
from advisor.time.passes import end_times, layer_passes
from advisor.time.rank_links import network
from harness.backends.native.predict import native_plan, native_shape
from harness.backends.native.setting import parse_native_setting
from harness.trial.trial import Workload


class Calls(NamedTuple):
    """Operations of torch that the processor queues for a pass, views of tensors included."""

    forward: int
    backward: int


_LINEAR: Final = Calls(4, 8)
_BIAS: Final = Calls(0, 1)
_NORMS: Final = {Normalization.RMS_NORM: Calls(2, 3), Normalization.LAYER_NORM: Calls(2, 2)}
_EXPERTS: Final = Calls(4, 7)
_EACH_EXPERT: Final = Calls(1, 2)
"""A product with its view, inside one function of autograd."""
_NAMED: Final = {
    "split_qkv": Calls(4, 4),
    "split_kv": Calls(12, 14),
    "rotary_pos_emb": Calls(22, 16),
    "core_attention": Calls(7, 7),
    "topk_routing": Calls(20, 12),
    "permute": Calls(14, 8),
    "unpermute": Calls(6, 3),
}
_MODULES: Final = {
    Module.ACTIVATION: Calls(4, 7),
    Module.SHARED_ACTIVATION: Calls(4, 7),
    Module.EXPERT_ACTIVATION: Calls(5, 13),
}
_OTHERS: Final = Calls(1, 1)
_HEAD: Final = Calls(20, 15)
"""Final norm, output layer and loss."""
_ANSWERS: Final = {"permute": 3}
"""Two selections by a mask, and the rows of each expert (modules/moe/layer.py)."""
_STEADY: Final = 3
_CHECKPOINT: Final = 30.0
_KEPT: Final = 1.25
"""To queue a replay takes the processor as long as its forward, 30 operations for the checkpoint,
and 1.25 for each tensor that it keeps, as these go through hooks. Timed on a server's CPU with tiny
layers: core attention 43 operations, the experts' part 123, a whole layer 145 (dense), 222 (with
experts), 265 (latent)."""


def calls(operator: Operator, shape: RankShape) -> Calls:
    """Operations of `operator` in the native backend on a GPU, without tensor parallelism."""
    if operator.gemm is not None:
        if operator.module in (Module.EXPERT_FC1, Module.EXPERT_FC2):
            return _plus(_EXPERTS, _EACH_EXPERT, operator.gemm.kernels)
        return _plus(_LINEAR, _BIAS, len(operator.weights) - 1)
    if operator.name.endswith("norm"):
        return _NORMS[shape.model.normalization]
    return _NAMED.get(operator.name) or _MODULES.get(operator.module, _OTHERS)


def _plus(one: Calls, each: Calls, count: int) -> Calls:
    return Calls(one.forward + count * each.forward, one.backward + count * each.backward)


def layer_calls(shape: RankShape, kind: LayerKind) -> Calls:
    """Operations of one layer, nothing replayed."""
    each = [calls(operator, shape) for operator in transformer_layer(shape, kind)]
    return Calls(sum(one.forward for one in each), sum(one.backward for one in each))


class Piece(NamedTuple):
    """Work queued together: seconds of the processor and of the GPU; answers: waits before it."""

    host: float
    device: float
    answers: int = 0


def waiting_seconds(workload: Workload, gpu: Gpu, calibration: Calibration) -> float:
    """Seconds of a step in which the GPU waits; of pipelines, as if a stage had no others besides
    it. From the third microbatch on each waits alike. UserError for what is not run."""
    pieces = tuple(_Microbatch(workload, gpu, calibration).pieces())
    microbatches, answer = workload.num_microbatches, calibration.host_answer_seconds
    if microbatches <= _STEADY:
        return idle_seconds(pieces * microbatches, answer)
    before, idle = (idle_seconds(pieces * count, answer) for count in (_STEADY - 1, _STEADY))
    return idle + (microbatches - _STEADY) * (idle - before)


def idle_seconds(pieces: Iterable[Piece], answer_seconds: float) -> float:
    """Seconds in which the GPU has nothing to do until the last of `pieces` begins. answer_seconds:
    from the end of a kernel until the processor knows its result."""
    queued = done = idle = 0.0
    for piece in pieces:
        if piece.answers:
            queued = max(queued, done) + piece.answers * answer_seconds
        queued += piece.host
        idle += max(0.0, queued - done)
        done = max(queued, done) + piece.device
    return idle


class _Microbatch:
    """What one microbatch queues, in order: forward, head, and backward with its replays."""

    def __init__(self, workload: Workload, gpu: Gpu, calibration: Calibration) -> None:
        self._shape = native_shape(workload)
        self._machine = machine(gpu, calibration, workload.precision)
        self._network = network(workload.layout, gpu, calibration, self._shape.model)
        self._call_seconds = calibration.host_native_call_seconds
        plan = native_plan(workload, parse_native_setting(workload.recompute))
        self._segments = [one for one in plan.segments for _ in range(one.copies)]

    def pieces(self) -> Iterator[Piece]:
        """Of one stage's layers, embedding and head."""
        ends = end_times(self._shape, self._machine, self._network, True, True)
        for segment in self._segments:
            for kind in segment.layers:
                yield from self._forward(self._operators(kind), kind)
        yield Piece(self._call_seconds * _HEAD.forward, ends.forward)
        yield Piece(self._call_seconds * _HEAD.backward, ends.backward)
        for segment in reversed(self._segments):
            yield from self._backward(segment)

    def _backward(self, segment: Segment) -> Iterator[Piece]:
        if segment.whole:
            for kind in segment.layers:
                yield from self._replay(self._operators(kind), kind)
        for kind in reversed(segment.layers):
            operators, to_come = self._operators(kind), list(segment.runs)
            for operator in reversed(operators):
                module = operator.module
                for run in [r for r in to_come if module in (*r.modules, r.replayed_before)]:
                    to_come.remove(run)
                    again = tuple(one for one in operators if one.module in run.modules)
                    yield from self._replay(again, kind)
                yield self._piece(operator, kind, backward=True)

    def _operators(self, kind: LayerKind) -> tuple[Operator, ...]:
        return transformer_layer(self._shape, kind)

    def _forward(self, operators: tuple[Operator, ...], kind: LayerKind) -> Iterator[Piece]:
        return (self._piece(operator, kind, backward=False) for operator in operators)

    def _replay(self, operators: tuple[Operator, ...], kind: LayerKind) -> Iterator[Piece]:
        kept = sum(len(operator.saved) for operator in operators)
        yield Piece(self._call_seconds * (_CHECKPOINT + _KEPT * kept), 0.0)
        yield from self._forward(operators, kind)

    def _piece(self, operator: Operator, kind: LayerKind, *, backward: bool) -> Piece:
        passes = layer_passes(self._shape, self._machine, self._network, kind)[operator.name]
        device = passes[backward].compute + passes[backward].exposed
        answers = 0 if backward else _ANSWERS.get(operator.name, 0)
        return Piece(self._call_seconds * calls(operator, self._shape)[backward], device, answers)
