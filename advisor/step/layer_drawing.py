"""One layer as it is drawn: its operators in order, what becomes of each tensor that they save, and
which layers of a chunk keep what."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.evaluation import Evaluation
from advisor.base.units import human_bytes
from advisor.layers.family import family_of
from advisor.layers.operators import Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, transformer_layer
from advisor.memory.chunk_units import kept_input
from advisor.models.layer_kind import LayerKind, Role
from advisor.plan import recompute_plan
from advisor.search.evaluate import Evaluator
from advisor.time.machine import Machine
from advisor.time.passes import layer_passes, tiled_operators
from advisor.time.rank_links import Network
from advisor.time.roofline import bound_by


class Fate(StrEnum):
    """Where a tensor that the backward needs is until then."""

    KEPT = "kept"
    OFFLOADED = "offloaded"
    REPLAYED = "replayed"


class DrawnTensor(Struct, frozen=True):
    """A storage that the backward of a layer needs, local to one rank, one microbatch."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    fate: Fate


class DrawnOperator(Struct, frozen=True, kw_only=True):
    """An operator of a layer: Megatron's submodule, what it computes and sends in words, what
    limits it; seconds of one microbatch, communication included, 0 where it is not replayed.
    tensors: those that it is the first to save, or where it is replayed to read."""

    name: str
    module: str
    work: str
    limit: str
    forward_seconds: float
    backward_seconds: float
    replay_seconds: float
    tensors: tuple[DrawnTensor, ...]

    def num_bytes(self, fate: Fate) -> int:
        """Bytes of its tensors of one fate."""
        return sum(tensor.num_bytes for tensor in self.tensors if tensor.fate is fate)


class DrawnLayer(Struct, frozen=True, kw_only=True):
    """One layer of a kind under one regime, of which the model has `layers`.

    together: layers that one checkpoint is around, 0 where there is none around whole layers; then
    the first one's input alone is kept. arguments: small bytes that checkpoints keep besides
    tensors. source: the package whose modules these are.
    """

    kind: str
    layers: int
    together: int
    operators: tuple[DrawnOperator, ...]
    arguments: int
    source: str

    def num_bytes(self, fate: Fate) -> int:
        """Bytes of one microbatch of one layer of one fate, a checkpoint's argument included."""
        tensors = sum(operator.num_bytes(fate) for operator in self.operators)
        return tensors + (self.arguments if fate is Fate.KEPT else 0)


def drawn_layers(evaluation: Evaluation, evaluator: Evaluator | None = None) -> list[DrawnLayer]:
    """The different layers of the model under the setting, in order of their first appearance."""
    found = evaluator or Evaluator(evaluation.job, evaluation.calibration)
    counts: Counter[tuple[LayerKind, recompute_plan.Segment]] = Counter()
    for stage in found.stages:
        for chunk in stage:
            for segment in found.plan(evaluation.setting, chunk.layers).segments:
                for kind, count in segment.kinds():
                    # of a checkpoint around layers, one of them cannot tell the others' kinds
                    alike = (kind,) * segment.num_layers if segment.whole else segment.layers
                    counts[kind, replace(segment, copies=1, layers=alike)] += count
    return [
        drawn_layer(found, kind, segment, layers)
        for (kind, segment), layers in counts.items()
        if kind.role is not Role.FINAL_LAYERNORM
    ]


def drawn_layer(
    evaluator: Evaluator, kind: LayerKind, segment: recompute_plan.Segment, layers: int = 1
) -> DrawnLayer:
    """A layer of a kind as the evaluator's job runs it in a segment, of which there are `layers`
    such."""
    shape = evaluator.shape
    operators = transformer_layer(shape, kind)
    again = Counter(one.name for one in tiled_operators(shape, operators))
    again.update(one.name for one in recompute_plan.replayed_operators(operators, segment.replay))
    needed = _fates(evaluator, operators, segment)
    return DrawnLayer(
        kind=kind.name + " of multi-token prediction" * (kind.role is Role.MULTI_TOKEN_PREDICTION),
        layers=layers,
        together=segment.num_layers if segment.whole else 0,
        operators=tuple(
            replace(
                one,
                replay_seconds=again[one.name] * one.forward_seconds,
                tensors=tuple(needed.get(one.name, ())),
            )
            for one in _without_recompute(shape, kind, *evaluator.rates)
        ),
        arguments=sum(run.extra_kept_bytes for run in segment.runs),
        source=family_of(shape.model).source,
    )


@lru_cache(maxsize=1024)
def _without_recompute(
    shape: RankShape, kind: LayerKind, machine: Machine, network: Network
) -> tuple[DrawnOperator, ...]:
    """Operators of a layer, their tensors left aside."""
    passes = layer_passes(shape, machine, network, kind)
    return tuple(
        DrawnOperator(
            name=operator.name,
            module=operator.module,
            work="; ".join(_work(operator)),
            limit=bound_by(operator),
            forward_seconds=there.compute + there.exposed,
            backward_seconds=back.compute + back.exposed,
            replay_seconds=0.0,
            tensors=(),
        )
        for operator in transformer_layer(shape, kind)
        for there, back in (passes[operator.name],)
    )


