"""The partitioner's parts on cases that can be looked through."""

from itertools import combinations
from random import Random

import pytest
from msgspec.structs import replace

from advisor.frameworks.torch.budget import unknown_operator
from advisor.frameworks.torch.partitioner.graph import Graph, Kind
from advisor.frameworks.torch.partitioner.min_cut import Network, dp_knapsack
from advisor.frameworks.torch.partitioner.partition import partition
from advisor.models.layer_kind import DENSE
from advisor.models.options import Activation, TransformerImpl

from .test_plan import SHAPE, TOY


def test_of_equal_cuts_the_one_at_the_sink() -> None:
    """Two ways from 0 to 1: 0-2-1 of capacity 3 and 3, and 0-3-4-1, whose 2 is in the middle."""
    network = Network(5)
    for tail, head, capacity in ((0, 2, 3), (2, 1, 3), (0, 3, 5), (3, 4, 2), (4, 1, 4)):
        network.connect(tail, head, capacity)
    assert network.after_cut() == [False, True, False, False, True]


def test_the_cut_turns_flow_back() -> None:
    """The shortest way 0-2-3-1 blocks both others, unless its flow is turned back at 2-3."""
    network = Network(4)
    for tail, head in ((0, 2), (2, 3), (3, 1), (0, 3), (2, 1)):
        network.connect(tail, head, 1)
    assert network.after_cut() == [False, True, False, False]


def test_the_knapsack_takes_the_most_that_fits() -> None:
    draw = Random(1)
    for _ in range(20):
        memory = [draw.randint(1, 4000) / 10_000 for _ in range(7)]
        runtimes = [float(draw.randint(1, 1000)) for _ in range(7)]
        saved = dp_knapsack(memory, runtimes, 0.6)
        assert sum(memory[index] for index in saved) <= 0.6 + 1e-9
        best = max(
            sum(runtimes[index] for index in chosen)
            for number in range(8)
            for chosen in combinations(range(7), number)
            if sum(memory[index] for index in chosen) <= 0.6 + 1e-9
        )
        assert sum(runtimes[index] for index in saved) == best


def test_the_knapsack_rounds_as_torch_does() -> None:
    """Sizes below half a quantum are nothing; one FLOP next to 1e9 is lost in fp32."""
    assert dp_knapsack([0.5, 0.00004], [1e9, 1.0], 0.5) == {0}
    assert dp_knapsack([0.6, 0.00004], [1e9, 1.0], 0.5) == {1}
    assert dp_knapsack([0.50004], [1.0], 0.5) == {0}


def test_budgets_of_a_toy() -> None:
    """Two matmuls and what lies between: the wide product is what the fastest choice keeps, the
    knapsack gives it up, and without a budget the input alone is left."""
    graph = Graph()
    hidden = graph.add("hidden", Kind.INPUT, 100)
    wide = graph.add("wide", Kind.COSTLY, 1000, hidden, flops=10)
    bent = graph.fused("bent", 1000, wide)
    graph.read(wide)
    graph.read_by_kernel(hidden, bent)
    graph.finish(graph.add("narrow", Kind.COSTLY, 100, bent, flops=10))
    kept = {
        fraction: [node.name for node in partition(graph, fraction).kept]
        for fraction in (0.0, 0.4, 0.6, 1.0)
    }
    assert kept == {
        0.0: ["hidden"],
        0.4: ["hidden"],
        0.6: ["hidden", "wide"],
        1.0: ["hidden", "wide", "bent"],
    }
    again = [node.name for node in partition(graph, 0.6).computed_again]
    assert again == ["bent"]


def test_equal_views_are_one_node_and_equal_work_is_not() -> None:
    graph = Graph()
    hidden = graph.add("hidden", Kind.INPUT, 100)
    assert graph.view(hidden, "rows") is graph.view(hidden, "rows")
    assert [graph.fused("copy", 100, hidden).name for _ in range(3)] == ["copy", "copy_1", "copy_2"]


@pytest.mark.parametrize("impl", [TransformerImpl.TORCH, TransformerImpl.TRANSFORMERS])
def test_every_activation_that_has_a_formula_has_a_graph(impl: TransformerImpl) -> None:
    unknown = {
        activation: unknown_operator(replace(SHAPE, model=model), (DENSE,))
        for activation in Activation
        for model in (replace(TOY, transformer_impl=impl, activation=activation),)
    }
    assert {one for one, name in unknown.items() if name} == {Activation.QUICK_GEGLU}


def test_ligers_kernels_have_no_graph() -> None:
    model = replace(TOY, transformer_impl=TransformerImpl.TRANSFORMERS)
    liger = replace(SHAPE, model=model, use_liger_kernel=True)
    assert unknown_operator(liger, (DENSE,)) == "rotary_query"
