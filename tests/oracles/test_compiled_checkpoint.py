"""What torch.compile makes of a block in a checkpoint, which prime-rl's steps depend on."""

from collections.abc import Callable

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper


class Block(torch.nn.Module):
    """A product, an attention that may break the graph, and a product."""

    def __init__(self, attention: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.attention = attention
        self.ends = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)])

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        first, last = self.ends
        return hidden + last(self.attention(first(hidden).cos()).relu())


def _breaks(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return x.sin()


@pytest.mark.parametrize(
    ("attention", "in_checkpoint", "compiles"),
    [
        (torch.sin, False, True),
        (torch.sin, True, True),
        (_breaks, False, True),
        (_breaks, True, False),
    ],
)
def test_whether_a_block_is_compiled(
    attention: Callable[[torch.Tensor], torch.Tensor], in_checkpoint: bool, compiles: bool
) -> None:
    found = []

    def count(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        found.append(graph)
        return graph.forward

    torch._dynamo.reset()
    block: torch.nn.Module = Block(attention)
    if in_checkpoint:
        block = checkpoint_wrapper(block, preserve_rng_state=False)
    block.compile(backend=count)
    block(torch.randn(4, 8, requires_grad=True)).sum().backward()
    assert bool(found) is compiles
