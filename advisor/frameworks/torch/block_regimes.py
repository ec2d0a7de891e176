"""What becomes of each block of a model, block by block, and how a line says it.

``blocks:8*none,20*wq/w1~/core_attention,4*full``: of 32 blocks the first 8 have no checkpoint, 20
one that keeps the outputs of three operators, the last 4 one that keeps its input alone. A ``~``
puts what stands before it on the host; ``input~`` is the block's input.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Final

from msgspec import Struct

from advisor.base.errors import UserError
from advisor.layers.operators import Operator

Call = tuple[str, int]
"""Kind, and number of the call among those of its kind in a block, from 0."""


def decisions(operators: tuple[Operator, ...]) -> dict[str, Call]:
    """Matrix products and kernels of scaled_dot_product_attention by operator, in the order of the
    block. Experts' grouped products are other calls, and so is attention over a ring of ranks or
    with values narrower than keys (flex attention)."""
    found: dict[str, Call] = {}
    count = {"matmul": 0, "attention": 0}
    for operator in operators:
        kind = _kind(operator)
        if kind is not None:
            found[operator.name] = kind, count[kind]
            count[kind] += 1
    return found


def _kind(operator: Operator) -> str | None:
    if operator.gemm is not None:
        return None if any(weight.expert for weight in operator.weights) else "matmul"
    kernel = operator.attention
    if kernel is None or kernel.steps > 1 or kernel.qk_channels != kernel.v_channels:
        return None
    return "attention"


ON_HOST: Final = "~"
INPUT: Final = "input"
_FORM: Final = "blocks:8*none,20*wq/w1~/core_attention,4*full"


class BlockRegime(Struct, frozen=True, order=True):
    """One block: whether it is a checkpoint, and the operators whose outputs that one keeps on the
    device, or on the host, where INPUT is the block's input."""

    checkpointed: bool = False
    kept: tuple[str, ...] = ()
    on_host: tuple[str, ...] = ()

    @property
    def spec(self) -> str:
        """``none``, ``full``, or names."""
        if not self.checkpointed:
            return "none"
        return "/".join([*self.kept, *(name + ON_HOST for name in self.on_host)]) or "full"


def blocks_spec(blocks: Iterable[BlockRegime]) -> str:
    """Regimes with their numbers, equal neighbours together."""
    return ",".join(f"{sum(1 for _ in alike)}*{one.spec}" for one, alike in groupby(blocks))


def parse_blocks(text: str, blocks: str) -> tuple[BlockRegime, ...]:
    """The same back, from the part of `text` after its colon; UserError where it says nothing."""
    return tuple(one for part in blocks.split(",") for one in _parse_part(text, part))


def _parse_part(text: str, part: str) -> tuple[BlockRegime, ...]:
    number, star, words = part.partition("*")
    if not star:
        number, words = "1", part
    if not (number.isascii() and number.isdigit()) or not 1 <= int(number) <= 10_000:
        raise _wrong(text, f"{number} is not a number of blocks")
    return (_regime(text, words),) * int(number)


def _regime(text: str, words: str) -> BlockRegime:
    if words in ("none", "full"):
        return BlockRegime(checkpointed=words == "full")
    names = words.split("/")
    plain = [name.removesuffix(ON_HOST) for name in names]
    if not all(name.replace(".", "_").isidentifier() for name in plain):
        raise _wrong(text, f"{words or 'an empty part'} must be none, full or names of operators")
    if INPUT in names:
        raise _wrong(text, f"{words} must not name {INPUT}, which a checkpoint always keeps")
    if len(set(plain)) < len(plain):
        raise _wrong(text, f"{words} must name each output once")
    return BlockRegime(
        checkpointed=True,
        kept=tuple(name for name in names if not name.endswith(ON_HOST)),
        on_host=tuple(name for name, full in zip(plain, names, strict=True) if name != full),
    )


def _wrong(text: str, relation: str) -> UserError:
    return UserError("--recompute", text, relation, f"write e.g. {_FORM}")
