"""What waits comes out by its bound, while that is within what is wanted."""

from advisor.search.best_first import BestFirst


def test_the_least_bound_comes_first_of_equals_what_came_first_until_a_limit_that_falls() -> None:
    limit = [9.0]
    waiting = BestFirst[str](lambda bound: bound <= limit[0])
    for bound, item in ((3.0, "c"), (1.0, "a"), (3.0, "d"), (9.0, "last"), (9.1, "never")):
        waiting.add(bound, item)
    assert len(waiting) == 4
    found = []
    for bound, item in waiting:
        found.append((bound, item))
        if item == "a":
            waiting.add(2.0, "b")
        if item == "d":
            limit[0] = 8.9
    assert found == [(1.0, "a"), (2.0, "b"), (3.0, "c"), (3.0, "d")]
