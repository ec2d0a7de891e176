"""Where each byte of the worst rank and each millisecond of a step goes."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from advisor.answer.answer import MemoryLine, TimeLine
from advisor.answer.evaluation import Evaluation, TimeBreakdown
from advisor.job.pipeline_split import ModelChunk
from advisor.layers import transformer
from advisor.layers.family import family_of
from advisor.layers.operators import Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.memory.static import StaticMemory
from advisor.plan import recompute_plan
from advisor.plan.recompute_plan import Segment, kept_tensors, replayed_operators
from advisor.search.evaluate import Evaluator
from advisor.search.job_memory import StageDetail
from advisor.time.launches import EXCHANGES
from advisor.time.passes import end_operators, gather_seconds, tiled_operators
from advisor.time.roofline import backward_seconds, bound_by, forward_seconds


def memory_lines(evaluation: Evaluation) -> tuple[MemoryLine, ...]:
    """Bytes of the worst rank by component and tensor; they sum to its reserved peak."""
    evaluator = Evaluator(evaluation.job, evaluation.calibration)
    stage = evaluation.peak.stage
    simulated = evaluation.requests is not None
    detail = evaluator.stage_details(evaluation.setting, simulated=simulated)[stage]
    static, words = detail.fixed.static, detail.fixed.words
    more, source = detail.reserved.measured_more, "runs given with --calibration"
    measured = _term("activations", "measured beyond the prediction", more, source)
    gradients, optimizer, moved = words.gradients, words.optimizer, detail.activations.transient
    passing = "temporary tensors of the running pass, and tensors that the schedule keeps"
    rest = (*detail.fixed.buffers, *detail.reserved.terms)
    return (
        *_weight_lines(words.weights, static),
        _term("gradients", gradients[0], static.gradients, gradients[1]),
        _term("optimizer", optimizer[0], static.optimizer, optimizer[1]),
        *_kept_lines(evaluator, evaluation, detail),
        *([measured] if more else []),
        _term("transient", evaluation.peak.peak_phase, moved, passing),
        *(_term("overhead", term.name, term.num_bytes, term.source) for term in rest),
    )


def _weight_lines(words: tuple[str, str], static: StaticMemory) -> list[MemoryLine]:
    """Weights, and those that are frozen apart."""
    name, source = words
    if not static.frozen:
        return [_term("weights", name, static.weights, source)]
    trained = static.weights - static.frozen
    return [
        _term("weights", "frozen weights, as they are stored", static.frozen, source),
        _term("weights", f"trained: {name}", trained, source),
    ]


def _term(component: str, name: str, num_bytes: int, source: str) -> MemoryLine:
    return MemoryLine(
        component=component, name=name, shape="", unit_bytes=num_bytes, count=1, source=source
    )


def _kept_lines(
    evaluator: Evaluator, evaluation: Evaluation, detail: StageDetail
) -> tuple[MemoryLine, ...]:
    """Saved tensors of everything in flight: copies are layers x microbatches."""
    shape, in_flight = evaluator.shape, detail.activations.in_flight
    counts: dict[Tensor, int] = defaultdict(int)
    readers: dict[str, str] = {}
    for chunk, microbatches in zip(evaluator.stages[evaluation.peak.stage], in_flight, strict=True):
        plan = evaluator.plan(evaluation.setting, chunk.layers)
        readers |= _readers(shape, chunk)
        for tensor, copies in _layer_tensors(shape, plan):
            counts[tensor] += copies * microbatches
        for tensor in kept_tensors(end_operators(shape, chunk.embedding, chunk.head), ()).values():
            counts[tensor] += microbatches
    package = family_of(shape.model).source
    lines = [
        MemoryLine(
            component="activations",
            name=tensor.name,
            shape=f"[{', '.join(str(n) for n in tensor.shape)}] {tensor.dtype}",
            unit_bytes=tensor.num_bytes,
            count=count,
            source=f"{package}, for the backward of {readers.get(tensor.name, 'the layer')}",
        )
        for tensor, count in counts.items()
    ]
    rest = detail.activations.kept - sum(line.num_bytes for line in lines)
    if rest:
        name = "checkpoint arguments and attention masks"
        lines.append(_term("activations", name, rest, "kept by checkpoints"))
    return tuple(lines)


def _layer_tensors(
    shape: RankShape, plan: recompute_plan.RecomputePlan
) -> Iterator[tuple[Tensor, int]]:
    """Tensors that one microbatch of one chunk keeps on the device in its layers, with their
    number."""
    for segment in plan.segments:
        if segment.whole:
            hidden = shape.hidden(transformer.LAYER_INPUT)
            if segment.shards_input:
                part = -(-hidden.num_bytes // hidden.dtype.itemsize // shape.tp)
                hidden = Tensor("layer_input shard", (part,), hidden.dtype)
            if not segment.input.offloaded:
                yield hidden, segment.copies
            continue
        for kind, count in segment.kinds():
            operators = transformer.transformer_layer(shape, kind)
            away = recompute_plan.offloaded_names(operators, segment.runs, segment.offloaded)
            kept = kept_tensors(operators, segment.runs).items()
            yield from ((tensor, count) for name, tensor in kept if name not in away)


def _readers(shape: RankShape, chunk: ModelChunk) -> dict[str, str]:
    """By tensor: the submodule whose backward reads it."""
    kinds = dict.fromkeys(chunk.layers)
    operators = [op for kind in kinds for op in transformer.transformer_layer(shape, kind)]
    operators += end_operators(shape, chunk.embedding, chunk.head)
    return {tensor.name: op.module for op in operators for tensor in (*op.saved, *op.inputs[:1])}


def time_lines(evaluation: Evaluation) -> tuple[TimeLine, ...]:
    """Seconds of one step on the slowest stage by phase and operator; they sum to the step."""
    evaluator = Evaluator(evaluation.job, evaluation.calibration)
    plans = evaluator.plans(evaluation.setting)
    time = evaluator.time.step(plans)
    passes: dict[tuple[str, str, str], float] = defaultdict(float)
    exchanges: set[tuple[str, str, str]] = set()
    microbatches = evaluator.samples.mean.num_microbatches
    for operator, layers, replays in _stage_operators(evaluator, evaluation):
        forward = forward_seconds(operator, *evaluator.rates)
        backward = backward_seconds(operator, *evaluator.rates)
        name, bound, runs = operator.name, bound_by(operator), layers * microbatches
        passes["forward", name, bound] += forward.compute * runs
        passes["backward", name, bound] += backward.compute * runs
        again = (forward.compute + forward.exposed) * replays * microbatches
        passes["recompute", name, bound] += again
        sent = "exposed communication", name, "network"
        passes[sent] += (forward.exposed + backward.exposed) * runs
        if operator.module in EXCHANGES:
            exchanges.add(sent)
    whole = sum(passes[key] for key in exchanges)
    for key in exchanges if whole else ():
        passes[key] *= evaluator.time.slowest(plans).exchange_seconds / whole
    lines = [TimeLine(phase, name, s, bound) for (phase, name, bound), s in passes.items()]
    exposed = sum(line.seconds for line in lines if line.phase == "exposed communication")
    gathered, rest = _gathered(evaluator, evaluation), time.exposed_communication - exposed
    lines += [
        TimeLine("recompute", "all-gather of checkpoint inputs", gathered, "network"),
        TimeLine("exposed communication", "DP and pipeline communication", rest, "network"),
        TimeLine("pipeline bubble", "idle", time.pipeline_bubble, "schedule"),
        TimeLine("optimizer", "Adam step", time.optimizer, "memory bandwidth"),
        TimeLine("offload", "host transfers", time.offload, "host link"),
        TimeLine("waiting", "kernel launches", time.host, "host processor"),
        TimeLine("stragglers", "wait for the slowest GPU", time.stragglers, "spread of speeds"),
    ]
    if evaluator.learned is not None:
        lines = [_as_measured(line, time, evaluation.time_seconds) for line in lines]
    return tuple(line for line in lines if line.seconds)


def _as_measured(line: TimeLine, shipped: TimeBreakdown, moved: TimeBreakdown) -> TimeLine:
    """`line` in the proportion in which measured runs move its phase."""
    phase = _PHASES.get(line.phase, line.phase)
    before = getattr(shipped, phase)
    return replace(line, seconds=line.seconds * getattr(moved, phase) / before) if before else line


_PHASES: Final = {
    "exposed communication": "exposed_communication",
    "pipeline bubble": "pipeline_bubble",
    "waiting": "host",
}


def _slowest_chunks(evaluator: Evaluator, evaluation: Evaluation) -> tuple[ModelChunk, ...]:
    """Of the stage that sets the pace."""
    return evaluator.stages[evaluator.time.slowest(evaluator.plans(evaluation.setting)).number]


def _segments(evaluator: Evaluator, evaluation: Evaluation) -> Iterator[Segment]:
    for chunk in _slowest_chunks(evaluator, evaluation):
        yield from evaluator.plan(evaluation.setting, chunk.layers).segments


def _gathered(evaluator: Evaluator, evaluation: Evaluation) -> float:
    """Seconds of all-gathers of checkpoints' inputs that TP ranks hold in parts."""
    _, network = evaluator.rates
    segments = _segments(evaluator, evaluation)
    inputs = sum(segment.copies for segment in segments if segment.shards_input)
    microbatches = evaluator.samples.mean.num_microbatches
    return inputs * microbatches * gather_seconds(evaluator.mean_shape, network)


def _stage_operators(
    evaluator: Evaluator, evaluation: Evaluation
) -> Iterator[tuple[Operator, int, int]]:
    """Operators of the slowest stage: how often each runs in one microbatch, how often again."""
    shape = evaluator.mean_shape
    for segment in _segments(evaluator, evaluation):
        for kind, count in segment.kinds():
            layer = transformer.transformer_layer(shape, kind)
            replayed = {operator.name for operator in replayed_operators(layer, segment.replay)}
            tiled = {operator.name for operator in tiled_operators(shape, layer)}
            for operator in layer:
                again = (operator.name in replayed) + (operator.name in tiled)
                yield operator, count, count * again
    for chunk in _slowest_chunks(evaluator, evaluation):
        for operator in end_operators(shape, chunk.embedding, chunk.head):
            yield operator, 1, 0
