"""What a budget keeps of a block, against torch.compile's own partitioner."""

from dataclasses import replace

import pytest

pytest.importorskip("tyro")  # comes with torchtitan, which itself cannot be imported as it is
pytest.importorskip("transformers")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

from advisor.frameworks.torch.plan import Semantics, chunk_plan  # noqa: E402
from advisor.frameworks.torch.setting import budget  # noqa: E402
from advisor.frameworks.torch.stack import PARTITIONER_BAND  # noqa: E402
from advisor.memory.chunk import chunk_footprint  # noqa: E402
from advisor.models.layer_kind import DENSE  # noqa: E402
from advisor.models.spec import TransformerImpl  # noqa: E402

from .stacks.partitioned import kept_under_budget  # noqa: E402
from .stacks.shapes import MODELS, shape_of  # noqa: E402

TITAN, FACE = TransformerImpl.TORCH, TransformerImpl.TRANSFORMERS


def _predicted_over_kept(name: str, impl: TransformerImpl, fraction: float) -> float:
    """Without dropout, whose masks a compiler makes again from their seed."""
    shape = shape_of(replace(MODELS[name], hidden_dropout=0.0, attention_dropout=0.0), impl)
    plan = chunk_plan(budget(fraction), shape, (DENSE,), Semantics())
    predicted = chunk_footprint(shape, plan, False, False).kept
    return predicted / kept_under_budget(shape, fraction)


@pytest.mark.parametrize(("name", "fraction"), [
    ("llama3_8b", 0.1), ("llama3_8b", 0.4), ("llama3_8b", 0.75), ("llama3_8b", 1.0),
    ("qwen3_8b", 0.75),
])  # fmt: skip
def test_where_the_knapsack_is_ours(name: str, fraction: float) -> None:
    """The bar of the project for memory: 0.5 %."""
    assert _predicted_over_kept(name, TITAN, fraction) == pytest.approx(1, abs=0.005)


@pytest.mark.parametrize(("name", "impl", "fraction", "expected"), [
    ("gpt2_xl", TITAN, 0.25, 0.80),  # of many shapes and budgets the furthest below
    ("llama3_8b", FACE, 0.4, 1.36),  # and above: eager's fp32 copies are no matmul's output
])  # fmt: skip
def test_the_band_that_an_answer_states(
    name: str, impl: TransformerImpl, fraction: float, expected: float
) -> None:
    found = _predicted_over_kept(name, impl, fraction)
    assert found == pytest.approx(expected, abs=0.005)
    low, high = PARTITIONER_BAND
    assert low - 0.005 <= 1 / found <= high + 0.005
