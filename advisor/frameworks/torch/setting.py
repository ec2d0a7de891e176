"""Activation checkpointing as PyTorch and what is built on it spell it, in one short form."""

from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import UserError, nearest_names
from advisor.frameworks.torch.block_regimes import BlockRegime, blocks_spec, parse_blocks
from advisor.plan.recompute_plan import Setting


class Granularity(StrEnum):
    """What is checkpointed.

    full: every block. selective: every n-th block. sequential: torch's checkpoint_sequential over
    so many segments. uniform: every n blocks share a checkpoint. op: every block, except the
    outputs of operators that a policy keeps. budget: what torch.compile's partitioner chooses.
    blocks: each block by itself (block_regimes).
    """

    NONE = "none"
    FULL = "full"
    SELECTIVE = "selective"
    SEQUENTIAL = "sequential"
    UNIFORM = "uniform"
    OP = "op"
    BUDGET = "budget"
    BLOCKS = "blocks"


class OpPolicy(StrEnum):
    """Which operators' outputs a selective checkpoint keeps.

    save_attention: the attention kernel's. save_matmul: those of all linear layers. torchtitan:
    attention's and every second linear layer's, the first one included.
    """

    SAVE_ATTENTION = "save_attention"
    SAVE_MATMUL = "save_matmul"
    TORCHTITAN = "torchtitan"


class Modifier(StrEnum):
    """A word after + in a setting: what else a checkpoint does, mostly with its input.

    offload: to pinned host memory (transformers, Accelerate, torch's offload_wrapper); with none,
    everything that layers keep (TRL's and axolotl's activation_offloading). The others
    are keys of DeepSpeed's activation_checkpointing: cut over the model-parallel group, to the
    host, in buffers made at once, with a synchronized or a timed boundary.
    """

    OFFLOAD = "offload"
    PARTITION_ACTIVATIONS = "partition_activations"
    CPU_CHECKPOINTING = "cpu_checkpointing"
    CONTIGUOUS_MEMORY_OPTIMIZATION = "contiguous_memory_optimization"
    SYNCHRONIZE_CHECKPOINT_BOUNDARY = "synchronize_checkpoint_boundary"
    PROFILE = "profile"


class TorchSetting(Struct, frozen=True, kw_only=True):
    """One setting. `num_layers` is the number of selective and uniform, `segments` that of
    sequential; use_reentrant None means the framework's own default; options in their order, and
    `blocks` all blocks of the model."""

    granularity: Granularity = Granularity.NONE
    num_layers: int | None = None
    segments: int | None = None
    policy: OpPolicy | None = None
    budget: float | None = None
    use_reentrant: bool | None = None
    options: tuple[Modifier, ...] = ()
    blocks: tuple[BlockRegime, ...] = ()

    @property
    def promoted(self) -> "TorchSetting":
        """Itself: nothing is unset."""
        return self

    @property
    def spec(self) -> str:
        """The short spelling, e.g. ``selective:2``, ``op:torchtitan`` or ``budget:0.5``."""
        shown = [
            f"{value:g}" if isinstance(value, float) else str(value)
            for value in (self.num_layers, self.segments, self.policy, self.budget)
            if value is not None
        ]
        if self.blocks:
            shown.append(blocks_spec(self.blocks))
        text = ":".join([str(self.granularity), *shown])
        if self.use_reentrant is not None:
            text += "+use_reentrant" if self.use_reentrant else "+no_reentrant"
        return "+".join([text, *self.options])

    @property
    def offloads(self) -> bool:
        """Whether the inputs of its checkpoints go to the host."""
        return Modifier.OFFLOAD in self.options or Modifier.CPU_CHECKPOINTING in self.options


NONE: Final = TorchSetting()
FULL: Final = TorchSetting(granularity=Granularity.FULL)
_KINDS: Final = {"use_reentrant": True, "no_reentrant": False}
_SUFFIXES: Final = (*_KINDS, *Modifier)
_FORMS: Final = "none, full, selective:2, sequential:8, uniform:2, op:save_attention or budget:0.5"