def _fates(
    evaluator: Evaluator, operators: tuple[Operator, ...], segment: recompute_plan.Segment
) -> dict[str, list[DrawnTensor]]:
    """Tensors by the operator that they are drawn at."""
    wanted = recompute_plan.kept_tensors(operators, ())
    if segment.whole:
        kept = {name: tensor for name, tensor in wanted.items() if name == LAYER_INPUT}
        kept = kept or {LAYER_INPUT: evaluator.shape.hidden(LAYER_INPUT)}
        away = frozenset(kept if segment.input.offloaded else ())
    else:
        kept = recompute_plan.kept_tensors(operators, segment.runs)
        away = recompute_plan.offloaded_names(operators, segment.runs, segment.offloaded)
    found: dict[str, list[DrawnTensor]] = {}
    places = _places(operators, segment.runs)
    for name, tensor in (wanted | kept).items():
        fate = Fate.OFFLOADED if name in away else Fate.KEPT if name in kept else Fate.REPLAYED
        size = tensor.num_bytes
        if segment.whole and fate is Fate.KEPT:
            size = kept_input(evaluator.shape, segment)
        drawn = DrawnTensor(name, tensor.shape, str(tensor.dtype), size, fate)
        found.setdefault(places.get(name, operators[0].name), []).append(drawn)
    return found


def _places(
    operators: tuple[Operator, ...], runs: tuple[recompute_plan.ReplayRun, ...]
) -> dict[str, str]:
    """By storage: the operator that it is drawn at, the first to save it, else to make or read
    it; of what a compiler alone names, the first that is replayed."""
    found: dict[str, str] = {}
    groups: tuple[Callable[[Operator], Iterable[Tensor]], ...]
    groups = attrgetter("saved"), recompute_plan.made, attrgetter("inputs")
    for group in groups:
        for operator in operators:
            for tensor in group(operator):
                found.setdefault(tensor.storage.name, operator.name)
    for run in runs:
        members = [operator.name for operator in operators if operator.module in run.modules]
        for tensor in run.kept or ():
            found.setdefault(tensor.storage.name, members[0])
    return found


def _work(operator: Operator) -> Iterator[str]:
    gemm, kernel = operator.gemm, operator.attention
    if gemm is not None:
        groups = f" in {gemm.groups} experts" if gemm.groups > 1 else ""
        yield f"[{gemm.m}, {gemm.k}] x [{gemm.k}, {gemm.n}]{groups}"
    elif kernel is not None:
        yield f"{kernel.rows} queries, {kernel.qk_channels} channels, up to {kernel.longest} keys"
    elif operator.inputs:
        yield f"moves {human_bytes(operator.forward_bytes)}"
    for collective in operator.forward_collectives:
        yield f"{collective.kind} over {collective.group}"


class KeptTensor(Struct, frozen=True, kw_only=True):
    """A storage that stays until the backward: name, shape and type in words, and the operator and
    its module that it is drawn at."""

    name: str
    operator: str
    module: str
    num_bytes: int


class KeptLayer(Struct, frozen=True, kw_only=True):
    """A layer, or the layers that one checkpoint is around; layer: the number of the first."""

    name: str
    layer: int
    source: str
    tensors: tuple[KeptTensor, ...]

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.num_bytes for tensor in self.tensors)


def kept_layers(
    evaluation: Evaluation, evaluator: Evaluator, stage: int
) -> list[tuple[KeptLayer, ...]]:
    """Of each chunk of a stage. Embedding, output layer and loss are left out."""
    found, drawn = [], _Drawn(evaluator)
    for chunk_number, chunk in enumerate(evaluator.stages[stage]):
        # layers go through the first chunk of every stage, then through the second
        number = sum(held[k].num_layers for k in range(chunk_number) for held in evaluator.stages)
        number += sum(held[chunk_number].num_layers for held in evaluator.stages[:stage])
        layers: list[KeptLayer] = []
        for segment in evaluator.plan(evaluation.setting, chunk.layers).segments:
            for _ in range(segment.copies):
                layers += drawn.unit(segment, number)
                number += segment.num_layers
        found.append(tuple(layers))
    return found


class _Drawn:
    """Layers that are alike are drawn once."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._found: dict[recompute_plan.Segment, tuple[DrawnLayer, tuple[KeptTensor, ...]]] = {}

    def unit(self, segment: recompute_plan.Segment, number: int) -> Iterator[KeptLayer]:
        """One copy of a segment that begins with layer `number`; nothing where it keeps nothing."""
        alone = replace(segment, copies=1)
        if alone not in self._found:
            drawn = drawn_layer(self._evaluator, segment.layers[0], alone)
            self._found[alone] = drawn, tuple(_tensors(drawn))
        drawn, tensors = self._found[alone]
        if tensors:
            last = number + segment.num_layers - 1
            which = f"layers {number} to {last}" if last > number else f"layer {number}"
            name = f"{which} ({drawn.kind})"
            yield KeptLayer(name=name, layer=number, source=drawn.source, tensors=tensors)


def _tensors(drawn: DrawnLayer) -> Iterator[KeptTensor]:
    for operator in drawn.operators:
        for tensor in operator.tensors:
            if tensor.fate is Fate.KEPT and tensor.num_bytes:
                shape = ", ".join(map(str, tensor.shape))
                yield KeptTensor(
                    name=f"{tensor.name} [{shape}] {tensor.dtype}",
                    operator=operator.name,
                    module=operator.module,
                    num_bytes=tensor.num_bytes,
                )
    if drawn.arguments:
        name, place = "small arguments of the checkpoint", "checkpoint"
        yield KeptTensor(name=name, operator=place, module=place, num_bytes=drawn.arguments)
