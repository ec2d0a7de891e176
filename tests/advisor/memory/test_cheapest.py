"""The cheapest choice for every layer, held against all of them."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.memory.cheapest import Way, cheapest, peak_of
from advisor.memory.room import Place, Room

NUMBERS = st.integers(0, 12)


@st.composite
def options(draw: st.DrawFn) -> Way:
    kept = draw(NUMBERS)
    forward, backward = (kept + draw(st.integers(0, 4)) for _ in range(2))
    return Way(draw(NUMBERS), kept, forward, backward, draw(st.integers(0, 4)))


@st.composite
def choices(draw: st.DrawFn) -> tuple[list[list[Way]], list[int], Room, int]:
    """Up to 12 decisions: layers of two kinds, each of up to so many options."""
    layers = draw(st.integers(1, 6))
    most = {1: 12, 2: 6, 3: 6, 4: 5, 5: 4, 6: 3}[layers]
    kinds = [draw(st.integers(0, 1)) for _ in range(layers)]
    lists = [draw(st.lists(options(), min_size=1, max_size=most)) for _ in range(2)]
    places = tuple(Place(*(draw(st.integers(0, 3)) for _ in range(3))) for _ in kinds)
    room = Room(places, below=draw(NUMBERS), end=draw(NUMBERS), floor=draw(NUMBERS))
    return lists, kinds, room, draw(st.integers(0, 60))


@settings(max_examples=400, deadline=None)
@given(choices())
def test_it_is_the_best_of_all(found: tuple[list[list[Way]], list[int], Room, int]) -> None:
    lists, kinds, room, capacity = found
    fitting = [
        sum(lists[kind][number].cost for kind, number in zip(kinds, numbers, strict=True))
        for numbers in product(*(range(len(lists[kind])) for kind in kinds))
        if peak_of(lists, kinds, room, numbers) <= capacity
    ]
    chosen = cheapest(lists, kinds, room, capacity)
    if not fitting:
        assert chosen is None
        return
    assert chosen.cost == chosen.bound == min(fitting)
    assert peak_of(lists, kinds, room, chosen.numbers) <= capacity
