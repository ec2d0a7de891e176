"""Parameters and gradients that come and go with the units, where data-parallel ranks cut them or
one device has them alone."""

from collections.abc import Hashable, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.family import VisionEnd
from advisor.layers.shape import RankShape


class ShardingOverhead(Struct, frozen=True, kw_only=True):
    """Bytes alive next to a unit's activations in either pass, at `entry` into its forward next to
    its input alone, at `exit` from its backward next to the gradient that it hands on, its own
    weights' gradients included; and what it leaves when it has gone back: its gradient shards.
    stays: its gathered parameters that stay from its forward until it has gone back; static memory
    has those of all units. ahead: of `backward` and `exit`, what is gathered for the unit that goes
    back next; sent: of `forward`, an all-gather's output: another stream allocates both. again:
    what one layer's gathering takes where a checkpoint around several gathers them all again."""

    entry: int = 0
    forward: int = 0
    backward: int = 0
    exit: int = 0
    left: int = 0
    stays: int = 0
    ahead: int = 0
    sent: int = 0
    again: int = 0


class WorkingSet(Struct, frozen=True, kw_only=True):
    """What is gathered or reduced while each unit of a model runs; last_layer is the one whose
    backward comes first. layers: of every layer, where more than these differ. tower, vision_ends:
    of a block of a vision tower, and of what is before and after it. step: bytes when the optimizer
    runs, less what units have by `stays`. root: of what is next to each unit, a group that is there
    throughout either pass.
    weight_grads_dtype and adds_weight_grads: see RankShape."""

    embedding: ShardingOverhead = ShardingOverhead()
    first_layer: ShardingOverhead = ShardingOverhead()
    layer: ShardingOverhead = ShardingOverhead()
    last_layer: ShardingOverhead = ShardingOverhead()
    layers: tuple[ShardingOverhead, ...] = ()
    tower: ShardingOverhead = ShardingOverhead()
    vision_ends: ShardingOverhead = ShardingOverhead()
    head: ShardingOverhead = ShardingOverhead()
    loss: ShardingOverhead = ShardingOverhead()
    step: int = 0
    root: int = 0
    weight_grads_dtype: DType | None = None
    adds_weight_grads: bool = False

    def with_gradients(self, shape: RankShape) -> RankShape:
        """`shape` whose weights' gradients are those of the working set."""
        dtype, adds = self.weight_grads_dtype, self.adds_weight_grads
        if dtype is None and not adds:
            return shape
        return replace(shape, weight_grads_dtype=dtype, adds_weight_grads=adds)

    def of_each(self, units: Sequence[Hashable]) -> list[ShardingOverhead]:
        """Of units in order, ends by their names: layers all have one, but the first and the last
        have their own."""
        ends: dict[Hashable, ShardingOverhead] = {
            "embedding": self.embedding,
            "head": self.head,
            "loss": self.loss,
            **dict.fromkeys(VisionEnd, self.vision_ends),
        }
        ends |= {unit: self.tower for unit in units if getattr(unit, "sees", False)}
        found = [ends.get(unit, self.layer) for unit in units]
        layers = [number for number, unit in enumerate(units) if unit not in ends]
        left = iter(self.layers)
        for number in layers if self.layers else ():  # a checkpoint may be around several
            several = islice(left, getattr(units[number], "num_layers", 1))
            found[number] = max(several, key=lambda one: one.backward)
        if layers and not self.layers:
            found[layers[0]] = self.first_layer
            found[layers[-1]] = self.last_layer
        return found
