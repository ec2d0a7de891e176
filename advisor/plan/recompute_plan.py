"""RecomputePlan: which operators are replayed in the backward, and what is kept at their edges.

Memory and cost know only this; a framework's own words become a plan in advisor.frameworks.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import lru_cache
from itertools import groupby
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from advisor.layers.operators import LAYER_INPUT, Module, Operator, Tensor
from advisor.models.layer_kind import LayerKind, Role


class Setting(Protocol):
    """A recompute setting of some framework; hashable, and known by its short spelling."""

    @property
    def spec(self) -> str:
        """What `--recompute` takes for it."""
        ...

    @property
    def promoted(self) -> "Setting":
        """This setting as its framework runs it: what is unset or empty made what it means."""
        ...


def recomputes(setting: Setting) -> bool:
    """Whether `setting` is another one than `none`."""
    return setting.spec != "none"


def words_of(setting: Setting) -> frozenset[str]:
    """What a setting does, without its numbers: ``selective:mlp``, ``full:block``,
    ``offload=core_attn``. One with several modules does each of them."""
    return _words(setting.promoted.spec)


@lru_cache(maxsize=4096)
def _words(spec: str) -> frozenset[str]:
    found: set[str] = set()
    for part in spec.split("+"):
        sign = "=" if "=" in part else ":"
        head, _, modules = part.partition(sign)
        names = [name for name in re.split(r"[:,]", modules) if name]
        words = [name for name in names if not name.replace(".", "", 1).isdigit()]
        found |= {f"{head}{sign}{name}" for name in words} or {head}
    return frozenset(found - {"none"})


class Checkpoint(StrEnum):
    """How a checkpoint runs its replay.

    reentrant: an autograd function whose backward runs the whole forward again and a backward
    inside, and holds the output and its gradient to the end (Megatron's, torch's use_reentrant).
    non_reentrant: saved-tensor hooks, which replay at the first tensor that is needed; early_stop
    ends that replay with the last one. Source: torch 2.13 utils/checkpoint.py.
    """

    REENTRANT = "reentrant"
    NON_REENTRANT = "non_reentrant"
    EARLY_STOP = "early_stop"


class ReplayRun(Struct, frozen=True, cache_hash=True):
    """Consecutive modules of a layer that are replayed together.

    keeps: names of operators whose outputs are kept all the same, needed or not, and not computed
    again (torch's selective checkpointing). offloads: those among them whose outputs wait on the
    host, and LAYER_INPUT where the checkpoint's input does.

    discards_output: the output's storage is freed once its readers have run forward, and written
    again before the backward of module `replayed_before` (Megatron's CheckpointWithoutOutput,
    tensor_parallel/random.py).
    copies_output: the replay's own output tensor then lives too; else the two share a storage
    until the checkpoint's backward ends.
    extra_kept_bytes: small arguments that the checkpoint keeps (an attention-mask type, say).

    kept: where a compiler chooses, all that stays; keeps then names what it does not compute again.
    kept_bytes_sigma: by how much that may differ, one sigma.
    """

    modules: frozenset[Module]
    discards_output: bool = False
    copies_output: bool = True
    replayed_before: Module | None = None
    extra_kept_bytes: int = 0
    keeps: frozenset[str] = frozenset()
    offloads: frozenset[str] = frozenset()
    checkpoint: Checkpoint = Checkpoint.REENTRANT
    kept: tuple[Tensor, ...] | None = None
    kept_bytes_sigma: int = 0


class InputStorage(Struct, frozen=True):
    """Where the input of a checkpoint waits for its backward.

    offloaded: on the host. overlapped: copied there and back by a stream of its own, during
    kernels. more: so many inputs more are alive while the checkpoint runs forward: a copy of its
    own, or those of earlier checkpoints that are not gone yet.
    """

    offloaded: bool = False
    overlapped: bool = False
    more: int = 0


ON_DEVICE = InputStorage()
ON_HOST = InputStorage(offloaded=True)


class LayerReplay(Struct, frozen=True):
    """What the backward computes again of one layer: all of it, or the members of its runs.

    stops_early: only up to the last tensor that the backward needs.
    """

    whole: bool
    stops_early: bool
    runs: tuple[ReplayRun, ...]


EVERYTHING: Final = frozenset(Module)
"""Of a layer that is replayed, or waits on the host, as a whole."""


class Segment(Struct, frozen=True, cache_hash=True):
    """Consecutive layers under one regime.

    whole: one checkpoint around all of them: only the first layer's input is kept, cut by TP where
    `shards_input` (Megatron's distribute_saved_activations). Otherwise each layer has its `runs`.
    offloaded: modules whose saved tensors go to the host and come back for the backward; fetched:
    where none are, those of the layer before, which come back meanwhile.
    checkpoint says how `whole` is replayed, input where its input is kept.
    copies: so many such segments follow each other.
    """

    layers: tuple[LayerKind, ...]
    whole: bool = False
    shards_input: bool = False
    runs: tuple[ReplayRun, ...] = ()
    offloaded: frozenset[Module] = frozenset()
    fetched: frozenset[Module] = frozenset()
    copies: int = 1
    checkpoint: Checkpoint = Checkpoint.REENTRANT
    input: InputStorage = ON_DEVICE

    @property
    def num_layers(self) -> int:
        """Layers of one copy."""
        return len(self.layers)

    @property
    def sees(self) -> bool:
        """Whether its layers are blocks of a vision tower."""
        return self.layers[0].role is Role.VISION if self.layers else False

    @property
    def moves_to_host(self) -> bool:
        """Whether some of what its layers keep waits on the host."""
        return bool(self.offloaded) or any(run.offloads for run in self.runs)

    @property
    def total_layers(self) -> int:
        """Layers of all copies."""
        return self.num_layers * self.copies

    @property
    def replay(self) -> LayerReplay:
        """What is replayed of each layer. The early stop of a checkpoint around several spares the
        last of them alone: left out."""
        alone = self.whole and self.num_layers == 1
        return LayerReplay(
            self.whole, alone and self.checkpoint is Checkpoint.EARLY_STOP, self.runs
        )

    def kinds(self) -> Iterator[tuple[LayerKind, int]]:
        """The kinds of its layers in order of first appearance, with their number in all copies."""
        if len(self.layers) == 1:  # most segments: no need to count
            yield self.layers[0], self.copies
            return
        counted = Counter(self.layers).items()
        yield from ((kind, count * self.copies) for kind, count in counted)


def merged(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """`segments`, each a single copy, with equal neighbours counted as copies."""
    return tuple(
        replace(segment, copies=sum(1 for _ in alike)) for segment, alike in groupby(segments)
    )


class RecomputePlan(Struct, frozen=True, cache_hash=True):
    """The segments of one model chunk, in layer order."""

    segments: tuple[Segment, ...]

    @property
    def num_layers(self) -> int:
        """Layers of the chunk."""
        return sum(segment.total_layers for segment in self.segments)

    @property
    def layers_to_a_copy(self) -> float:
        """Layers next to which one is copied to the host. Where whole layers are, Transformer
        Engine gives each its share of all (cpu_offload_v1.py layer_window_map, as much in 2.20.2
        cpu_offload.py DefaultOffloadSynchronizer)."""
        whole = (one.total_layers for one in self.segments if one.offloaded == EVERYTHING)
        return self.num_layers / (sum(whole) or self.num_layers or 1)

    @property
    def kept_bytes_sigma(self) -> int:
        """By how much what the chunk keeps may differ, one sigma: all layers alike."""
        return sum(
            run.kept_bytes_sigma * segment.total_layers
            for segment in self.segments
            for run in segment.runs
        )


@lru_cache(maxsize=512)
def tallied(plan: RecomputePlan) -> tuple[Segment, ...]:
    """The segments of `plan` with equal ones counted as copies wherever they stand: all that a sum
    over a chunk needs, and few where kinds of layers alternate."""
    tally: Counter[Segment] = Counter()
    for segment in plan.segments:
        single = segment if segment.copies == 1 else replace(segment, copies=1)
        tally[single] += segment.copies
    return tuple(replace(segment, copies=copies) for segment, copies in tally.items())


@lru_cache(maxsize=8192)
def kept_tensors(operators: tuple[Operator, ...], runs: tuple[ReplayRun, ...]) -> dict[str, Tensor]:
    """Storages of one layer that stay alive from forward to backward under `runs`, by name.

    Outside runs: what each operator saves. For a run: the inputs that it reads from outside it.
    Outputs of output-discarding runs are dropped wherever else they are kept, and no quantized copy
    of them is kept (Megatron has the layer save its original input: set_save_original_input). A
    view keeps its whole storage. The result is shared: do not change it."""
    kept: dict[str, Tensor] = {}
    discarded: set[str] = set()
    for operator, run in zip(operators, assign_runs(operators, runs), strict=True):
        if run is None:
            _keep(kept, operator.saved)
    for run in runs:
        if run.kept is not None:
            _keep(kept, run.kept)
            continue
        members = run_members(operators, run)
        produced = {tensor.name for operator in members for tensor in operator.outputs}
        for operator in members:
            _keep(kept, (t for t in operator.inputs if t.name not in produced))
            if operator.name in run.keeps:
                _keep(kept, made(operator))
        if run.discards_output:
            discarded |= {t.storage.name for t in members[-1].outputs} if members else set()
    return {
        name: tensor
        for name, tensor in kept.items()
        if name not in discarded and tensor.copy_of not in discarded
    }


_SMALLEST_OFFLOADED_ELEMENTS = 1024 * 1024
"""Tensors below stay on the device (Megatron's default min_offloaded_tensor_size)."""


@lru_cache(maxsize=8192)
def offloaded_bytes(
    operators: tuple[Operator, ...], runs: tuple[ReplayRun, ...], modules: frozenset[Module]
) -> int:
    """Bytes of one layer that leave the device."""
    kept = kept_tensors(operators, runs)
    return sum(kept[name].num_bytes for name in offloaded_names(operators, runs, modules))


@lru_cache(maxsize=8192)
def copied_bytes(
    operators: tuple[Operator, ...], runs: tuple[ReplayRun, ...], modules: frozenset[Module]
) -> int:
    """Bytes of one layer that are copied to the host, wait there and come back: of each of
    `modules`, what its operators save: what two of them save twice, and also what stays on the
    device, as others save it, or that a replay writes again; of a storage the view alone."""
    if not modules or modules == EVERYTHING:
        return offloaded_bytes(operators, runs, modules)
    saved: list[Tensor] = []
    for operator, run in zip(operators, assign_runs(operators, runs), strict=True):
        if run is None and operator.module in modules:
            saved += {tensor.name: tensor for tensor in operator.saved}.values()
    copies = sum(one.num_bytes for one in saved if one.num_elements >= _SMALLEST_OFFLOADED_ELEMENTS)
    return copies + offloaded_bytes(operators, runs, frozenset())


@lru_cache(maxsize=8192)
def offloaded_names(
    operators: tuple[Operator, ...], runs: tuple[ReplayRun, ...], modules: frozenset[Module]
) -> frozenset[str]:
    """Storages of one layer that leave the device: kept ones that operators of `modules`, and no
    others, save, and what a run says by itself. What else a checkpoint keeps as its input stays."""
    by_runs = frozenset(name for run in runs for name in _offloaded_by(operators, run))
    if not modules:
        return by_runs
    saved: dict[str, Tensor] = {}
    elsewhere: dict[str, Tensor] = {}
    for operator, run in zip(operators, assign_runs(operators, runs), strict=True):
        if run is not None:
            _keep(elsewhere, operator.inputs)
        else:
            _keep(saved if operator.module in modules else elsewhere, operator.saved)
    kept = kept_tensors(operators, runs)
    return by_runs | {
        name
        for name, tensor in saved.items()
        if name in kept
        and name not in elsewhere
        and tensor.num_elements >= _SMALLEST_OFFLOADED_ELEMENTS
    }


def _offloaded_by(operators: tuple[Operator, ...], run: ReplayRun) -> Iterator[str]:
    """Names of the storages that `run` puts on the host."""
    if LAYER_INPUT in run.offloads:
        yield LAYER_INPUT
    for operator in run_members(operators, run) if run.offloads else ():
        if operator.name in run.offloads:
            yield from (tensor.storage.name for tensor in made(operator))


def made(operator: Operator) -> list[Tensor]:
    """What `operator` writes: its outputs, and what it saves next to its inputs."""
    read = {tensor.storage.name for tensor in operator.inputs}
    saved = [tensor for tensor in operator.saved if tensor.storage.name not in read]
    return [*operator.outputs, *saved]


def _keep(kept: dict[str, Tensor], tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        kept[tensor.storage.name] = tensor.storage


def assign_runs(
    operators: tuple[Operator, ...], runs: tuple[ReplayRun, ...]
) -> tuple[ReplayRun | None, ...]:
    """The run that replays each operator; None where it is not replayed."""
    return tuple(
        next((run for run in runs if operator.module in run.modules), None)
        for operator in operators
    )


def run_members(operators: tuple[Operator, ...], run: ReplayRun) -> tuple[Operator, ...]:
    """Operators that `run` replays, in order."""
    return tuple(operator for operator in operators if operator.module in run.modules)


@lru_cache(maxsize=8192)
def replayed_operators(
    operators: tuple[Operator, ...], replay: LayerReplay
) -> tuple[Operator, ...]:
    """Operators of one layer that the backward computes again."""
    if replay.whole:
        return computed_until_stop(operators) if replay.stops_early else operators
    return tuple(
        operator
        for run in replay.runs
        for operator in computed_again(run_members(operators, run), run)
        if operator.name not in run.keeps
    )


def computed_again(members: tuple[Operator, ...], run: ReplayRun) -> tuple[Operator, ...]:
    """The operators that the replay of `run` comes to; those that it keeps are looked up, except
    a compiler's choice, whose replay is what is left alone."""
    if run.kept is not None:
        members = tuple(operator for operator in members if operator.name not in run.keeps)
    return computed_until_stop(members) if run.checkpoint is Checkpoint.EARLY_STOP else members


def computed_until_stop(members: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Operators up to the last tensor that the backward needs. An operator's inputs are noted
    before it runs, what it makes itself after that."""
    last = max((i for i, operator in enumerate(members) if operator.saved), default=-1)
    if last < 0:
        return ()
    read = {tensor.storage.name for tensor in members[last].inputs}
    runs = any(tensor.storage.name not in read for tensor in members[last].saved)
    return members[: last + runs]
