"""What each head keeps and needs at most, for one model and length."""

from msgspec.structs import replace

from advisor.base.units import gib
from advisor.frameworks.loss_heads import known_heads
from advisor.job.loss_head import HeadImplementation, LossHead
from advisor.layers.operators import Module
from advisor.layers.shape import RankShape
from advisor.layers.transformer import head_operators
from advisor.memory.events import fold
from advisor.memory.liveness import events_without_grad, footprint
from advisor.models.options import TransformerImpl
from advisor.models.presets import load_model

_MODEL, _LENGTH = "qwen3_4b", 16384
_LAYERS = (TransformerImpl.TRANSFORMERS, TransformerImpl.TRANSFORMER_ENGINE)


def table() -> str:
    """A row a head, after the layers that it is first known after; GiB on one GPU."""
    lines = [
        "| `head.implementation` | kept | forward | backward | forward without gradients |",
        "|---|---|---|---|---|",
    ]
    model, seen = load_model(_MODEL), set[HeadImplementation]()
    for impl in _LAYERS:
        made = replace(model, transformer_impl=impl, make_vocab_size_divisible_by=1)
        for name in known_heads(made):
            if name not in seen:
                seen.add(name)
                lines.append(
                    _row(
                        RankShape(
                            model=made,
                            seq_length=_LENGTH,
                            micro_batch_size=1,
                            head=LossHead(implementation=name),
                        )
                    )
                )
    return "\n".join(lines)


def _row(shape: RankShape) -> str:
    operators = head_operators(shape)
    operators = tuple(one for one in operators if one.module is not Module.FINAL_LAYERNORM)
    found, alone = footprint(operators, ()), fold(events_without_grad(operators)).peak
    bytes_ = (found.kept, found.forward.num_bytes, found.backward.num_bytes, alone.num_bytes)
    return f"| `{shape.head.implementation}` | {' | '.join(map(gib, bytes_))} |"
