"""The fastest split of layers over stages, on choices of round numbers."""

from itertools import product
from math import inf

import pytest

from advisor.frameworks.megatron.setting import NONE
from advisor.search.optimum.best_split import SplitProblem
from advisor.search.optimum.stage_table import Choice, worth_it
from advisor.time.job_time import StagePart

MICROBATCHES = 8


def choice(layers: int, microbatch: float, optimizer: float = 0.0) -> Choice:
    part = StagePart(microbatch, MICROBATCHES * microbatch, 0.0, optimizer)
    return Choice(layers, layers, part, NONE)


def combined(slowest: StagePart, microbatch: float, optimizer: float) -> float:
    """The others fill the pipeline once."""
    return slowest.work + microbatch - slowest.microbatch + optimizer


def problem(*stages: tuple[Choice, ...], layers: int) -> SplitProblem:
    return SplitProblem(stages, layers, combined)


EVEN = tuple(choice(layers, 10.0 * layers) for layers in (1, 2, 3))
"""A layer takes 10 seconds of a microbatch."""
HEAD = tuple(choice(layers, 10.0 * layers + 15.0) for layers in (1, 2, 3))
"""With a head of 15 seconds."""


def anything(stage: int, chosen: Choice) -> bool:
    return True


def layers_of(found: SplitProblem, fits: object = anything, below: float = inf) -> list[int]:
    split = found.best(fits, below)  # type: ignore[arg-type]
    return [one.layers for one in split.choices] if split else []


def test_the_stage_with_the_head_gets_fewer_layers() -> None:
    """3 + 1 layers: 8 x 30 and 25 to fill; 2 + 2: 8 x 35 and 20."""
    found = problem(EVEN, HEAD, layers=4)
    split = found.best(anything)
    assert split is not None
    assert layers_of(found) == [3, 1]
    assert split.seconds == 8 * 30 + 25
    assert found.bound == pytest.approx(split.seconds)
    assert found.bound <= split.seconds
    assert layers_of(problem(EVEN, HEAD, layers=2)) == [1, 1]
    assert layers_of(problem(EVEN, HEAD, layers=6)) == [3, 3]


def test_what_does_not_fit_is_not_chosen_and_nothing_slower_than_a_known_split() -> None:
    found = problem(EVEN, HEAD, layers=4)
    assert layers_of(found, lambda stage, one: (stage, one.layers) != (0, 3)) == [2, 2]
    assert layers_of(found, lambda stage, one: one.layers == 3) == []
    assert layers_of(found, below=265.0) == []
    assert layers_of(found, below=265.1) == [3, 1]


@pytest.mark.parametrize("layers", [1, 7])
def test_too_few_and_too_many_layers_have_no_split(layers: int) -> None:
    found = problem(EVEN, HEAD, layers=layers)
    assert found.bound == inf
    assert found.best(anything) is None


def test_a_long_optimizer_step_outweighs_a_shorter_pass() -> None:
    """Of the same layers, one way keeps states that take 100 seconds more to update."""
    costly, plain = choice(2, 20.0, 100.0), choice(2, 21.0, 1.0)
    found = problem((costly, plain), (choice(2, 20.0, 1.0),), layers=4)
    split = found.best(anything)
    assert split is not None
    assert split.choices[0] == plain
    assert split.seconds == 8 * 21 + 20 + 1
    assert found.bound <= split.seconds


@pytest.mark.parametrize("layers", range(3, 10))
def test_the_bound_and_the_split_against_every_split(layers: int) -> None:
    stages = (EVEN, tuple(choice(n, 11.0 * n - 2, 3.0 * n) for n in (1, 2, 3)), HEAD)
    found = problem(*stages, layers=layers)
    every = []
    for chosen in product(*stages):
        if sum(one.layers for one in chosen) == layers:
            parts = [one.part for one in chosen]
            slowest = max(parts, key=lambda part: part.microbatch)
            total = sum(part.microbatch for part in parts)
            every.append(combined(slowest, total, max(part.optimizer for part in parts)))
    split = found.best(anything)
    assert split is not None
    assert split.seconds == pytest.approx(min(every))
    assert found.bound <= split.seconds * (1 + 1e-12)


def test_choices_of_too_few_layers_are_not_worth_a_look() -> None:
    kept = worth_it((EVEN, HEAD), 5)
    assert [[one.layers for one in held] for held in kept] == [[2, 3], [2, 3]]
    assert worth_it((EVEN, HEAD), 7) == ((), ())
