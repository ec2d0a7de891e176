"""Where each byte of the worst rank and each millisecond of a step goes."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from advisor.answer import Evaluation, MemoryLine, TimeLine
from advisor.cost.roofline import backward_seconds, bound_by, forward_seconds
from advisor.evaluate import Evaluator, StageDetail
from advisor.layers.ends import embedding_operators, head_operators
from advisor.layers.operators import Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, transformer_layer
from advisor.recompute import RecomputePlan, Segment, kept_tensors

_LAYER_SOURCE = "kept by every layer"


def memory_lines(evaluation: Evaluation) -> tuple[MemoryLine, ...]:
    """Bytes of the worst rank by component and tensor; they sum to its reserved peak."""
    evaluator = Evaluator(evaluation.job, evaluation.calibration)
    stage = evaluation.peak.stage
    detail = evaluator.stage_detail(evaluation.setting, stage)
    static = detail.static
    return (
        _term("weights", "16-bit weights", static.weights, "2 bytes a parameter"),
        _term("gradients", "main gradients", static.gradients, "contiguous gradient buffer"),
        _term("optimizer", "fp32 master weights and Adam moments", static.optimizer,
              "12 bytes a parameter over the shards"),
        *_kept_lines(evaluator, evaluation, detail),
        _term("transient", evaluation.peak.peak_phase, detail.activations.transient,
              "working set of the pass at the peak, and what the schedule holds"),
        *(
            _term("overhead", term.name, term.num_bytes, term.source)
            for term in (*detail.buffers, *detail.reserved.terms)
        ),
    )  # fmt: skip


def _term(component: str, name: str, num_bytes: int, source: str) -> MemoryLine:
    return MemoryLine(
        component=component, name=name, shape="", unit_bytes=num_bytes, count=1, source=source
    )


def _kept_lines(
    evaluator: Evaluator, evaluation: Evaluation, detail: StageDetail
) -> tuple[MemoryLine, ...]:
    """Saved tensors of everything in flight: copies are layers x microbatches."""
    plan, shape = evaluator.plan(evaluation.setting), evaluator.shape
    in_flight = detail.activations.in_flight
    counts: dict[Tensor, int] = defaultdict(int)
    for tensor, copies in _layer_tensors(shape, plan):
        counts[tensor] += copies * sum(in_flight)
    for chunk, (first, last) in enumerate(evaluator.ends(evaluation.peak.stage)):
        for tensor in _end_tensors(shape, first, last):
            counts[tensor] += in_flight[chunk]
    lines = [
        MemoryLine(
            component="activations", name=tensor.name,
            shape=f"[{', '.join(str(n) for n in tensor.shape)}] {tensor.dtype}",
            unit_bytes=tensor.num_bytes, count=count, source=_LAYER_SOURCE,
        )
        for tensor, count in counts.items()
    ]  # fmt: skip
    rest = detail.activations.kept - sum(line.num_bytes for line in lines)
    if rest:
        lines.append(_term("activations", "checkpoint arguments and attention masks", rest,
                           "kept by checkpoints"))  # fmt: skip
    return tuple(lines)


def _layer_tensors(shape: RankShape, plan: RecomputePlan) -> Iterator[tuple[Tensor, int]]:
    """Tensors that one microbatch of one chunk keeps in its layers, with their number."""
    for segment in plan.segments:
        if segment.whole:
            yield _checkpoint_input(shape, segment), segment.copies
            continue
        for tensor in kept_tensors(transformer_layer(shape), segment.runs).values():
            yield tensor, segment.total_layers


def _checkpoint_input(shape: RankShape, segment: Segment) -> Tensor:
    hidden = shape.hidden(LAYER_INPUT)
    if not segment.shards_input:
        return hidden
    elements = hidden.num_bytes // hidden.dtype.itemsize
    return Tensor("layer_input shard", (-(-elements // shape.tp),), hidden.dtype)


def _end_tensors(shape: RankShape, first: bool, last: bool) -> Iterator[Tensor]:
    if first:
        yield from kept_tensors(embedding_operators(shape), ()).values()
    if last:
        yield from kept_tensors(head_operators(shape), ()).values()


def time_lines(evaluation: Evaluation) -> tuple[TimeLine, ...]:
    """Seconds of one step on the slowest stage by phase and operator; they sum to the step."""
    evaluator = Evaluator(evaluation.job, evaluation.calibration)
    time = evaluation.time_seconds
    passes: dict[tuple[str, str, str], float] = defaultdict(float)
    for operator, layers, replays in _stage_operators(evaluator, evaluation):
        _add_operator(passes, evaluator, operator, layers, replays)
    lines = [
        TimeLine(phase=phase, operator=name, seconds=seconds, bound_by=bound)
        for (phase, name, bound), seconds in passes.items()
    ]
    exposed = sum(line.seconds for line in lines if line.phase == "exposed communication")
    lines += [
        _line("exposed communication", "data parallel and pipeline transfers",
              time.exposed_communication - exposed, "network"),
        _line("pipeline bubble", "idle", time.pipeline_bubble, "schedule"),
        _line("optimizer", "Adam step", time.optimizer, "memory bandwidth"),
        _line("offload", "host transfers", time.offload, "host link"),
    ]  # fmt: skip
    return tuple(line for line in lines if line.seconds)


def _line(phase: str, operator: str, seconds: float, bound: str) -> TimeLine:
    return TimeLine(phase=phase, operator=operator, seconds=seconds, bound_by=bound)


def _stage_operators(
    evaluator: Evaluator, evaluation: Evaluation
) -> Iterator[tuple[Operator, int, int]]:
    """Operators of the slowest stage: how often each runs in one microbatch, how often again."""
    plan = evaluator.plan(evaluation.setting)
    shape = evaluator.shape
    ends = evaluator.ends(evaluator.slowest_stage(evaluation.setting))
    layers = transformer_layer(shape)
    for operator in layers:
        replays = sum(
            segment.total_layers
            for segment in plan.segments
            if segment.whole or any(operator.module in run.modules for run in segment.runs)
        )
        yield operator, plan.num_layers * len(ends), replays * len(ends)
    for first, last in ends:
        operators: Iterable[Operator] = ()
        if first:
            operators = embedding_operators(shape)
        if last:
            operators = (*operators, *head_operators(shape))
        for operator in operators:
            yield operator, 1, 0


def _add_operator(
    passes: dict[tuple[str, str, str], float],
    evaluator: Evaluator,
    operator: Operator,
    layers: int,
    replays: int,
) -> None:
    machine, network = evaluator.rates
    forward = forward_seconds(operator, machine, network)
    backward = backward_seconds(operator, machine, network)
    microbatches, bound = evaluator.job.num_microbatches, bound_by(operator)
    runs = layers * microbatches
    passes["forward", operator.name, bound] += forward.compute * runs
    passes["backward", operator.name, bound] += backward.compute * runs
    again = (forward.compute + forward.exposed) * replays * microbatches
    passes["recompute", operator.name, bound] += again
    exposed = (forward.exposed + backward.exposed) * runs
    passes["exposed communication", operator.name, "network"] += exposed
