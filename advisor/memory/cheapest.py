"""The cheapest choice of one option for every layer of a model within a number of bytes.

Dynamic programming over the layers: of what was chosen so far only the bytes kept and the cost
matter to the rest, so what keeps and costs as much or more goes. So does what costs as much as a
known choice even if the layers to come take the best of the convex hull of their options (the
relaxed multiple-choice knapsack: Sinha and Zoltners 1979, Operations Research 27(3)). Costs and
bytes are integers: what comes out is exact.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Final

from msgspec import Struct

from advisor.memory.room import Room

_BEAM: Final = 64
"""States a layer of the first round, which only finds a choice to hold others against."""
_MOST_PAIRS: Final = 1_000_000
"""States times options of all layers, some seconds: where there are more the most promising states
go on, and the bound says what the others may cost."""


class Way(Struct, frozen=True, order=True):
    """What one layer may do: its cost (an integer: femtoseconds, say), the bytes that it keeps to
    its backward, the most that it has in either pass, those included, and those that are on their
    way to the host, or back, while the layer after it runs."""

    cost: int
    kept: int
    forward: int
    backward: int
    away: int = 0


class Chosen(Struct, frozen=True):
    """The number of the option of every layer, and their cost; no choice costs less than `bound`.
    states: how many were looked at."""

    numbers: tuple[int, ...]
    cost: int
    bound: int
    states: int


def cheapest(
    options: Sequence[Sequence[Way]], kinds: Sequence[int], room: Room, capacity: int
) -> Chosen | None:
    """The cheapest choice whose peak is at most `capacity` bytes; None where there is none.

    kinds: from which of the lists of `options` the layer at each of the room's places takes."""
    if room.floor > capacity:
        return None
    search = _Search(options, kinds, room, capacity)
    near, _ = search.run([_hull([*enumerate(of_kind)]) for of_kind in options], None, _BEAM)
    limit = near.cost if near is not None else None
    left = search.promising(limit)
    most = max(1, _MOST_PAIRS // (len(kinds) * max(1, *map(len, left))))
    better, cut = search.run(left, limit, most)
    best = better or near
    if best is None:
        return None
    bound = best.cost if cut is None else min(best.cost, cut)
    numbers = search.numbers(best)
    tidy = _in_groups(options, kinds, numbers)
    if peak_of(options, kinds, room, tidy) <= capacity:
        numbers = tidy
    return Chosen(numbers, best.cost, bound, search.states)


def _in_groups(
    options: Sequence[Sequence[Way]], kinds: Sequence[int], numbers: Sequence[int]
) -> tuple[int, ...]:
    """The same options with equal ones of a kind together: first those that need most beyond what
    they keep, as they then lie on the least."""
    ordered = {}
    for kind in set(kinds):
        own = options[kind]
        taken = [number for number, one in zip(numbers, kinds, strict=True) if one == kind]
        taken.sort(key=lambda number: (own[number].kept - own[number].backward, number))
        ordered[kind] = iter(taken)
    return tuple(next(ordered[kind]) for kind in kinds)


def peak_of(
    options: Sequence[Sequence[Way]], kinds: Sequence[int], room: Room, numbers: Sequence[int]
) -> int:
    """The most bytes at once where layer k takes its option numbers[k]."""
    kept, away, peak = room.below, 0, room.floor
    for place, kind, number in zip(room.places, kinds, numbers, strict=True):
        option = options[kind][number]
        peak = max(peak, kept + away + place.need(option.forward, option.backward))
        kept, away = kept + option.kept, option.away
    return max(peak, kept + room.end)


class _Curve:
    """The least cost of some layers by the bytes that they keep, any mixture of options allowed:
    convex, falling, and never above what whole options cost."""

    def __init__(self, hulls: Sequence[Sequence[Way]], number: Counter[int]) -> None:
        steps = [
            (above.kept - below.kept, above.cost - below.cost, number[kind])
            for kind, hull in enumerate(hulls)
            for below, above in pairwise(hull)
        ]
        kept = sum(hulls[kind][0].kept * n for kind, n in number.items())
        cost = sum(hulls[kind][0].cost * n for kind, n in number.items())
        self._kept, self._cost = [kept], [cost]
        for more, less, n in sorted(steps, key=lambda step: step[1] / step[0]):
            kept, cost = kept + n * more, cost + n * less
            self._kept.append(kept)
            self._cost.append(cost)

    def least(self, room: int) -> int | None:
        """The least cost within `room` bytes; None where nothing fits."""
        right = bisect_right(self._kept, room)  # exact: true costs are integers, so it rounds up
        if right == 0:
            return None
        if right == len(self._kept):
            return self._cost[-1]
        (k0, k1), (c0, c1) = self._kept[right - 1 : right + 1], self._cost[right - 1 : right + 1]
        return c0 - (c0 - c1) * (room - k0) // (k1 - k0)

    def price(self, room: int) -> tuple[int, int]:
        """What one more byte of `room` saves there, as cost over bytes; none where all fits."""
        right = bisect_right(self._kept, room)
        if right == len(self._kept) or right == 0:
            return 0, 1
        (k0, k1), (c0, c1) = self._kept[right - 1 : right + 1], self._cost[right - 1 : right + 1]
        return c0 - c1, k1 - k0


class _State(Struct, frozen=True):
    """Layers so far: the bytes that they keep, their cost, what the last one has on its way, its
    option, and the state before it."""

    kept: int
    cost: int
    away: int = 0
    number: int = -1
    before: "_State | None" = None


_Numbered = tuple[int, Way]
Numbered = Sequence[_Numbered]
"""Options of one kind of layer with their numbers."""
_Priced = tuple[int, int, Way, int]
"""With the bytes paid for; the most that may be kept before it; the option; its number."""


class _Search:
    """The layers, and what the rest of them costs at the least after any of them: all are to fit
    with the head, and all but the last with the least that the last one needs."""

    def __init__(
        self, options: Sequence[Sequence[Way]], kinds: Sequence[int], room: Room, capacity: int
    ) -> None:
        self._options, self._kinds, self._room, self._capacity = options, kinds, room, capacity
        self._hulls = [[option for _, option in _hull([*enumerate(o)])] for o in options]
        last, place = options[kinds[-1]], room.places[-1]
        self._last_cost = min(option.cost for option in last)
        self._at_last = capacity - min(place.need(o.forward, o.backward) for o in last)
        self._at_end = capacity - room.end
        self._to_end = [self._curve(kinds[done:]) for done in range(len(kinds) + 1)]
        self._to_last = [self._curve(kinds[done:-1]) for done in range(len(kinds))]
        self._price = self._to_end[0].price(self._at_end - room.below)
        self._paid = [min(map(self._with_bytes, of_kind)) for of_kind in options]
        self.states = 0

    def _with_bytes(self, option: Way) -> int:
        """Cost of an option and of the bytes that it keeps, at a price of each that stands for all
        layers (Lagrange's): in units of the price's bytes."""
        saved, size = self._price
        return option.cost * size + option.kept * saved

    def _curve(self, kinds: Iterable[int]) -> _Curve:
        return _Curve(self._hulls, Counter(kinds))

    def _least(self, done: int, kept: int) -> int | None:
        """What the layers after `done` cost at the least; None where they do not fit."""
        to_end = self._to_end[done].least(self._at_end - kept)
        if to_end is None or done == len(self._kinds):
            return to_end
        to_last = self._to_last[done].least(self._at_last - kept)
        return None if to_last is None else max(to_end, to_last + self._last_cost)

    def promising(self, limit: int | None) -> list[Numbered]:
        """Of each kind the options that a choice of less than `limit` may have, except those that
        another is as good as in everything."""
        found: list[Numbered] = []
        for kind, of_kind in enumerate(self._options):
            numbered = [*enumerate(of_kind)]
            if limit is not None and kind in self._kinds:
                others = [*self._kinds]
                others.remove(kind)
                numbered = [*self._within(numbered, self._curve(others), limit)]
            found.append(_undominated(numbered))
        return found

    def _within(self, numbered: Numbered, others: _Curve, limit: int) -> Iterator[_Numbered]:
        """Those whose cost and the least of the other layers come to less than `limit`."""
        for number, option in numbered:
            rest = others.least(self._at_end - self._room.below - option.kept)
            if rest is not None and rest + option.cost < limit:
                yield number, option

    def run(
        self, lists: Sequence[Numbered], limit: int | None, most: int
    ) -> tuple[_State | None, int | None]:
        """The cheapest choice among `lists` that costs less than `limit`; with it, where there were
        more than `most` states at a layer, what those left out cost at the least."""
        states, cut = [_State(self._room.below, 0)], None
        for done, (place, kind) in enumerate(zip(self._room.places, self._kinds, strict=True), 1):
            fitting = sorted(
                (
                    self._with_bytes(option),
                    self._capacity - place.need(option.forward, option.backward),
                    option,
                    number,
                )
                for number, option in lists[kind]
            )
            others = sum(self._paid[kind] for kind in self._kinds[done:])
            reached = [
                (state.kept + option.kept, state.cost + option.cost, option.away, number, state)
                for state in states
                for _, highest, option, number in self._cheap(fitting, state, others, limit)
                if state.kept + state.away <= highest
            ]
            least = []
            for state in _falling(reached):
                rest = self._least(done, state.kept)
                if rest is not None and (limit is None or state.cost + rest < limit):
                    least.append((state.cost + rest, state.kept, state))
            least.sort(key=itemgetter(0, 1))
            if len(least) > most:
                cut = least[most][0] if cut is None else min(cut, least[most][0])
            states = [state for _, _, state in least[:most]]
            self.states += len(states)
        return (min(states, key=lambda state: state.cost) if states else None), cut

    def _cheap(
        self, fitting: Sequence[_Priced], state: _State, others: int, limit: int | None
    ) -> Sequence[_Priced]:
        """Those of `fitting` that may follow `state` in a choice that costs less than `limit`, if
        the `others` after it cost the least that any does with each byte paid for."""
        if limit is None:
            return fitting
        saved, size = self._price
        paid = state.cost * size + state.kept * saved
        left = limit * size + saved * self._at_end - paid - others
        return fitting[: bisect_left(fitting, left, key=itemgetter(0))]

    @staticmethod
    def numbers(state: _State) -> tuple[int, ...]:
        """The options on the way to `state`."""
        found = []
        while state.before is not None:
            found.append(state.number)
            state = state.before
        return tuple(found[::-1])


_Reached = tuple[int, int, int, int, _State]


def _falling(reached: list[_Reached]) -> Iterator[_State]:
    """Of states, those that no other one, with as much kept or less, is as good as in cost and in
    what is on its way."""
    costs: list[int] = []  # rising, of states whose bytes on their way fall
    aways: list[int] = []
    for kept, cost, away, number, before in sorted(reached, key=itemgetter(0, 1, 2)):
        place = bisect_right(costs, cost)
        if place and aways[place - 1] <= away:
            continue
        end = place
        while end < len(costs) and aways[end] >= away:
            end += 1
        costs[place:end], aways[place:end] = [cost], [away]
        yield _State(kept, cost, away, number, before)


def _hull(numbered: Numbered) -> list[_Numbered]:
    """The lower convex hull by bytes kept, from the one that keeps least to the cheapest."""
    hull: list[_Numbered] = []
    for number, option in sorted(numbered, key=lambda one: (one[1].kept, one[1].cost)):
        if hull and option.cost >= hull[-1][1].cost:
            continue
        while len(hull) > 1 and not _turns(hull[-2][1], hull[-1][1], option):
            hull.pop()
        hull.append((number, option))
    return hull


def _turns(first: Way, second: Way, third: Way) -> bool:
    """Whether a byte saves more cost up to `second` than after it."""
    saved = (first.cost - second.cost) * (third.kept - second.kept)
    return saved > (second.cost - third.cost) * (second.kept - first.kept)


def _undominated(numbered: Numbered) -> list[_Numbered]:
    """Options of which no other is as good in everything."""
    found: list[_Numbered] = []
    for number, option in sorted(numbered, key=itemgetter(1)):
        if not any(
            o.kept <= option.kept
            and o.forward <= option.forward
            and o.backward <= option.backward
            and o.away <= option.away
            for _, o in found
        ):
            found.append((number, option))
    return found
