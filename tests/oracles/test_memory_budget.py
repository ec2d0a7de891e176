"""What a budget keeps of a block, against torch.compile's own partitioner."""

from dataclasses import replace

import pytest

pytest.importorskip("tyro")  # comes with torchtitan, which itself cannot be imported as it is
pytest.importorskip("transformers")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

from advisor.frameworks.torch.partitioner.block import AttentionKernel  # noqa: E402
from advisor.frameworks.torch.plan import Semantics, chunk_plan  # noqa: E402
from advisor.frameworks.torch.setting import budget  # noqa: E402
from advisor.layers.shape import RankShape  # noqa: E402
from advisor.memory.chunk import chunk_footprint  # noqa: E402
from advisor.models.spec import TransformerImpl  # noqa: E402

from .recorded import measured  # noqa: E402
from .stacks.shapes import MODELS, VARIANTS, shape_of  # noqa: E402

TITAN, FACE = TransformerImpl.TORCH, TransformerImpl.TRANSFORMERS
FLASH, CUDNN = AttentionKernel
BUDGETS = 0.0, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0
LLAMA, QWEN, GPT = (MODELS[name] for name in ("llama3_8b", "qwen3_8b", "gpt2_xl"))
GEMMA2, GEMMA3, OLMO2 = VARIANTS.values()


def _predicted(shape: RankShape, kernel: AttentionKernel) -> tuple[int, ...]:
    how, layers = Semantics(attention=kernel), shape.model.layer_kinds[:1]
    plans = (chunk_plan(budget(fraction), shape, layers, how) for fraction in BUDGETS)
    return tuple(chunk_footprint(shape, plan, False, False).kept for plan in plans)


def _kept(shape: RankShape, kernel: AttentionKernel | None) -> tuple[int, ...]:
    def live() -> tuple[int, ...]:
        from .stacks.partitioned import kept_under_budgets  # seconds of imports

        return kept_under_budgets(shape, BUDGETS, kernel)

    return measured("kept_under_budgets", shape, BUDGETS, kernel or "cpu", by=live)


@pytest.mark.parametrize(("shape", "kernel"), [
    (shape_of(LLAMA, TITAN, seq=8192, mbs=1), FLASH),
    (shape_of(replace(LLAMA, num_query_groups=4), TITAN, seq=2048, mbs=4), CUDNN),
    (shape_of(replace(LLAMA, ffn_hidden_size=24576), TITAN, seq=1024, mbs=3), FLASH),
    (shape_of(QWEN, TITAN), FLASH),
    (shape_of(GPT, TITAN), FLASH),  # with dropout
    (shape_of(LLAMA, FACE), FLASH),
    (shape_of(replace(LLAMA, num_query_groups=32), FACE, seq=8192, mbs=4), CUDNN),
    (shape_of(replace(GPT, hidden_dropout=0.0), FACE, seq=1024, mbs=4), FLASH),
    (shape_of(GEMMA2, FACE), FLASH),
    (shape_of(GEMMA3, FACE), FLASH),
    (shape_of(OLMO2, FACE), FLASH),
])  # fmt: skip
def test_what_stays_is_what_torch_keeps(shape: RankShape, kernel: AttentionKernel) -> None:
    assert _predicted(shape, kernel) == _kept(shape, kernel)


def test_torch_on_a_cpu_keeps_the_same() -> None:
    """Its attention is no more on torch's list of costly operators than cuDNN's, and hands out no
    state of random numbers: 16 bytes."""
    shape = shape_of(LLAMA, TITAN)
    found = zip(_predicted(shape, CUDNN), _kept(shape, None), strict=True)
    assert {predicted - kept for predicted, kept in found} <= {0, 16}