def as_torch(setting: Setting) -> TorchSetting:
    """The setting as one of the PyTorch stacks."""
    assert isinstance(setting, TorchSetting), f"{setting!r} is not a setting of a PyTorch stack"
    return setting


def every(number: int) -> TorchSetting:
    """Every `number`-th block."""
    return TorchSetting(granularity=Granularity.SELECTIVE, num_layers=number)


def sequential(segments: int) -> TorchSetting:
    """checkpoint_sequential over `segments`."""
    return TorchSetting(granularity=Granularity.SEQUENTIAL, segments=segments)


def uniform(number: int) -> TorchSetting:
    """A checkpoint around every `number` blocks."""
    return TorchSetting(granularity=Granularity.UNIFORM, num_layers=number)


def op(policy: OpPolicy) -> TorchSetting:
    """A policy over operators."""
    return TorchSetting(granularity=Granularity.OP, policy=policy)


def budget(fraction: float) -> TorchSetting:
    """A memory budget of torch.compile."""
    return TorchSetting(granularity=Granularity.BUDGET, budget=fraction)


def by_block(blocks: tuple[BlockRegime, ...]) -> TorchSetting:
    """Each block as it is said, from the first."""
    return TorchSetting(granularity=Granularity.BLOCKS, blocks=blocks)


def parse_setting(text: str) -> TorchSetting:
    """Read SPEC; UserError on anything else than the forms of the command line.

    >>> parse_setting("selective:2+use_reentrant").use_reentrant
    True
    """
    head, *suffixes = text.strip().split("+")
    setting = _parse_head(text, head)
    for suffix in suffixes:
        if suffix not in _SUFFIXES:
            raise _wrong(text, f"+{suffix} is not known", nearest_names(suffix, _SUFFIXES))
        none = setting.granularity is Granularity.NONE and suffix != Modifier.OFFLOAD
        if none or setting.granularity in (Granularity.OP, Granularity.BUDGET, Granularity.BLOCKS):
            raise _wrong(text, f"+{suffix} has nothing to act on", "leave it out")
        if suffix in _KINDS:
            setting = replace(setting, use_reentrant=_KINDS[suffix])
        else:
            setting = with_options(setting, *setting.options, Modifier(suffix))
    return setting


def with_options(setting: TorchSetting, *options: Modifier) -> TorchSetting:
    """`setting` with `options`, each once and in the order of Modifier."""
    return replace(setting, options=tuple(o for o in Modifier if o in options))


ALL_TO_HOST: Final = with_options(NONE, Modifier.OFFLOAD)
"""Nothing is computed again: what layers keep waits on the host."""


def _parse_head(text: str, head: str) -> TorchSetting:
    match head.split(":"):
        case ["none"]:
            return NONE
        case ["full"]:
            return FULL
        case ["selective", number]:
            return every(_number(text, number))
        case ["sequential", number]:
            return sequential(_number(text, number))
        case ["uniform", number]:
            return uniform(_number(text, number))
        case ["op", name]:
            if name not in list(OpPolicy):
                raise _wrong(
                    text, f"there is no operator policy {name}", nearest_names(name, list(OpPolicy))
                )
            return op(OpPolicy(name))
        case ["blocks", regimes]:
            return by_block(parse_blocks(text, regimes))
        case ["budget", fraction]:
            return budget(_fraction(text, fraction))
    raise _wrong(text, "is not a setting of this framework", f"write {_FORMS}")


def _number(text: str, number: str) -> int:
    if not (number.isascii() and number.isdigit()) or not 1 <= int(number) <= 10_000:
        raise _wrong(text, f"{number} must be a positive number", "write e.g. selective:2")
    return int(number)


def _fraction(text: str, fraction: str) -> float:
    """torch: "The valid ranges for memory budget are 0 <= m <= 1"."""
    try:
        value = float(fraction)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise _wrong(text, f"{fraction} must be between 0 and 1", "write e.g. budget:0.5")
    return value


def _wrong(text: str, relation: str, nearest: str) -> UserError:
    return UserError("--recompute", text, relation, nearest)
