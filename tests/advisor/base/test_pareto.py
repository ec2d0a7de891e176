"""What no other beats in both of two costs."""

from itertools import product

from advisor.base.pareto import dominators, pareto_front


def test_the_corner_dominates_a_grid_and_without_it_its_two_neighbours() -> None:
    grid = list(product((1, 2, 3), repeat=2))
    assert dominators(grid) == [None, *[0] * 8]
    assert dominators(grid[1:]) == [None, 0, None, 2, 2, 2, 2, 2]


def test_of_equals_the_first_dominates_or_the_lowest_in_a_further_cost() -> None:
    assert dominators([(1, 2), (1, 2), (1, 3)]) == [None, 0, 0]
    assert dominators([(1, 2, True), (1, 2, False)]) == [1, None]


def test_the_front_goes_from_low_in_the_first_to_low_in_the_second_with_equals() -> None:
    points = [(3, 1), (1, 5), (2, 5), (2, 4), (4, 1), (3, 2)]
    assert pareto_front(points, lambda point: point) == [(1, 5), (2, 4), (3, 1)]
    twins = [("a", 1, 2), ("b", 1, 2), ("c", 1, 3)]
    assert pareto_front(twins, lambda twin: twin[1:]) == twins[:2]
    assert pareto_front([], lambda point: point) == []
