"""What each layer of a chunk keeps of one microbatch, tensor by tensor, in order."""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.evaluation import Evaluation
from advisor.plan.recompute_plan import Segment
from advisor.search.evaluate import Evaluator
from advisor.step.layer_drawing import DrawnLayer, Fate, drawn_layer


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
        number = _first_layer(evaluator, chunk_number, stage)
        layers: list[KeptLayer] = []
        for segment in evaluator.plan(evaluation.setting, chunk).segments:
            for _ in range(segment.copies):
                layers += drawn.unit(segment, number)
                number += segment.num_layers
        found.append(tuple(layers))
    return found


def _first_layer(evaluator: Evaluator, chunk: int, stage: int) -> int:
    """Layers that the chunks before it have."""
    whole = [held[k].num_layers for k in range(chunk) for held in evaluator.stages]
    return sum(whole) + sum(held[chunk].num_layers for held in evaluator.stages[:stage])


class _Drawn:
    """Layers that are alike are drawn once."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._found: dict[Segment, tuple[DrawnLayer, tuple[KeptTensor, ...]]] = {}

    def unit(self, segment: Segment, number: int) -> Iterator[KeptLayer]:
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
        yield KeptTensor(
            name="small arguments of the checkpoint",
            operator="checkpoint",
            module="checkpoint",
            num_bytes=drawn.arguments,
        )
